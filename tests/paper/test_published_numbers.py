"""The paper's numbers, read again from its source."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dessilbi.paper.published import (
    FIGURES,
    KAPPA,
    LAYERS_CONV_2,
    LAYERS_CONV_4,
    LAYERS_LENET_3,
    NU,
    OVERALL_DENSITY,
    TABLES,
    PublishedTable,
)

SOURCE = Path(__file__).parents[3] / "shared" / "paper" / "dessilbi.tex"
NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?![\w.])")
needs_source = pytest.mark.skipif(not SOURCE.is_file(), reason="the paper's source is not here")


def numbers_by_row(label: str) -> list[list[float]]:
    """The numbers of each row of a table, in the order of its columns; rows without any left out.

    Commands go, and so do the names of rows and columns, which hold numbers of their own.
    """
    text = SOURCE.read_text()
    (environment,) = (
        part
        for part in re.findall(r"\\begin\{table\*?\}(.*?)\\end\{table\*?\}", text, re.DOTALL)
        if f"\\label{{table:{label}}}" in part
    )
    environment = environment[: environment.index("\\caption")]
    rows = []
    for line in re.split(r"\\tabularnewline|\\\\", environment):
        line = re.sub(
            r"\\cline\{[^}]*\}|\\textcolor\{black\}|\\multi(row|column)\{[^}]*\}", "", line
        )
        line = re.sub(r"\$\\(kappa|nu)=\d+\$|MB|l\}_\{1\}", "", line)
        line = re.sub(r"\\[A-Za-z]+|[{}*]", " ", line)
        found = [
            float(number)
            for cell in line.split("&")
            for number in NUMBER.findall(cell.replace("/", " "))
            if not re.search(r"[A-Za-z]", cell)
        ]
        if found:
            rows.append(found)
    return rows


@needs_source
@pytest.mark.parametrize("label", TABLES)
def test_every_row_is_the_papers(label: str) -> None:
    ours = [[v for v in row if v is not None] for row in TABLES[label].rows.values()]
    assert ours == numbers_by_row(label)


@needs_source
def test_no_table_is_missing() -> None:
    labels = set(re.findall(r"\\label\{table:([^}]*)\}", SOURCE.read_text()))
    assert labels == set(TABLES)


@needs_source
def test_no_figure_is_missing() -> None:
    text = SOURCE.read_text()
    figures = re.findall(r"\\begin\{figure\*?\}.*?\\end\{figure\*?\}", text, re.DOTALL)
    labels = {label for part in figures for label in re.findall(r"\\label\{([^}]*)\}", part)}
    assert labels == set(FIGURES)


@needs_source
@pytest.mark.parametrize(
    ("name", "spelling"), [("lenet-3", "Lenet-3"), ("conv-2", "Conv-2"), ("conv-4", "Conv-4")]
)
def test_overall_densities_are_in_the_text(name: str, spelling: str) -> None:
    (sentence,) = re.findall(r"The whole sparsity for.*?\. Detailed", SOURCE.read_text())
    assert re.search(rf"{spelling} is {OVERALL_DENSITY[name]}\b", sentence)


@pytest.mark.parametrize(
    ("table", "name"),
    [(LAYERS_LENET_3, "lenet-3"), (LAYERS_CONV_2, "conv-2"), (LAYERS_CONV_4, "conv-4")],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_overall_density_follows_from_the_layers(table: PublishedTable, name: str) -> None:
    weights = [w or 0.0 for w in table.rows["weights"]]
    kept = sum(w * (d or 0.0) for w, d in zip(weights, table.rows["density"], strict=True))
    assert kept / sum(weights) == pytest.approx(OVERALL_DENSITY[name], rel=0.02)


@pytest.mark.parametrize("network", ["vgg-16", "resnet-56"])
@pytest.mark.parametrize("kind", ["full", "sparse"])
def test_noise_is_the_difference_of_the_setting_given_twice(network: str, kind: str) -> None:
    row = f"{kind}/{network}"
    once, again = KAPPA.value(row, "kappa=1"), NU.value(row, "nu=100")
    assert once is not None
    assert again is not None
    for table in (KAPPA, NU):
        assert table.spreads[row] == pytest.approx(abs(once - again))


def test_every_row_has_a_number_for_every_column() -> None:
    for table in TABLES.values():
        assert {len(row) for row in table.rows.values()} == {len(table.columns)}

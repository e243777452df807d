"""Ours against theirs: what a table says."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import pytest
from matplotlib.figure import Figure

from dessilbi.lab.run.directory import RunError
from dessilbi.paper.figures import Line, Panel, _panel, draw_panels
from dessilbi.paper.recipes import RECIPES
from dessilbi.paper.results import Record, Results
from dessilbi.paper.tables import Cell, Table

if TYPE_CHECKING:
    from pathlib import Path

    from dessilbi.paper.recipe import Scale


@pytest.mark.parametrize(
    ("ours", "theirs", "their_spread", "outside"),
    [
        ((90.0, 92.0), 94.0, None, True),  # 3 apart, spread 1.41
        ((90.0, 92.0), 94.0, 2.0, False),  # their spread covers the rest
        ((90.0, 92.0), 92.0, None, False),
        ((91.0,), 94.0, 2.0, None),  # one seed has no spread
        ((), 94.0, None, None),
        ((90.0, 92.0), None, None, None),
    ],
)
def test_outside_means_further_apart_than_both_spreads(
    ours: tuple[float, ...], theirs: float | None, their_spread: float | None, outside: bool | None
) -> None:
    assert Cell("row", "column", ours, theirs, their_spread).outside is outside


TABLE = Table(
    "x",
    "A title & more",
    [
        Cell("a_b", "50 %", (90.0, 92.0), 94.0, 0.5),
        Cell("single", "", (90.0,), 94.0, collapsed=2),
        Cell("missing", "", (), 94.0),
        Cell("new", "", (1.0, 3.0)),
    ],
    notes=("A note.",),
)


def test_markdown_shows_ours_theirs_and_the_difference() -> None:
    text = TABLE.markdown()
    assert "| a_b | 50 % | 91.00 ± 1.41 | 2 | 94.00 ± 0.50 | -3.00 | yes |" in text
    assert "| single |  | 90.00 | 1, 2 collapsed | 94.00 | -4.00 | ? |" in text
    assert "| missing |  | - | 0 | 94.00 | - | - |" in text
    assert "| new |  | 2.00 ± 1.41 | 2 | - | - | - |" in text
    assert "3 of 4 cells have a result." in text
    assert "- A note." in text


def test_figures_are_png_and_svg_with_labels_and_the_same_each_time(tmp_path: Path) -> None:
    panel = Panel("title", "accuracy, %", [Line("kappa=1", [[1, 2], [3, 4]])])
    png, svg = draw_panels([panel], tmp_path / "figure", "all")
    assert png.read_bytes().startswith(b"\x89PNG")
    first = svg.read_text()
    assert all(word in first for word in ("epoch", "accuracy, %", "kappa=1 (2 seeds)", "title"))
    ticket = {"ticket": ([20.0], [47.0])}
    points = Panel("", "", points=ticket, horizontals={"SGD, dense": 48.0})
    _, svg = draw_panels([points], tmp_path / "points", "")
    assert all(word in svg.read_text() for word in ("ticket", "SGD, dense"))
    assert draw_panels([Panel("empty", "")], tmp_path / "none", "") == []


def test_means_are_dots_and_only_several_seeds_have_a_deviation() -> None:
    axes = Figure().subplots()
    _panel(Panel("", "accuracy, %", means={"one": [97.0], "two": [96.0, 98.0]}), axes)
    assert not axes.patches, "a bar says something untrue on an axis that does not begin at 0"
    assert axes.get_ylim()[0] > 0
    assert [bar.has_yerr for bar in axes.containers] == [False, True]


def results() -> Results:
    found = Results("table-mnist", "smoke", planned=4)
    for seed, accuracy in ((1, 98.0), (0, 99.0), (2, 10.0)):
        values = {"accuracy": accuracy, "collapsed": accuracy < 20}
        found.records[f"a/{seed}"] = Record({"row": "a", "seed": seed}, "done", values, run="r")
    found.records["b"] = Record({"row": "b", "seed": 0}, "failed", message="no luck")
    return found


def test_results_go_to_a_file_and_back(tmp_path: Path) -> None:
    file = tmp_path / "r.json"
    results().save(file)
    assert Results.load(file, "table-mnist", "smoke") == results()
    assert sum('"status"' in line for line in file.read_text().splitlines()) == 4, "a line a run"


def test_collapsed_and_failed_runs_are_counted_but_not_averaged() -> None:
    found = results()
    assert found.values("accuracy", row="a") == [99.0, 98.0], "in the order of seeds"
    assert found.collapsed(row="a") == 1
    assert found.values("accuracy", row="b") == []
    assert found.done == 3


def recipe_results(name: str, scale: Scale, labels: dict[str, str], values: object) -> Results:
    """Seed 0 learned, seed 1 collapsed with the same values."""
    found = Results(name, scale)
    for seed in (0, 1):
        content = {**values, "collapsed": seed == 1}  # type: ignore[dict-item]
        found.records[str(seed)] = Record({**labels, "seed": seed}, "done", content)
    return found


CURVES = {"density": [0.1] * 16, "sparse_accuracy": [50.0] * 16}


@pytest.mark.parametrize(
    ("name", "labels", "values"),
    [
        (
            "finetune-lenet-3",
            {"network": "lenet-3", "method": "DessiLBI"},
            {
                "density": 0.1,
                "densities": {f"fc{i}.weight": 0.1 for i in (1, 2, 3)},
                "accuracy": 9.0,
                "sparse_accuracy": 9.0,
            },
        ),
        ("ablation-nu", {"network": "vgg-16", "setting": "nu=100"}, {"curves": CURVES}),
        (
            "filters-lenet-5",
            {"method": "DessiLBI"},
            {"accuracy": 9.0, "inside": [0], "norms": [[1.0, 2.0]]},
        ),
        ("gradients-resnet-18", {"method": "SGD"}, {"accuracy": 9.0}),
        ("lottery-vgg-16", {"method": "SGD", "at": "dense"}, {"accuracy": 9.0}),
    ],
)
def test_no_table_averages_a_seed_that_collapsed(
    name: str, labels: dict[str, str], values: dict[str, object]
) -> None:
    found = recipe_results(name, "cpu", labels, values)
    cells = [c for t in RECIPES[name].tables(found) for c in t.cells if c.ours or c.collapsed]
    assert cells
    filled = [c for c in cells if c.ours]
    assert {(len(c.ours), c.collapsed) for c in filled} == {(1, 1)}
    assert len(filled) >= {"finetune-lenet-3": 6, "ablation-nu": 8, "filters-lenet-5": 2}.get(
        name, 1
    )


def test_a_full_disk_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("dessilbi.paper.results.write_whole", full)
    with pytest.raises(RunError, match=r"cannot write .*r\.json: the disk is full"):
        results().save(tmp_path / "r.json")


def test_a_change_is_made_to_what_the_file_holds_now(tmp_path: Path) -> None:
    file = tmp_path / "new" / "r.json"
    for key in ("a", "b"):
        with Results.changed(file, "cost", "cpu") as found:
            found.records[key] = Record({}, "done")
    assert list(Results.load(file, "cost", "cpu").records) == ["a", "b"]
    with pytest.raises(ZeroDivisionError), Results.changed(file, "cost", "cpu") as found:
        found.records["c"] = Record({"seed": 1 // 0}, "done")
    assert list(Results.load(file, "cost", "cpu").records) == ["a", "b"]


def test_foreign_files_of_results_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "r.json"
    results().save(file)
    with pytest.raises(ValueError, match="holds table-mnist at scale smoke, not cost at cpu"):
        Results.load(file, "cost", "cpu")
    file.write_text("{")
    with pytest.raises(ValueError, match="is not a file of results"):
        Results.load(file, "cost", "cpu")
    assert Results.load(tmp_path / "none", "cost", "cpu") == Results("cost", "cpu")

"""The file itself: self-contained, escaped, small; figures; the commands."""

from __future__ import annotations

import json
import re
import shutil
from html.parser import HTMLParser
from typing import TYPE_CHECKING

import pytest

from dessilbi.cli import main
from dessilbi.lab.run.directory import RunDir, RunError
from dessilbi.report import FORMATS, make_page, read_run, write_figures, write_report
from dessilbi.report.figures import make_figures
from dessilbi.report.run_data import read_runs
from dessilbi.report.tables import commands, config_table, epochs_table

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes

EVIL = "</script><img src=x onerror=alert(1)>&\"'"


@pytest.fixture(scope="module")
def page(run: RunDir) -> str:
    return make_page([read_run(run.path)])


class Tags(HTMLParser):
    """Every tag with its attributes, as a browser would see them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def keys_of(page: str) -> list[str | None]:
    """The panels of a page."""
    return [a["data-key"] for tag, a in Tags(page).found if tag == "figure"]


def test_nothing_is_fetched(page: str) -> None:
    for tag, attributes in Tags(page).found:
        assert tag not in ("link", "iframe", "object")
        for name in ("src", "href"):
            assert (attributes.get(name) or "data:").startswith("data:"), (tag, attributes)
    assert "default-src 'none'" in page
    assert not re.search(r"\burl\((?!\$\{address)|@import", page), "but for pictures of the page"


def test_panels_of_a_run_with_a_path(page: str) -> None:
    assert keys_of(page) == [
        "accuracy", "loss", "paths", "entries", "next", "densities", "filters", "budgets",
        "gap", "augmented",
    ]  # fmt: skip


def test_tables_hold_config_environment_and_the_exact_command(run: RunDir, page: str) -> None:
    for text in ("optimizer.lambd", "packages.torch", "Every budget", "Compact networks"):
        assert text in page
    assert f"dessilbi train {run.path}/config.json --runs {run.path.parent}" in page


def test_the_command_works_where_the_report_was_made(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(run.path.parent.parent)
    folder = f"{run.path.parent.name}/{run.path.name}"
    expected = f"dessilbi train {folder}/config.json --runs {run.path.parent.name}  "
    assert expected in commands(read_run(folder))
    monkeypatch.chdir(run.path)
    expected = f"dessilbi train {run.path}/config.json --runs {run.path.parent}  "
    assert expected in commands(read_run("."))


def test_a_subnetwork_is_not_made_again_by_train(retrained: RunDir) -> None:
    data = read_run(retrained.path)
    assert "dessilbi train" not in commands(data)
    data.environment["command"] = ["dessilbi", "subnet", "runs/a", "--density", "0.3"]
    assert "dessilbi subnet runs/a --density 0.3    # as it was given" in commands(data)
    data.environment.clear()
    assert commands(data) == ""


def test_labels_of_a_subnetwork(retrained: RunDir) -> None:
    data = read_run(retrained.path)
    (axes,) = make_figures([data])["accuracy"].axes
    assert axes.get_legend_handles_labels()[1][0] == "the subnetwork"
    assert "the subnetwork, %" in epochs_table(data)


def test_the_images_of_the_budgets_are_those_of_the_frontier(run: RunDir, tmp_path: Path) -> None:
    def axes(judged_on: str) -> Axes:
        folder = tmp_path / judged_on / run.path.name
        shutil.copytree(run.path, folder)
        frontier = json.loads((folder / "frontier.json").read_text()) | {"judged_on": judged_on}
        (folder / "frontier.json").write_text(json.dumps(frontier))
        (found,) = make_figures([read_run(folder)])["budgets"].axes
        return found

    assert axes("test").get_ylabel() == "accuracy, % of the test set"
    different = axes("validation")
    assert different.get_ylabel() == "accuracy, %"
    assert different.get_legend_handles_labels()[1] == [
        "every budget (validation set)", "support, by epoch (test set)",
        "compact network (test set)",
    ]  # fmt: skip


def test_files_are_small(run: RunDir, page: str) -> None:
    assert len(page.encode()) < 3e6


def test_text_of_a_configuration_is_escaped(run: RunDir, tmp_path: Path) -> None:
    folder = tmp_path / run.path.name
    shutil.copytree(run.path, folder)
    config = json.loads((folder / "config.json").read_text())
    config["data"]["name"] = config["model"]["name"] = EVIL
    config["optimizer"]["exclude"] = [EVIL]
    (folder / "config.json").write_text(json.dumps(config))
    environment = json.loads((folder / "environment.json").read_text()) | {"device": EVIL, EVIL: 1}
    (folder / "environment.json").write_text(json.dumps(environment | {"command": [EVIL]}))
    (folder / "frontier.json").write_text(json.dumps({"points": [], "judged_on": EVIL}))
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    evil = [json.dumps(json.loads(line) | {"judged_on": EVIL}) for line in lines]
    (folder / "metrics.jsonl").write_text("\n".join(evil) + "\n")
    text = write_report([folder]).read_text()
    assert "<img src=x" not in text
    assert all("onerror" not in attributes for _, attributes in Tags(text).found)
    assert sum(tag == "script" for tag, _ in Tags(text).found) == 3
    values = re.search(r'id="values">(.*?)</script>', text, re.DOTALL)
    assert values is not None
    assert EVIL in json.loads(values[1])["charts"]["accuracy"][0]["ylabel"]


def test_a_run_without_a_path_shows_what_it_has(plain: RunDir) -> None:
    data = read_run(plain.path)
    page = make_page([data])
    assert keys_of(page) == ["accuracy", "loss"]
    assert "Every epoch" in page


def test_several_runs_are_compared(run: RunDir, other: RunDir, plain: RunDir) -> None:
    text = make_page([read_run(r.path) for r in (run, other, plain)])
    assert "3 runs compared" in text
    assert "differs: seed" in text


def test_runs_of_one_name_are_told_apart(run: RunDir, tmp_path: Path) -> None:
    copy = shutil.copytree(run.path, tmp_path / run.path.name)
    page = write_report([run.path, copy, run.path], tmp_path / "page.html").read_text()
    assert "2 runs compared" in page
    table = config_table(read_runs([run.path, copy]))
    assert [f">{folder}</th>" in table for folder in (run.path, copy)] == [True, True]


# ---------------------------------------------------------------------- figures and commands


def test_figures_of_a_path(run: RunDir, tmp_path: Path) -> None:
    files = write_figures([run.path], tmp_path / "out", ["pdf"])
    assert {file.stem for file in files} == {
        "accuracy", "loss", "budgets", "gap", "augmented", "paths", "entries",
    }  # fmt: skip


def test_figures_of_every_format(plain: RunDir, tmp_path: Path) -> None:
    files = write_figures([plain.path], tmp_path / "out")
    assert {file.suffix[1:] for file in files} == set(FORMATS)
    starts = {"png": b"\x89PNG", "pdf": b"%PDF", "svg": b"<?xml"}
    assert all(file.read_bytes().startswith(starts[file.suffix[1:]]) for file in files)


def test_figures_refuse_what_they_do_not_know(run: RunDir, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="formats must be of png, svg, pdf, got 'gif'"):
        write_figures([run.path], tmp_path, ["gif"])
    with pytest.raises(ValueError, match=r"did you mean 'conv1\.weight'"):
        write_figures([run.path], tmp_path, ["png"], layer="conv1")
    with pytest.raises(ValueError, match="name at least one of the formats png, svg, pdf"):
        write_figures([run.path], tmp_path, [])
    with pytest.raises(RunError, match="name at least one run directory"):
        write_report([])


def test_the_commands(
    run: RunDir, plain: RunDir, page: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["report", str(run.path), "-o", str(tmp_path / "a" / "page.html")])
    assert "open it in a browser" in capsys.readouterr().out
    made = (tmp_path / "a" / "page.html").read_text()
    assert made.startswith("<!doctype html>")
    assert made == page, "the same run makes the same page"
    main(["figures", str(plain.path), "-o", str(tmp_path), "--formats", "svg"])
    assert "accuracy, loss" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["report", "figures"])
def test_a_fault_is_one_message(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main([command, str(tmp_path)])
    assert stop.value.code == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert "is not a run directory" in error


@pytest.mark.parametrize("command", ["report", "figures"])
def test_where_nothing_can_be_written_the_way_out_is_an_option_of_the_command(
    command: str, plain: RunDir, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit) as stop:
        main([command, str(plain.path), "-o", str(tmp_path / "file" / "out")])
    assert stop.value.code == 1
    error = capsys.readouterr().err
    assert error.startswith(f"error: cannot write {tmp_path / 'file' / 'out'}: ")
    assert "choose another folder with -o" in error
    assert "--runs" not in error

"""Names and records of a run directory's files stand in one module."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import dessilbi
from dessilbi.lab.run import files
from dessilbi.lab.run.directory import RunDir
from dessilbi.lab.run.files import Frontier, FrontierPoint, kept_epochs, read_frontier

ROOMS = ("lab", "cli", "report", "paper")


def test_file_names_stand_in_one_module_only() -> None:
    names = {value for name, value in vars(files).items() if name.isupper() and name != "LOCK"}
    names = {name for name in names if isinstance(name, str) and re.search(r"\.|-", name)}
    assert {"metrics.jsonl", "checkpoint-last", "frontier.json"} <= names
    literal = re.compile("|".join(f"[\"']{re.escape(name)}[\"'/]" for name in sorted(names)))
    root = Path(dessilbi.__file__).parent
    found = [
        f"{file.relative_to(root)}: {line.strip()}"
        for room in ROOMS
        for file in sorted((root / room).rglob("*.py"))
        if file != Path(files.__file__)
        for line in file.read_text().splitlines()
        if literal.search(line)
    ]
    assert found == []


def test_a_frontier_is_read_as_it_was_written(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    assert read_frontier(run) is None
    frontier = Frontier(3, "test", (FrontierPoint(0.1, 0.09, 1200, 34000.0, 800, 21000.0, 97.5),))
    frontier.write(run)
    assert read_frontier(run) == frontier


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"epoch": 1, "judged_on": "", "points": 3}'])
def test_a_damaged_frontier_is_said_to_be_one(tmp_path: Path, content: str) -> None:
    (tmp_path / files.FRONTIER).write_text(content)
    with pytest.raises(ValueError, match="make it again with `dessilbi frontier`"):
        read_frontier(RunDir(tmp_path))


def test_kept_epochs_are_those_with_a_whole_checkpoint(tmp_path: Path) -> None:
    for name in ("checkpoint-10", "checkpoint-2", "checkpoint-last"):
        (tmp_path / name).mkdir()
        (tmp_path / name / files.STATE).write_text("{}")
    (tmp_path / "checkpoint-5").mkdir()  # killed before it counted
    assert kept_epochs(RunDir(tmp_path)) == [2, 10]

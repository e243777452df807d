"""Every command on a run whose twin grows beside another optimizer than SGD."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from dessilbi.cli import main
from dessilbi.lab.run.config import OptimizerConfig
from lab_runs import FILTERS, uninterrupted

if TYPE_CHECKING:
    from pathlib import Path

    from dessilbi.lab.run.directory import RunDir

ADAMW = OptimizerConfig(base="adamw", lr=3e-3, weight_decay=0.01, tau=3.0, c=0.5)
BASED = replace(FILTERS, name="based", optimizer=ADAMW, epochs=3)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    return uninterrupted(BASED, tmp_path_factory.mktemp("runs"))


def test_the_support_is_evaluated(run: RunDir) -> None:
    records = run.records()
    assert 0 < records[-1]["density"] < 1
    assert records[-1]["sparse_accuracy"] > 0
    assert {record["nu"] for record in records} == {records[0]["nu"]}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["path"], "groups that entered"),
        (["subnet", "--density", "0.5", "--retrain", "rewind:1"], "done: 2 epochs"),
        (["subnet", "--density", "0.5", "--retrain", "finetune"], "done: 1 epochs"),
        (["compact", "--density", "0.5"], "difference to the masked model"),
        (["frontier"], "frontier.json"),
        (["report"], "report.html"),
    ],
    ids=lambda value: "-".join(value[:1]) if isinstance(value, list) else "",
)
def test_every_command_reads_the_run(
    run: RunDir,
    arguments: list[str],
    words: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    command, *options = arguments
    options += ["--runs", str(tmp_path)] if command == "subnet" else []
    main([command, str(run.path), *options])
    assert words in capsys.readouterr().out


def test_the_theory_says_what_it_is_about(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["theory", str(run.path)])
    said = " ".join(capsys.readouterr().err.split())
    assert "about optimizers dessilbi and sgd, not dessilbi with base adamw" in said


def test_the_report_names_the_base(run: RunDir) -> None:
    main(["report", str(run.path)])
    assert "SplitLBI around adamw" in (run.path / "report.html").read_text()


def test_it_is_named_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--epochs", "1", "--data.images", "200", "--runs", str(tmp_path)]
    main(["train", "digits", "--with", "dessilbi-adamw", *options, "--optimizer.tau", "4"])
    assert "done: 1 epochs" in capsys.readouterr().out
    (folder,) = tmp_path.iterdir()
    found = json.loads((folder / "config.json").read_text())["optimizer"]
    assert (found["name"], found["base"], found["tau"]) == ("dessilbi", "adamw", 4.0)
    with pytest.raises(SystemExit):
        main(["train", "digits", "--optimizer.tau", "4", *options])
    said = " ".join(capsys.readouterr().err.split())
    assert "nu takes the place of tau, got nu=20.0 and tau=4.0; set one of them to None" in said

"""What the terminal shows while a run trains, and what a log file gets."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from dessilbi.lab.run.config import OptimizerConfig
from dessilbi.lab.run.options import RunOptions
from dessilbi.lab.training import terminal as progress
from dessilbi.lab.training.loop import train
from dessilbi.lab.training.terminal import TerminalDisplay
from lab_runs import SMALL, Crash, CrashAt

if TYPE_CHECKING:
    from pathlib import Path

    from dessilbi.lab.run.config import Config
    from dessilbi.lab.run.directory import RunDir

ESCAPES = re.compile(r"\x1b\[[?0-9;]*[a-zA-Z]")


def shown(config: Config, runs: Path, *, terminal: bool) -> tuple[str, RunDir]:
    """What a run prints, colours and cursor movements taken out of a terminal's."""
    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, width=140, highlight=False)
    with TerminalDisplay(console) as display:
        run = train(config, RunOptions(runs=runs), display)
    return (ESCAPES.sub("", file.getvalue()) if terminal else file.getvalue()), run


def numbers_of(run: RunDir) -> list[list[str]]:
    """Loss, dense, sparse and recalibrated accuracy and density, as a line shows them."""
    return [
        [
            f"{r['epoch']}/{SMALL.epochs}",
            f"{r['train_loss']:.4f}",
            f"{r['accuracy']:.2f}",
            f"{r['sparse_accuracy']:.2f}",
            f"{r['recalibrated_accuracy']:.2f}",
            f"{r['density']:.4f}",
        ]
        for r in run.records()
    ]


def test_a_terminal_sees_numbers_speed_and_time_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "UPDATES_PER_SECOND", 1e9)  # every step
    text, run = shown(SMALL, tmp_path, terminal=True)
    for column in ("epoch", "loss", "dense", "sparse", "recal.", "density", "images/s"):
        assert column in text
    assert re.search(r"epoch 1/3 .*[\d,]+ images/s, \d+:\d\d left", text)
    assert re.search(r"epoch 3/3 .*[\d,]+ images/s, 0:00 left", text)
    for line in numbers_of(run):
        assert re.search(r"\s+".join(map(re.escape, line)) + r"\s+[\d,]+\s", text), line


def test_a_log_gets_lines_only(tmp_path: Path) -> None:
    text, run = shown(SMALL, tmp_path, terminal=False)
    assert "\x1b" not in text
    assert "left" not in text
    lines = text.splitlines()
    assert lines[0].startswith("lenet-300-100 on digits (1,442 training images from scikit-learn)")
    assert lines[1] == f"run directory: {run.path}"
    assert [line.split()[:-1] for line in lines[3:]] == numbers_of(run)


def test_a_resumed_run_shows_the_epochs_before(tmp_path: Path) -> None:
    with pytest.raises(Crash):
        train(SMALL, RunOptions(runs=tmp_path), CrashAt(8))
    text, run = shown(SMALL, tmp_path, terminal=False)
    assert "continues in epoch 2" in text
    assert text.count("images/s") == 1
    assert [line.split()[:-1] for line in text.splitlines()[-3:]] == numbers_of(run)


def test_optimizers_without_gamma_show_dashes(tmp_path: Path) -> None:
    config = replace(SMALL, optimizer=OptimizerConfig(name="sgd"), epochs=1)
    text, _ = shown(config, tmp_path, terminal=False)
    assert text.splitlines()[-1].split()[3:6] == ["-", "-", "-"]


def test_time_left_is_a_clock() -> None:
    assert [progress._clock(s) for s in (0, 59.9, 61, 3600, 90061)] == [
        *("0:00", "0:59", "1:01", "1:00:00", "25:01:01")
    ]


def test_paths_are_printed_as_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Brackets and colons are no markup."""
    runs = tmp_path / "runs[bold]" / ":cat:"
    with TerminalDisplay() as display:
        run = train(replace(SMALL, epochs=1), RunOptions(runs=runs), display)
    assert f"run directory: {run.path}" in capsys.readouterr().out

"""``dessilbi theory`` and ``dessilbi train --check-step``: what they say and leave alone."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

from dessilbi.cli import main
from dessilbi.lab.run.config import to_json
from dessilbi.lab.run.directory import RunDir
from dessilbi.lab.run.options import RunOptions
from dessilbi.lab.training.callbacks.step_check import StepCheckCallback, iteration_of
from dessilbi.lab.training.display import Silent
from dessilbi.lab.training.distributed import World
from dessilbi.lab.training.loop import train
from dessilbi.lab.training.optimizers import make_optimizer
from dessilbi.lab.training.state import Training
from lab_runs import SMALL, assert_same_run, changed, uninterrupted, with_model

if TYPE_CHECKING:
    from pathlib import Path

    from dessilbi.lab.run.config import Config

FEW = ("--images", "200", "--iterations", "12")


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int | str | None, str]:
    """Exit code and everything printed, on one line."""
    code: int | str | None = 0
    try:
        main(list(arguments))
    except SystemExit as stop:
        code = stop.code
    out = capsys.readouterr()
    assert "Traceback" not in out.err
    return code, " ".join((out.out + out.err).split())


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    return uninterrupted(SMALL, tmp_path_factory.mktemp("runs"))


def file_of(config: Config, folder: Path) -> str:
    path = folder / "config.json"
    path.write_text(to_json(config))
    return str(path)


# ---------------------------------------------------------------------- dessilbi theory


def test_a_run_is_looked_at_where_it_was_kept(
    run: RunDir, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text = said(capsys, "theory", str(run.path), *FEW)
    assert code == 0
    assert "lenet-300-100 on digits, 200 of 1,442 training images" in text
    for label in ("initial", "epoch 1", "epoch 3"):
        assert label in text
    assert "epoch 2" not in text  # was not kept
    assert "verdict (" in text
    for reason in ("momentum 0.9", "batches of 256 of 1,442 images", "not smooth: relu ("):
        assert f"outside the theorem: {reason}" in text


def test_a_run_is_found_by_its_name(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    runs, name = str(run.path.parent), run.path.name
    code, text = said(capsys, "theory", name, "--runs", runs, *FEW)
    assert code == 0
    assert "epoch 3" in text


def test_the_same_command_says_the_same(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    first = said(capsys, "theory", str(run.path), *FEW)
    assert said(capsys, "theory", str(run.path), *FEW) == first
    assert said(capsys, "theory", str(run.path), *FEW, "--seed", "5") != first


def test_a_configuration_is_looked_at_before_it_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Small steps, full batches, no momentum: only the kinks are left outside."""
    config = changed(SMALL, lr=1e-3, momentum=0.0)
    config = replace(config, batch_size=2000)
    code, text = said(capsys, "theory", file_of(config, tmp_path), "--images", "200")
    assert code == 0
    assert "verdict: lr 0.001 is below the safe bound" in text
    assert text.count("outside the theorem") == 1


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (["digit"], "error: unknown recipe 'digit'; did you mean 'digits'?"),
        (["runs/none"], "error: there is no run directory runs/none"),
        (["none.json"], "error: there is no configuration file none.json"),
        (["digits", "--images", "0"], "error: images must be >= 1, got 0"),
        (["digits", "--threads", "0"], "error: threads must be >= 1, got 0"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_mistakes(arguments: list[str], fault: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = said(capsys, "theory", *arguments)
    assert code == 1
    assert fault in text


def test_optimizers_without_a_bound_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = replace(SMALL, optimizer=type(SMALL.optimizer)(name="adam", lr=1e-3))
    code, text = said(capsys, "theory", file_of(config, tmp_path), *FEW)
    assert code == 1
    assert "the bounds are about optimizers dessilbi and sgd, not adam" in text


def test_a_competitor_of_the_paper_is_known_in_a_process_of_its_own(tmp_path: Path) -> None:
    config = replace(SMALL, optimizer=type(SMALL.optimizer)(name="adabound", lr=1e-3))
    command = [sys.executable, "-m", "dessilbi", "theory", file_of(config, tmp_path), *FEW]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "the bounds are about optimizers dessilbi and sgd, not adabound" in done.stderr


def test_sgd_is_dessilbi_without_a_twin(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = replace(SMALL, optimizer=type(SMALL.optimizer)(name="sgd", lr=1e-3))
    code, text = said(capsys, "theory", file_of(config, tmp_path), *FEW)
    assert code == 0
    assert "nu inf" in text


# ---------------------------------------------------------------------- train --check-step


class Ear(Silent):
    """Keeps the warnings."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def warn(self, text: str) -> None:
        self.heard.append(text)


def dropout_net(num_classes: int) -> nn.Module:
    """Draws random numbers in training and keeps running statistics."""
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.2), nn.Flatten(),
        nn.Linear(144, num_classes),
    )  # fmt: skip


def test_checking_the_step_changes_no_bit_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(SMALL, model=with_model(monkeypatch, dropout_net))
    ear = Ear()
    plain = train(config, RunOptions(runs=tmp_path / "plain"))
    checked = train(config, RunOptions(runs=tmp_path / "checked", check_step=True), ear)
    assert_same_run(checked, plain)


def test_a_step_that_is_too_large_is_warned_of(tmp_path: Path) -> None:
    ear = Ear()
    train(changed(SMALL, lr=0.2, momentum=0.0), RunOptions(runs=tmp_path, check_step=True), ear)
    assert ear.heard[0].startswith("epoch 1: lr 0.2 is above the safe step")
    assert "the paper's:" in ear.heard[0]
    assert "not smooth: relu (" in ear.heard[0]
    for before, after in zip(ear.heard, ear.heard[1:], strict=False):
        assert ("above" in before) != ("above" in after)  # only what changes is said


@pytest.mark.filterwarnings("ignore:nothing has entered Gamma")  # at so small a step
def test_a_small_step_is_not_mentioned(tmp_path: Path) -> None:
    ear = Ear()
    train(changed(SMALL, lr=1e-3), RunOptions(runs=tmp_path, check_step=True), ear)
    assert ear.heard == []


def test_what_cannot_be_checked_is_said_once(tmp_path: Path) -> None:
    ear = Ear()
    config = replace(SMALL, optimizer=type(SMALL.optimizer)(name="adam", lr=1e-3))
    train(config, RunOptions(runs=tmp_path, check_step=True), ear)
    assert ear.heard == ["--check-step is about dessilbi and sgd; adam is not checked"]


def test_several_processes_are_not_checked(tmp_path: Path) -> None:
    ear = Ear()
    options = RunOptions(runs=tmp_path)
    t = Training.make(SMALL, options, RunDir(tmp_path), torch.device("cpu"), World(), ear)
    t.world = World(0, 2)
    StepCheckCallback(t).on_epoch_start(t)
    assert ear.heard == ["--check-step works in one process, not in 2; not checked"]


def test_the_option_reaches_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    config = file_of(replace(changed(SMALL, lr=0.2, momentum=0.0), epochs=1, keep=()), tmp_path)
    code, text = said(capsys, "train", config, "--check-step")
    assert code == 0
    assert "warning: epoch 1: lr 0.2 is above the safe step" in text


def test_what_the_theorem_knows_of_an_optimizer() -> None:
    net = nn.Sequential(nn.Linear(3, 2))
    options = type(SMALL.optimizer)
    paper = options(lr=0.1, weight_decay=1e-3, decoupled_weight_decay=True, nu=3.0)
    found = iteration_of(make_optimizer(net, paper))
    assert found is not None
    assert (found.lr, found.nu) == (0.1, 3.0)
    assert found.l2 == pytest.approx(1e-2)
    assert found.outside == ()
    found = iteration_of(make_optimizer(net, options(name="sgd", momentum=0.5)))
    assert found is not None
    assert found.outside == ("momentum 0.5 (the theorem has none)",)
    assert iteration_of(make_optimizer(net, options(name="sgd-l1", l1=1e-3))) is None

"""Interrupted anywhere, a run that is started again ends bit-identical to one that was not."""

from __future__ import annotations

import multiprocessing
import signal
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

from dessilbi.cli import main
from dessilbi.lab.run.config import Config, ModelConfig, OptimizerConfig, to_json
from dessilbi.lab.run.directory import RunDir, RunError
from dessilbi.lab.run.files import LAST
from dessilbi.lab.run.methods import FrozenSupport, NestedWidths
from dessilbi.lab.run.options import RunOptions
from dessilbi.lab.training.display import Silent
from dessilbi.lab.training.errors import Interrupted
from dessilbi.lab.training.loop import train
from lab_runs import (
    FILTERS,
    NESTED,
    SMALL,
    STEPS,
    Crash,
    CrashAt,
    Life,
    assert_same_run,
    command,
    crash_and_resume,
    live,
    start,
    uninterrupted,
    wait_for,
    with_model,
)

if TYPE_CHECKING:
    from pathlib import Path

    from dessilbi.lab.run.checkpoint import Progress

LONG = replace(SMALL, epochs=40)
"""Long enough to be caught in the act by a signal."""


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    return uninterrupted(SMALL, tmp_path_factory.mktemp("reference"))


@pytest.fixture(scope="module")
def long_reference(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    return uninterrupted(LONG, tmp_path_factory.mktemp("long-reference"))


# ---------------------------------------------------------------------- kill -9


def test_killed_while_it_writes(reference: RunDir, tmp_path: Path) -> None:
    """One run, killed again and again: at its 1st touch of the disk, at the 6th of the next life...

    A touch is a flush (which is then cut short), a rename (before and after) or a removal.
    """
    deaths = 0
    for death in count(1, 5):
        code = live(Life(SMALL, tmp_path, death, save_minutes=0))
        if code == 0:
            break
        assert code == -signal.SIGKILL
        deaths += 1
    assert deaths > 8
    assert_same_run(RunDir.of(SMALL, tmp_path), reference)


@pytest.mark.slow
@pytest.mark.parametrize(("save_minutes", "every"), [(10.0, 1), (0.0, 5)])
def test_killed_at_every_single_write(
    reference: RunDir, tmp_path: Path, save_minutes: float, every: int
) -> None:
    """Each time a new run; with a save after each step, at every fifth touch."""
    for death in count(1, every):
        runs = tmp_path / str(death)
        code = live(Life(SMALL, runs, death, save_minutes))
        if code == 0:
            assert death > 80
            return
        assert code == -signal.SIGKILL
        assert_same_run(uninterrupted(SMALL, runs), reference)


def test_killed_from_outside_in_the_middle_of_an_epoch(
    long_reference: RunDir, tmp_path: Path
) -> None:
    config = tmp_path / "config.json"
    config.write_text(to_json(LONG))
    run = RunDir(tmp_path / "runs" / LONG.run_name)
    process = start(command(config, run.path.parent, "--save-minutes", "0"))
    wait_for(lambda: len(run.records()) >= 2, process)
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    last = run.load(LAST)
    assert last is not None
    assert 0 < last.state["epoch"] < LONG.epochs
    assert_same_run(uninterrupted(LONG, run.path.parent), long_reference)


def test_a_killed_write_leaves_no_temporary_file_for_ever(tmp_path: Path) -> None:
    run = uninterrupted(replace(SMALL, epochs=1), tmp_path)
    left = run.path / LAST / ".000001-000000000.safetensors.123.tmp"
    left.write_bytes(b"half a checkpoint")
    with run.lock():
        assert not left.exists()


# ---------------------------------------------------------------------- asked to stop


def test_ctrl_c_saves_and_the_same_command_continues(
    long_reference: RunDir, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config.json"
    config.write_text(to_json(LONG))
    run = RunDir(tmp_path / "runs" / LONG.run_name)
    process = start(command(config, run.path.parent))
    wait_for(lambda: len(run.records()) >= 2, process)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate()
    assert process.returncode == 130
    assert "run the same command again to continue" in errors
    assert "Traceback" not in errors
    main(command(config, run.path.parent)[2:])
    assert "continues in epoch" in capsys.readouterr().out
    assert_same_run(run, long_reference)


def test_sigterm_saves_and_the_same_run_continues(long_reference: RunDir, tmp_path: Path) -> None:
    run = RunDir(tmp_path / LONG.run_name)
    process = multiprocessing.get_context("forkserver").Process(target=Life(LONG, tmp_path))
    process.start()
    while process.is_alive() and len(run.records()) < 2:
        process.join(0.005)
    process.terminate()
    process.join()
    assert process.exitcode == 1, "the signal must end the loop, not the process"
    last = run.load(LAST)
    assert last is not None
    assert 0 < last.state["epoch"] < LONG.epochs
    assert_same_run(uninterrupted(LONG, tmp_path), long_reference)


class SignalAt(Silent):
    """Sends this process signals after a number of steps."""

    def __init__(self, steps: int, *signals: signal.Signals) -> None:
        self.left, self.signals = steps, signals

    def batch(self, position: Progress, batches: int) -> None:
        self.left -= 1
        if self.left == 0:
            for number in self.signals:
                signal.raise_signal(number)


def test_a_stop_is_saved_at_the_step_under_way(reference: RunDir, tmp_path: Path) -> None:
    place = RunOptions(runs=tmp_path)
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with pytest.raises(Interrupted, match="stopped in epoch 2 of 3; run the same command again"):
        train(SMALL, place, SignalAt(STEPS + 2, signal.SIGINT))
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
    last = RunDir(tmp_path / SMALL.run_name).load(LAST)
    assert last is not None
    assert (last.state["epoch"], last.state["batch"]) == (1, 2)
    assert_same_run(train(SMALL, place), reference)


def test_a_second_signal_stops_at_once(reference: RunDir, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(SMALL, RunOptions(runs=tmp_path), SignalAt(8, signal.SIGINT, signal.SIGINT))
    assert_same_run(train(SMALL, RunOptions(runs=tmp_path)), reference)


def test_a_stop_in_the_last_step_lets_the_run_finish_later(
    reference: RunDir, tmp_path: Path
) -> None:
    place = RunOptions(runs=tmp_path)
    with pytest.raises(Interrupted, match="stopped in epoch 3 of 3"):
        train(SMALL, place, SignalAt(3 * STEPS, signal.SIGTERM))
    assert_same_run(train(SMALL, place), reference)


# ---------------------------------------------------------------------- whatever is trained


@pytest.mark.parametrize("after", [(1,), (STEPS,), (STEPS + 1, 1, 4), (3 * STEPS,)])
def test_crashed_after_any_step(reference: RunDir, tmp_path: Path, after: tuple[int, ...]) -> None:
    assert_same_run(crash_and_resume(SMALL, tmp_path, after=after), reference)


@pytest.mark.parametrize(
    "optimizer",
    [
        OptimizerConfig(name="sgd-l1", momentum=0.9, l1=1e-4),
        OptimizerConfig(name="adam", lr=1e-3),
        OptimizerConfig(name="amsgrad", lr=1e-3),
        OptimizerConfig(name="adagrad", lr=0.01),
        OptimizerConfig(name="radam", lr=1e-3),
        OptimizerConfig(name="adabound", lr=1e-3),
        OptimizerConfig(name="adamw", lr=1e-3),
        OptimizerConfig(name="muon", lr=1e-3, momentum=0.9),
        OptimizerConfig(base="adamw", lr=1e-3),
        OptimizerConfig(base="muon", lr=1e-3, momentum=0.9),
        OptimizerConfig(momentum=0.9, tau=20.0),
        OptimizerConfig(nu=2.0, momentum=0.9, nesterov=True, c=0.5),
        OptimizerConfig(nu=2.0, lambd=1.0, momentum=0.9, coupling="momentum", size_scaled=True),
    ],
    ids=lambda o: f"{o.label}{'-nesterov' * o.nesterov}{f'-{o.coupling}' * o.size_scaled}",
)
def test_every_optimizer_resumes_exactly(optimizer: OptimizerConfig, tmp_path: Path) -> None:
    config = replace(SMALL, optimizer=optimizer)
    resumed = crash_and_resume(config, tmp_path / "resumed", after=(2, STEPS))
    assert_same_run(resumed, uninterrupted(config, tmp_path / "whole"))


ADAMW = OptimizerConfig(base="adamw", lr=3e-3, weight_decay=0.01, tau=3.0, c=0.5)
ON_ADAMW = replace(FILTERS, optimizer=ADAMW)


@pytest.mark.parametrize(
    "config",
    [
        replace(NESTED, optimizer=ADAMW),
        replace(ON_ADAMW, method=FrozenSupport(epoch=1, nu=0.5)),
        replace(
            ON_ADAMW,
            method=NestedWidths(min_density=0.25, rank_every=3, branch_at=(0.3, 0.6)),
            optimizer=replace(ADAMW, exclude=("fc",)),
        ),
    ],
    ids=["nested-weights", "frozen-support", "nested-widths"],
)
def test_methods_beside_another_base_resume_exactly(config: Config, tmp_path: Path) -> None:
    resumed = crash_and_resume(config, tmp_path / "resumed", after=(2, 9))
    assert_same_run(resumed, uninterrupted(config, tmp_path / "whole"))


def test_batchnorm_and_filters_resume_exactly(tmp_path: Path) -> None:
    config = replace(SMALL, model=ModelConfig(name="digits-net"), epochs=2)
    resumed = crash_and_resume(config, tmp_path / "resumed", after=(2, STEPS))
    assert_same_run(resumed, uninterrupted(config, tmp_path / "whole"))


def test_dropout_resumes_exactly(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The network draws from the global generator, which is part of a checkpoint."""

    def make(num_classes: int) -> nn.Module:
        return nn.Sequential(
            nn.Flatten(), nn.Linear(64, 40), nn.Dropout(0.5), nn.Linear(40, num_classes)
        )

    config = replace(SMALL, model=with_model(monkeypatch, make))
    whole = uninterrupted(config, tmp_path / "whole")
    torch.manual_seed(1)  # a new process would not be where this one is
    resumed = crash_and_resume(config, tmp_path / "resumed", after=(2, STEPS, STEPS))
    assert_same_run(resumed, whole)


def test_tied_weights_resume_exactly(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def make(num_classes: int) -> nn.Module:
        net = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
        net[3].weight = net[1].weight
        return net.append(nn.Linear(64, num_classes))

    config = replace(SMALL, model=with_model(monkeypatch, make))
    resumed = crash_and_resume(config, tmp_path / "resumed", after=(2, STEPS))
    assert_same_run(resumed, uninterrupted(config, tmp_path / "whole"))


def test_another_seed_is_another_run(reference: RunDir, tmp_path: Path) -> None:
    """The comparison of runs can fail."""
    other = uninterrupted(replace(SMALL, seed=1), tmp_path)
    with pytest.raises(AssertionError):
        assert_same_run(other, reference)


# ---------------------------------------------------------------------- running again


def test_a_finished_run_returns_at_once(tmp_path: Path) -> None:
    class Never(Silent):
        def start(self, *_: object) -> None:
            raise AssertionError("a finished run must not start")

    config = replace(SMALL, epochs=1)
    run = uninterrupted(config, tmp_path)
    assert train(config, RunOptions(runs=tmp_path), Never()).path == run.path
    assert len(run.records()) == 1


def test_no_epochs_is_a_run_too(tmp_path: Path) -> None:
    run = uninterrupted(replace(SMALL, epochs=0, keep=()), tmp_path)
    assert run.records() == []
    assert run.load(LAST) is not None


def test_a_model_whose_code_has_changed_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def make(num_classes: int, width: int = 20) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.Linear(width, num_classes))

    config = replace(SMALL, model=with_model(monkeypatch, make))
    with pytest.raises(Crash):
        train(config, RunOptions(runs=tmp_path), CrashAt(STEPS + 1))
    with_model(monkeypatch, lambda num_classes: make(num_classes, width=30))
    with pytest.raises(RunError, match=r"(?s)checkpoint-last does not fit .* move .* away"):
        train(config, RunOptions(runs=tmp_path))


def test_a_resumed_epoch_is_timed_by_the_images_it_trained(tmp_path: Path) -> None:
    run = crash_and_resume(SMALL, tmp_path, after=(2 * STEPS - 1,))  # the step before was saved
    first, second, _ = run.records("timing.jsonl")
    assert first["images"] == 1442
    assert second["images"] == 1442 - (STEPS - 2) * SMALL.batch_size

"""The path that a run leaves, and stopping when its support has settled."""

from __future__ import annotations

import signal
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from dessilbi.lab.analysis.subnetworks import open_path
from dessilbi.lab.run.config import Config, OptimizerConfig, StopConfig
from dessilbi.lab.run.directory import RunDir, RunError
from dessilbi.lab.run.files import LAST, PATH
from dessilbi.lab.run.options import RunOptions
from dessilbi.lab.training import state as training
from dessilbi.lab.training.display import Silent
from dessilbi.lab.training.loop import train
from dessilbi.lab.training.optimizers import make_optimizer
from dessilbi.optim import DessiLBI
from dessilbi.paper.optimizers import COMPETITORS
from dessilbi.path import SolutionPath
from lab_runs import (
    FILTERS,
    SMALL,
    STEPS,
    STOPPED,
    Crash,
    CrashAt,
    CrashAtWrite,
    Life,
    assert_same_run,
    contents,
    crashes,
    live,
    uninterrupted,
)

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor, nn
    from torch.optim import Optimizer

SGD = COMPETITORS["sgd-mom-wd"]


def test_entry_steps_are_those_of_brute_force(tmp_path: Path) -> None:
    """Supports looked at after every step, by another hook."""
    seen: list[dict[str, Tensor]] = []

    def watched(
        model: nn.Module, options: OptimizerConfig, shape: tuple[int, ...], **more: float
    ) -> Optimizer:
        optimizer = make_optimizer(model, options, shape, **more)
        assert isinstance(optimizer, DessiLBI)
        twins = dict(optimizer.twins())
        optimizer.register_step_post_hook(
            lambda *_: seen.append({n: optimizer.gamma(p) != 0 for n, p in twins.items()})
        )
        return optimizer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "make_optimizer", watched)
        run = uninterrupted(FILTERS, tmp_path)
    path = open_path(run)
    steps = len(seen)
    assert (path.step, path.epochs) == (steps, (0, 1, 2))
    entered = 0
    for layer in path.layers:
        found = path.entry_steps(layer.name)
        for group in range(layer.groups):
            inside = [
                bool((s[layer.name][group] if layer.exact else s[layer.name].view(-1)[group]).any())
                for s in seen
            ]
            # Elements of a Lasso layer are looked at after an epoch.
            looks = range(1, steps + 1) if layer.exact else (STEPS, 2 * STEPS)
            wanted = next((look for look in looks if inside[look - 1]), -1)
            assert int(found[group]) == wanted, (layer.name, group)
            entered += layer.exact and wanted > 0
    assert entered > 3, "the example must have filters that enter"


def test_the_path_agrees_with_the_metrics(parent: RunDir) -> None:
    path = open_path(parent)
    assert path.epochs == (0, 1, 2, 3)
    for record in parent.records():
        epoch = record["epoch"]
        assert path.density(epoch) == record["density"]
        assert path.loss(epoch) == record["train_loss"]
        for layer, density in record["densities"].items():
            assert path.density(epoch, layer) == density


@pytest.mark.parametrize(
    ("config", "numbers"),
    [(SMALL, (12, 25, 77)), (FILTERS, (43, 58, 84))],
    ids=["lasso", "filters"],
)
def test_the_path_of_an_interrupted_run_is_the_same_file(
    request: pytest.FixtureRequest, tmp_path: Path, config: Config, numbers: tuple[int, ...]
) -> None:
    """Killed between path and checkpoint too: the path is then ahead and is cut."""
    reference: RunDir = request.getfixturevalue("parent" if config is SMALL else "filters")
    for crash, runs in crashes(tmp_path, numbers):
        place = RunOptions(runs=runs, save_minutes=0)
        with pytest.raises(Crash), crash:
            train(config, place)
        run = train(config, RunOptions(runs=runs))
        assert (run.path / PATH).read_bytes() == (reference.path / PATH).read_bytes()
        assert_same_run(run, reference)


@pytest.mark.parametrize(
    "optimizer", [SGD, OptimizerConfig(exclude=("*",))], ids=["sgd", "no twins"]
)
def test_a_run_without_twins_records_no_path(optimizer: OptimizerConfig, tmp_path: Path) -> None:
    config = replace(SMALL, optimizer=optimizer, epochs=2)
    run = uninterrupted(config, tmp_path / "whole")
    assert not (run.path / PATH).exists()
    with pytest.raises(RunError, match="only runs of DessiLBI record one"):
        open_path(run)
    with pytest.raises(Crash):
        train(config, RunOptions(runs=tmp_path), CrashAt(STEPS + 1))
    assert_same_run(train(config, RunOptions(runs=tmp_path)), run)


@pytest.mark.parametrize("lost", [True, False])
def test_a_run_whose_path_was_lost_is_a_clear_error(tmp_path: Path, lost: bool) -> None:
    with pytest.raises(Crash):
        train(SMALL, RunOptions(runs=tmp_path), CrashAt(STEPS + 1))
    path = tmp_path / SMALL.run_name / PATH
    path.unlink() if lost else path.write_bytes(b"not a path")
    with pytest.raises(RunError, match=r"cannot continue the path of .*move the folder away"):
        train(SMALL, RunOptions(runs=tmp_path))


# ---------------------------------------------------------------------- stopping


def test_a_run_stops_when_its_support_has_settled(stopped: RunDir, tmp_path: Path) -> None:
    path, stop = open_path(stopped), STOPPED.stop
    epochs = len(stopped.records())
    assert epochs == path.epochs[-1] == path.stable_epoch(stop.window, stop.tolerance)
    assert stop.window < epochs < STOPPED.epochs
    last = stopped.load(LAST)
    assert last is not None
    assert (last.state["epoch"], last.state["settled"]) == (epochs, True)

    # Without the rule the same run goes on, and so far it was the same.
    longer = uninterrupted(replace(STOPPED, stop=StopConfig(), epochs=epochs + 1), tmp_path)
    assert longer.records()[:-1] == stopped.records()
    assert open_path(longer).stable_epoch(stop.window, stop.tolerance) == epochs


def test_a_settled_run_is_done(stopped: RunDir) -> None:
    class Never(Silent):
        def start(self, *_: object) -> None:
            raise AssertionError("a settled run must not start")

    before = contents(stopped)
    train(STOPPED, RunOptions(runs=stopped.path.parent), Never())
    assert contents(stopped) == before


def test_a_support_that_never_settles_runs_to_the_end(tmp_path: Path) -> None:
    run = uninterrupted(replace(SMALL, stop=StopConfig(when_stable=True)), tmp_path)
    assert len(run.records()) == SMALL.epochs
    last = run.load(LAST)
    assert last is not None
    assert last.state["settled"] is False


def test_an_interrupted_run_stops_at_the_same_epoch(stopped: RunDir, tmp_path: Path) -> None:
    epochs = len(stopped.records())
    for steps in (2, STEPS, STEPS * (epochs - 2)):  # the last life ends in the last epoch
        with pytest.raises(Crash):
            train(STOPPED, RunOptions(runs=tmp_path, save_minutes=0), CrashAt(steps))
    assert_same_run(train(STOPPED, RunOptions(runs=tmp_path)), stopped)


def test_killed_around_its_last_write_a_run_stops_at_the_same_epoch(
    stopped: RunDir, tmp_path: Path
) -> None:
    """The epoch at which the support settles, saved in part: as path, metrics, best or last."""
    counter = CrashAtWrite(10**6)
    with counter:
        train(STOPPED, RunOptions(runs=tmp_path / "counted"))
    writes = 10**6 - counter.left
    for death in range(writes - 11, writes, 4):
        runs = tmp_path / str(death)
        with pytest.raises(Crash), CrashAtWrite(death):
            train(STOPPED, RunOptions(runs=runs))
        assert_same_run(train(STOPPED, RunOptions(runs=runs)), stopped)
    assert live(Life(STOPPED, tmp_path / "killed", writes)) == -signal.SIGKILL
    assert_same_run(train(STOPPED, RunOptions(runs=tmp_path / "killed")), stopped)


def test_the_recorded_path_can_be_read_without_the_lab(parent: RunDir) -> None:
    path = SolutionPath.load(parent.path / PATH)
    assert [layer.name for layer in path.layers] == ["fc1.weight", "fc2.weight", "fc3.weight"]
    assert path.step == 3 * STEPS

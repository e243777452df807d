"""Small runs on digits, processes that train and die on cue, and what must be equal afterwards."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
import torch

from dessilbi.lab.run.config import (
    Config,
    DataConfig,
    ModelConfig,
    OptimizerConfig,
    ScheduleConfig,
    StopConfig,
)
from dessilbi.lab.run.methods import GradualPruning, NestedWeights
from dessilbi.lab.run.options import RunOptions
from dessilbi.lab.training.display import Silent
from dessilbi.lab.training.loop import train
from dessilbi.paper.optimizers import COMPETITORS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from torch import nn

    from dessilbi.lab.run.checkpoint import Progress
    from dessilbi.lab.run.directory import RunDir

PATIENCE = 60.0
"""Seconds after which a process that gives no sign of life is a failure."""

SMALL = Config(
    name="small",
    model=ModelConfig(name="lenet-300-100"),
    optimizer=OptimizerConfig(momentum=0.9, weight_decay=1e-4, nu=2.0, lambd=0.1),
    schedule=ScheduleConfig(kind="multistep", milestones=(2,)),
    epochs=3,
    batch_size=256,
    keep=(0, 1),
)
"""A tenth of a second an epoch, six batches each; Gamma grows from the first epoch on."""
STEPS = 6
FILTERS = replace(SMALL, model=ModelConfig(name="digits-net"), epochs=2, keep=(1,))
"""With groups, whose entries are recorded to the step, and BatchNorm."""
STOPPED = replace(
    SMALL,
    schedule=ScheduleConfig(kind="multistep", milestones=(1,)),
    epochs=12,
    stop=StopConfig(when_stable=True, window=2, tolerance=0.3),
)
"""Its support settles long before the twelfth epoch."""

NESTED = replace(
    SMALL,
    name="small-nested",
    keep=(),
    method=NestedWeights(
        min_density=0.02,
        max_density=1.0,
        ramp_start=0.1,
        ramp_end=0.4,
        full_fraction=0.2,
        rank_every=3,
    ),
)
PRUNED = replace(
    SMALL,
    name="small-pruned",
    keep=(),
    optimizer=COMPETITORS["sgd-mom-wd"],
    method=GradualPruning(density=0.1, begin=0.1, end=0.6, every=2),
)

TEXT = Config(
    name="text",
    data=DataConfig(name="tiny.txt", context=8, images=30),
    model=ModelConfig(name="char-gpt-tiny"),
    optimizer=OptimizerConfig(lr=0.5, nu=2.0, lambd=0.08, momentum=0.5),
    schedule=ScheduleConfig(kind="cosine", warmup=1.0),
    epochs=3,
    batch_size=7,
)
"""Its text is made by :func:`write_text`; from the second epoch on a part of the neurons is in."""

# What depends on the clock, the machine, or whether the run was interrupted.
_FREE = ("environment.json", "timing.jsonl", ".lock")


def contents(run: RunDir) -> dict[str, bytes]:
    """Every file of a run that must not depend on how often it was interrupted."""
    files = {p for p in run.path.rglob("*") if p.is_file() and p.name not in _FREE}
    for state in run.path.glob("checkpoint-*/state.json"):
        # A kill just before the tensors of the checkpoint before are removed leaves them there.
        named = json.loads(state.read_text())["tensors"]
        files -= {p for p in state.parent.glob("*.safetensors") if p.name != named}
    return {str(p.relative_to(run.path)): p.read_bytes() for p in files}


def assert_same_run(run: RunDir, reference: RunDir) -> None:
    """Weights, V, random state, metrics and the list of files: bit for bit."""
    found, wanted = contents(run), contents(reference)
    assert found.keys() == wanted.keys(), f"files: {sorted(found.keys() ^ wanted.keys())}"
    different = [name for name in wanted if found[name] != wanted[name]]
    assert not different, f"not the same bytes: {different}"


def weights_of(run: RunDir, name: str = "checkpoint-last") -> dict[str, torch.Tensor]:
    checkpoint = run.load(name)
    assert checkpoint is not None, f"{run.path / name} is missing"
    return checkpoint.part("model")


def write_text(folder: Path) -> Path:
    """A text in which a letter follows its vowel, and any vowel the letter."""
    drawn = random.Random(0)
    words = "".join(drawn.choice(("ab", "ec", "id")) for _ in range(5000))
    (folder / TEXT.data.name).write_text(words)
    return folder


def uninterrupted(config: Config, runs: Path) -> RunDir:
    return train(config, RunOptions(runs=runs))


def with_model(monkeypatch: pytest.MonkeyPatch, make: Callable[..., nn.Module]) -> ModelConfig:
    """A configuration of the network that ``make`` builds, through an import path."""
    module = ModuleType("lab_test_model")
    module.make = make  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return ModelConfig(name=f"{module.__name__}:make")


class Crash(Exception):  # noqa: N818 - not an error, a device of the tests
    """What a test raises in the middle of a run."""


class CrashAt(Silent):
    """Crashes after a number of steps."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def batch(self, progress: Progress, batches: int) -> None:
        self.left -= 1
        if self.left == 0:
            raise Crash


def crash_and_resume(config: Config, runs: Path, *, after: tuple[int, ...]) -> RunDir:
    """Crash after each of the given numbers of steps, with every step saved; then finish."""
    place = RunOptions(runs=runs, save_minutes=0)
    for steps in after:
        with pytest.raises(Crash):
            train(config, place, CrashAt(steps))
    return train(config, RunOptions(runs=runs))


class CrashAtWrite:
    """Crashes at the n-th flush or rename, and cuts what was flushed in half."""

    def __init__(self, number: int) -> None:
        self.left = number

    def __enter__(self) -> None:
        self.patch = pytest.MonkeyPatch()
        fsync, rename = os.fsync, os.replace

        def dying_fsync(fd: int) -> None:
            if self._dies():
                os.ftruncate(fd, max(0, os.fstat(fd).st_size - 7))
                raise Crash
            fsync(fd)

        def dying_rename(source: Any, target: Any) -> None:
            if self._dies():
                raise Crash
            rename(source, target)
            if self._dies():
                raise Crash

        self.patch.setattr(os, "fsync", dying_fsync)
        self.patch.setattr(os, "replace", dying_rename)

    def _dies(self) -> bool:
        self.left -= 1
        return self.left == 0

    def __exit__(self, *_: object) -> None:
        self.patch.undo()


def crashes(runs: Path, numbers: Iterable[int]) -> Iterator[tuple[CrashAtWrite, Path]]:
    for number in numbers:
        yield CrashAtWrite(number), runs / str(number)


# ---------------------------------------------------------------------- processes that die


@dataclass(frozen=True)
class Life:
    """A process that trains until its ``death``-th touch of the disk, and then is killed."""

    config: Config
    runs: Path
    death: int | None = None
    save_minutes: float = 10.0

    def __call__(self) -> None:
        torch.set_num_threads(1)
        if self.death is not None:
            _die_at(self.death)
        train(self.config, RunOptions(runs=self.runs, save_minutes=self.save_minutes))


def live(life: Life) -> int:
    """Run a life in a process of its own; returns its exit code, -9 for one that was killed."""
    # Forked from a process that has imported everything once: a life costs no start of Python.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["dessilbi.lab.training.loop", "sklearn.datasets", "torch._dynamo"]
    )
    process = context.Process(target=life)
    process.start()
    process.join(PATIENCE)
    assert process.exitcode is not None, "the process hangs"
    return process.exitcode


def _die_at(count: int) -> None:
    """Kill this process at its ``count``-th flush, rename or removal; a flush is cut in half."""
    left = count

    def touch(before_death: Callable[[], object] = lambda: None) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            before_death()
            os.kill(os.getpid(), signal.SIGKILL)

    fsync, rename, unlink = os.fsync, os.replace, os.unlink

    def dying_fsync(fd: int) -> None:
        touch(lambda: os.ftruncate(fd, max(0, os.fstat(fd).st_size - 7)))
        fsync(fd)

    def dying_replace(source: Any, target: Any) -> None:
        touch()
        rename(source, target)
        touch()

    def dying_unlink(path: Any) -> None:
        touch()
        unlink(path)

    os.fsync, os.replace, os.unlink = dying_fsync, dying_replace, dying_unlink  # type: ignore[assignment]


# ---------------------------------------------------------------------- the real command


def command(config: Path, runs: Path, *options: str) -> list[str]:
    """Arguments after ``python`` (or ``torchrun``) that train a configuration file."""
    arguments = ["train", str(config), "--runs", str(runs), "--threads", "1", *options]
    return ["-m", "dessilbi", *arguments]


def start(arguments: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for(sign: Callable[[], object], process: subprocess.Popen[str]) -> None:
    """Until a sign is seen; a process that ends or hangs before is a failure."""
    deadline = time.monotonic() + PATIENCE
    while not sign():
        assert process.poll() is None, f"the process ended early: {process.communicate()}"
        if time.monotonic() > deadline:
            process.kill()
            raise AssertionError(f"no sign from the process: {process.communicate()}")
        time.sleep(0.005)


def changed(config: Config, **optimizer: Any) -> Config:
    """The configuration with other numbers for its optimizer."""
    return replace(config, optimizer=replace(config.optimizer, **optimizer))

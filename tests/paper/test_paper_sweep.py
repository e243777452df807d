"""Sweeps: grids, order, failures, and what a kill leaves behind."""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import sys
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pytest

from dessilbi.lab.run.config import Config, ConfigError, OptimizerConfig
from dessilbi.lab.run.directory import Busy, RunDir
from dessilbi.lab.run.options import RunOptions
from dessilbi.lab.training.errors import Interrupted
from dessilbi.paper.executors import (
    BUSY,
    DONE,
    FAILED,
    INTERRUPTED,
    Ending,
    Executor,
    JobSpec,
    Processes,
)
from dessilbi.paper.sweep import Job, Outcome, Sweep, trained
from lab_runs import SMALL, assert_same_run, uninterrupted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from multiprocessing.process import BaseProcess
    from pathlib import Path

    from dessilbi.paper.executors import Poll

QUICK = replace(SMALL, epochs=1, keep=(), schedule=type(SMALL.schedule)())
BROKEN = replace(QUICK, name="broken", optimizer=OptimizerConfig(name="sgd", lr=1e30))


@dataclass
class Script(Executor):
    """An executor that answers with written exit codes, and remembers what it was given."""

    codes: Mapping[str, list[int]] = field(default_factory=dict)
    width: int = 1
    started: list[str] = field(default_factory=list)

    def start(self, key: str, spec: JobSpec) -> Poll:
        self.started.append(key)
        left = self.codes.get(key, [])
        code = left.pop(0) if left else DONE
        return lambda: Ending(code, "no luck")


def job(key: str, *needs: str, config: Any = QUICK) -> Job:
    # Nothing is trained where the executor only plays: what is finished is never found.
    return Job(key=key, config=config, needs=needs, finished=lambda run, config: False)


def outcomes(jobs: list[Job], script: Script) -> dict[str, Outcome]:
    return Sweep(jobs, script).run()


# ---------------------------------------------------------------------- order and failures


def test_a_job_waits_for_what_it_needs_and_is_given_its_run() -> None:
    seen: list[str] = []

    def after(run: RunDir) -> Config:
        seen.append(run.path.name)
        return QUICK

    script = Script(width=4)
    found = outcomes([job("a"), job("b", "a", config=after), job("c")], script)
    assert script.started.index("a") < script.started.index("b")
    assert seen == [QUICK.run_name]
    assert {o.status for o in found.values()} == {"done"}


def test_a_failed_job_takes_those_that_need_it_along_and_the_rest_goes_on() -> None:
    script = Script({"b": [FAILED]})
    found = outcomes([job("a"), job("b"), job("c"), job("d", "b"), job("e", "d")], script)
    assert [found[key].status for key in "abcde"] == [
        "done", "failed", "done", "skipped", "skipped",
    ]  # fmt: skip
    assert script.started == ["a", "b", "c"]
    assert found["b"].message == "no luck"
    assert found["e"].message == "needs d, which failed"


def test_a_configuration_that_cannot_be_made_fails_alone() -> None:
    def impossible(run: RunDir) -> Config:
        raise ConfigError("no such mask")

    found = outcomes([job("a"), job("b", "a", config=impossible), job("c")], Script())
    assert found["b"] == Outcome("failed", message="ConfigError: no such mask")
    assert found["c"].status == "done"


def test_a_run_that_another_process_holds_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dessilbi.paper.sweep.BUSY_SECONDS", 0.01)
    script = Script({"a": [BUSY, BUSY, BUSY, DONE]})
    found = outcomes([job("a"), job("b")], script)
    assert found["a"].status == "done", "waiting is no failure"


def test_an_interrupted_run_stops_the_sweep() -> None:
    script = Script({"b": [INTERRUPTED]})
    with pytest.raises(Interrupted, match="run the same command again"):
        outcomes([job("a"), job("b"), job("c")], script)
    assert script.started == ["a", "b"]


def test_progress_is_told(tmp_path: Path) -> None:
    lines: list[str] = []

    class Slow(Script):
        """Ends when its progress has been told."""

        def start(self, key: str, spec: JobSpec) -> Poll:
            RunDir.of(spec.config, spec.options.runs).append("metrics.jsonl", {"epoch": 1})
            return lambda: Ending(DONE) if f"[0/1] running {key} 25%" in lines else None

    jobs = [job("a", config=replace(QUICK, epochs=4))]
    Sweep(jobs, Slow(), RunOptions(runs=tmp_path), log=lines.append, report_seconds=0.0).run()
    assert lines[0] == "started a"
    assert lines[-1].startswith("[1/1] done a in 0:00:0")


# ---------------------------------------------------------------------- real runs


def test_what_is_finished_is_found_and_not_run_again(tmp_path: Path) -> None:
    optimizers = [replace(QUICK.optimizer, kappa=kappa) for kappa in (1.0, 2.0)]
    jobs = [Job(key=str(o.kappa), config=replace(QUICK, optimizer=o)) for o in optimizers]
    options = RunOptions(runs=tmp_path)
    first = Sweep(jobs, Executor(), options, threads=1).run()
    assert all(o.status == "done" and o.seconds is not None for o in first.values())
    script = Script()
    again = Sweep(jobs, script, options).run()
    assert script.started == []
    assert {o.message for o in again.values()} == {"was finished before"}
    assert [o.run for o in again.values()] == [o.run for o in first.values()]


def test_what_was_finished_is_settled_before_anything_is_started() -> None:
    def finished(run: RunDir, config: Config) -> bool:
        return config.seed == 2

    lines: list[str] = []
    jobs = [
        Job(key=key, config=replace(QUICK, seed=seed), finished=finished)
        for seed, key in enumerate("abc")
    ]
    Sweep(jobs, Script(), log=lines.append).run()
    assert lines[:2] == ["[1/3] done c: was finished before", "started a"]


def test_a_held_run_is_busy(tmp_path: Path) -> None:
    run = RunDir.of(QUICK, tmp_path)
    with run.lock():
        code, why = JobSpec(QUICK, RunOptions(runs=tmp_path))()
    assert code == BUSY
    assert "in use" in why


def test_a_run_that_cannot_begin_leaves_nothing(tmp_path: Path) -> None:
    refused = replace(QUICK, optimizer=replace(QUICK.optimizer, lr=-1.0))
    code, why = JobSpec(refused, RunOptions(runs=tmp_path / "runs"))()
    assert code == FAILED
    assert "lr must be" in why
    assert list((tmp_path / "runs").iterdir()) == []


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        # Refused as it would be without permission, to root as well.
        (lambda run, patch: (run.path / ".lock").mkdir(), "cannot write {run}"),
        (
            lambda run, patch: patch.setattr("dessilbi.lab.run.directory.fcntl.flock", no_locks),
            "cannot be locked against other processes: No locks available; choose",
        ),
    ],
)
def test_a_run_that_cannot_be_locked_fails_and_is_not_waited_for(
    spoil: Callable[..., None], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunDir.of(QUICK, tmp_path)
    spoil(run, monkeypatch)
    code, words = JobSpec(QUICK, RunOptions(runs=tmp_path))()
    assert code == FAILED
    assert why.format(run=run.path) in words


def no_locks(*_: object) -> None:
    raise OSError(errno.ENOLCK, "No locks available")


def held_elsewhere(run: RunDir) -> bool:
    try:
        with run.lock():
            return False
    except Busy:
        return True


def wait_until(sign: Callable[[], object], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not sign():
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.01)


LONG = replace(SMALL, name="long", epochs=40, schedule=type(SMALL.schedule)())


def forked(target: Callable[[Path], None], runs: Path) -> BaseProcess:
    """A process that has imported everything already."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["dessilbi.lab.training.loop", "sklearn.datasets", "torch._dynamo"]
    )
    process = context.Process(target=target, args=(runs,))
    process.start()
    return process


def epochs_of(run: RunDir) -> int:
    return len(run.records())


def sweep_long(runs: Path) -> None:
    """A sweep of one long run, in a process of its own."""
    sweep = Sweep(
        [Job(key="long", config=LONG)],
        Processes(1, runs / "logs"),
        RunOptions(runs=runs),
        threads=1,
    )
    try:
        sweep.run()
    except Interrupted:
        sys.exit(130)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_stopped_sweep_stops_its_runs_and_goes_on_later(
    tmp_path: Path, number: signal.Signals
) -> None:
    process = forked(sweep_long, tmp_path)
    run = RunDir(tmp_path / LONG.run_name)
    wait_until(lambda: epochs_of(run) >= 2)
    assert process.pid is not None
    os.kill(process.pid, number)
    process.join(60)
    assert process.exitcode == (130 if number == signal.SIGTERM else -signal.SIGKILL)
    # The run itself ends, saved, soon after the sweep is gone.
    log = tmp_path / "logs" / f"long-{LONG.hash}.log"
    wait_until(lambda: "stopped" in log.read_text())
    wait_until(lambda: not held_elsewhere(run))
    assert not trained(run, LONG)
    found = Sweep([Job(key="long", config=LONG)], Executor(), RunOptions(runs=tmp_path)).run()
    assert found["long"].status == "done"
    assert_same_run(run, uninterrupted(LONG, tmp_path / "reference"))


def test_processes_run_side_by_side_and_report_a_failure_with_their_log(tmp_path: Path) -> None:
    jobs = [Job(key="bad/one", config=BROKEN), Job(key="good", config=QUICK)]
    executor = Processes(2, tmp_path / "logs")
    found = Sweep(jobs, executor, RunOptions(runs=tmp_path), threads=1).run()
    assert found["good"].status == "done"
    assert found["bad/one"].status == "failed"
    assert "not finite" in found["bad/one"].message
    assert f"bad_one-{BROKEN.hash}.log" in found["bad/one"].message

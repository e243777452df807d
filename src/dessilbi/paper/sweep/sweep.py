"""Many runs, several at a time, resumable; none stops the others.

A job is a configuration, or a function that makes one from the runs it needs (a subnetwork of a
trained network, for example). What is finished is found again by its run directory, so that a sweep
that was stopped or killed goes on where it was.
"""

from __future__ import annotations

import json
import time
from collections import deque
from concurrent.futures import FIRST_COMPLETED, wait
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from dessilbi.lab.run.config import Config
from dessilbi.lab.run.directory import RunDir
from dessilbi.lab.run.files import LAST, STATE
from dessilbi.lab.run.options import RunOptions
from dessilbi.lab.training.errors import Interrupted
from dessilbi.lab.training.loop import train
from dessilbi.lab.training.stop_request import StopRequest
from dessilbi.paper.sweep.work import BUSY, DONE, INTERRUPTED, PREEMPTED, JobSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from concurrent.futures import Future

    from dessilbi.paper.sweep.executors import Executor
    from dessilbi.paper.sweep.work import Ending, Work

Label = str | int | float
ATTEMPTS = 2
BUSY_SECONDS = 2.0
MOMENT = 0.05
FINISHED = "was finished before"
STOPPED = "stopped; run the same command again to continue"


def trained(run: RunDir, config: Config) -> bool:
    """Whether a run has reached its last epoch, or stopped because it had settled."""
    file = run.path / LAST / STATE
    try:
        state = json.loads(file.read_text())
        return bool(state["epoch"] >= config.epochs or state.get("settled"))
    except (OSError, ValueError, KeyError):
        return False


@dataclass(frozen=True, kw_only=True)
class Job:
    """One run of a sweep."""

    key: str
    """Unique in the sweep."""
    config: Config | Callable[[Mapping[str, RunDir]], Config]
    """The configuration, or how it is made when the runs in ``needs`` are there."""
    needs: tuple[str, ...] = ()
    """Keys of jobs that must be done before."""
    labels: Mapping[str, Label] = field(default_factory=dict)
    """What it is in the grid, for tables."""
    work: Work = train
    finished: Callable[[RunDir, Config], bool] = trained
    epochs: int | None = None
    """How long it takes, relative to others; needed only where the configuration is made later."""

    @property
    def weight(self) -> float:
        """Work of the job, for the time that is left."""
        if isinstance(self.config, Config):
            return float(max(self.config.epochs, 1))
        return float(self.epochs or 1)


Status = Literal["done", "failed", "skipped"]


@dataclass(frozen=True)
class Outcome:
    """How a job ended."""

    status: Status
    run: RunDir | None = None
    seconds: float | None = None
    """Of this sweep; ``None`` if the run was finished before."""
    message: str = ""
    attempts: int = 0


class Sweep:
    """Runs jobs, several at a time.

    A job that fails is tried once more when the others have been started; if it fails again, it is
    reported and the jobs that need it are skipped. The others go on.

    Args:
        jobs: what to run; a job comes after those that it needs.
        executor: where.
        options: folders and device of the runs.
        threads: threads of each run.
        log: is given a line for whatever happens.
        ended: is called after each job, with its outcome.
        report_seconds: how often a line tells the progress while nothing happens.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        executor: Executor,
        options: RunOptions | None = None,
        *,
        threads: int | None = None,
        log: Callable[[str], None] = lambda line: None,
        ended: Callable[[Job, Outcome], None] = lambda job, outcome: None,
        report_seconds: float = 60.0,
    ) -> None:
        self._check(jobs)
        self.jobs, self.executor, self.options = jobs, executor, options or RunOptions()
        self.threads, self.log, self.ended = threads, log, ended
        self.report_seconds = report_seconds
        self.outcomes: dict[str, Outcome] = {}
        self._waiting = deque(jobs)
        self._running: dict[Future[Ending], _Running] = {}
        self._attempts: dict[str, int] = {}
        self._busy: dict[str, float] = {}
        self._began = self._reported = time.monotonic()
        self._work_here = 0.0

    @staticmethod
    def _check(jobs: Sequence[Job]) -> None:
        seen: set[str] = set()
        for job in jobs:
            if job.key in seen:
                raise ValueError(f"key {job.key!r} is used by two jobs; keys must be unique")
            for need in job.needs:
                if need not in seen:
                    raise ValueError(f"job {job.key!r} needs {need!r}, which must come before it")
            seen.add(job.key)

    def run(self) -> dict[str, Outcome]:
        """Until every job is done, has failed, or cannot run; returns the outcomes by key.

        Raises:
            Interrupted: stopped by Ctrl-C or SIGTERM; all runs are saved.
        """
        with StopRequest() as stop:
            try:
                self._settle_finished()
                while self._waiting or self._running:
                    if stop.made:
                        raise Interrupted(STOPPED)
                    if not self._start_ready() and not self._collect():
                        self._report()
            finally:
                self.executor.stop()
        return self.outcomes

    # ------------------------------------------------------------------ starting

    def _settle_finished(self) -> None:
        """Settle what was finished before, wherever it stands in the queue.

        Its results are then there while the others run, and no time is set aside for it. Where the
        configuration is yet to be made it waits for its turn.
        """
        for job in self.jobs:
            if isinstance(job.config, Config):
                run = RunDir(self.options.runs / job.config.run_name)
                if job.finished(run, job.config):
                    self._waiting.remove(job)
                    self._settle(job, Outcome("done", run, message=FINISHED))
        self._began = time.monotonic()

    def _start_ready(self) -> bool:
        """Start what can be started, or settle it if it is finished already."""
        for _ in range(len(self._waiting)):
            if len(self._running) >= self.executor.width:
                return False
            job = self._waiting.popleft()
            missing = [need for need in job.needs if need not in self.outcomes]
            lost = [n for n in job.needs if n not in missing and self.outcomes[n].status != "done"]
            if lost:
                self._settle(job, Outcome("skipped", message=f"needs {lost[0]}, which failed"))
                return True
            if missing or self._busy.get(job.key, 0) > time.monotonic():
                self._waiting.append(job)
                continue
            self._start(job)
            return True
        return False

    def _start(self, job: Job) -> None:
        before, first = time.monotonic(), job.key not in self._attempts
        self._attempts[job.key] = self._attempts.get(job.key, 0) + 1
        try:
            config = job.config
            if not isinstance(config, Config):
                runs = {need: self.outcomes[need].run for need in job.needs}
                config = config({key: run for key, run in runs.items() if run is not None})
            run = RunDir(self.options.runs / config.run_name)
            if job.finished(run, config):
                self._settle(job, Outcome("done", run, message=FINISHED))
                return
            spec = JobSpec(config, self.options, job.work, self.threads)
            if first:
                self.log(f"started {job.key}")
            share = _share(run, config)
            future = self.executor.start(job.key, spec)
        except Exception as error:  # a subnetwork that cannot be made must not stop the sweep
            self._failed(job, f"{type(error).__name__}: {error}")
            return
        self._running[future] = _Running(job, config, run, before, share)

    # ------------------------------------------------------------------ ending

    def _collect(self) -> bool:
        """Look which runs have ended, after a moment if none has."""
        if not self._running:  # the others wait for a run of another process
            time.sleep(MOMENT)
        for future in wait(self._running, MOMENT, FIRST_COMPLETED).done:
            one, (code, words) = self._running.pop(future), future.result()
            key = one.job.key
            if code == DONE:
                self._work_here += one.job.weight * (1 - one.share)
                seconds = time.monotonic() - one.began
                attempts = self._attempts[key]
                self._settle(one.job, Outcome("done", one.run, seconds, attempts=attempts))
            elif code == INTERRUPTED:
                raise Interrupted(STOPPED)
            elif code == BUSY:
                if key not in self._busy:
                    self.log(f"{key}: another process works on it; will look again")
                self._busy[key] = time.monotonic() + BUSY_SECONDS
                self._queue_again(one.job)
            elif code == PREEMPTED:
                self.log(f"{key}: was asked to end, and is saved; queued again")
                self._queue_again(one.job)
            else:
                self._failed(one.job, words)
            return True
        return False

    def _queue_again(self, job: Job) -> None:
        """For later, as if it had not been started: it did not fail."""
        self._attempts[job.key] -= 1
        self._waiting.append(job)

    def _failed(self, job: Job, why: str) -> None:
        attempts = self._attempts[job.key]
        if attempts < ATTEMPTS:
            self.log(f"FAILED {job.key}: {why}; will try once more")
            self._waiting.append(job)
            return
        self._settle(job, Outcome("failed", message=why, attempts=attempts))

    def _settle(self, job: Job, outcome: Outcome) -> None:
        self.outcomes[job.key] = outcome
        took = "" if outcome.seconds is None else f" in {clock(outcome.seconds)}"
        word = outcome.status if outcome.status == "done" else outcome.status.upper()
        said = f": {outcome.message}" if outcome.message else ""
        self.log(f"[{len(self.outcomes)}/{len(self.jobs)}] {word} {job.key}{took}{said}")
        self.ended(job, outcome)

    # ------------------------------------------------------------------ progress

    def _report(self) -> None:
        now = time.monotonic()
        if now - self._reported < self.report_seconds:
            return
        self._reported = now
        under_way = ", ".join(
            f"{one.job.key} {_share(one.run, one.config):.0%}" for one in self._running.values()
        )
        left = self.seconds_left()
        guess = "" if left is None else f"; about {clock(left)} left"
        self.log(f"[{len(self.outcomes)}/{len(self.jobs)}] running: {under_way}{guess}")

    def seconds_left(self) -> float | None:
        """A guess from the work done so far in this sweep; ``None`` before there is any."""
        here, left = self._work_here, sum(job.weight for job in self._waiting)
        for one in self._running.values():
            share = _share(one.run, one.config)
            here += one.job.weight * (share - one.share)
            left += one.job.weight * (1 - share)
        return (time.monotonic() - self._began) * left / here if here > 0 else None


@dataclass(frozen=True)
class _Running:
    job: Job
    config: Config
    run: RunDir
    began: float
    share: float
    """What was done of it before this attempt."""


def _share(run: RunDir, config: Config) -> float:
    """How much of a run is done, by the epochs in its record."""
    records = run.records()
    return min(records[-1]["epoch"] / max(config.epochs, 1), 1.0) if records else 0.0


def clock(seconds: float) -> str:
    """Seconds as h:mm:ss."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"

"""Many runs, several at a time, resumable; none stops the others.

A job is a configuration, or a function that makes one from the runs it needs (a subnetwork of a
trained network, for example). What is finished is found again by its run directory, so that a sweep
that was stopped or killed goes on where it was.
"""

from __future__ import annotations

import json
import time
from collections import deque
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Literal, NamedTuple

from dessilbi.lab.run.config import Config
from dessilbi.lab.run.directory import RunDir
from dessilbi.lab.run.files import LAST, STATE
from dessilbi.lab.run.options import RunOptions
from dessilbi.lab.training.errors import Interrupted
from dessilbi.lab.training.loop import train
from dessilbi.lab.training.stop_request import StopRequest
from dessilbi.paper.executors import BUSY, DONE, INTERRUPTED, JobSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from dessilbi.paper.executors import Executor, Poll, Work

Label = str | int | float
BUSY_SECONDS = 2.0
MOMENT = 0.05
FINISHED = "was finished before"
STOPPED = "stopped; run the same command again to continue"


def trained(run: RunDir, config: Config) -> bool:
    """Whether a run has reached its last epoch, or stopped because it had settled."""
    try:
        state = json.loads((run.path / LAST / STATE).read_text())
        return bool(state["epoch"] >= config.epochs or state.get("settled"))
    except (OSError, ValueError, KeyError):
        return False


@dataclass(frozen=True, kw_only=True)
class Job:
    """One run of a sweep."""

    key: str
    """Unique in the sweep."""
    config: Config | Callable[..., Config]
    """The configuration, or how it is made of the runs in ``needs``, given in their order."""
    needs: tuple[str, ...] = ()
    """Keys of jobs that must be done before."""
    labels: Mapping[str, Label] = field(default_factory=dict)
    """What it is in the grid, for tables."""
    work: Work = train
    finished: Callable[[RunDir, Config], bool] = trained


@dataclass(frozen=True)
class Outcome:
    """How a job ended."""

    status: Literal["done", "failed", "skipped"]
    run: RunDir | None = None
    """If it is done."""
    seconds: float | None = None
    """Of this sweep; ``None`` if the run was finished before."""
    message: str = ""


class _Running(NamedTuple):
    job: Job
    config: Config
    run: RunDir
    poll: Poll
    began: float


class Sweep:
    """Runs jobs, several at a time.

    A job that fails is reported, and the jobs that need it are skipped. The others go on, and the
    next sweep tries it again.

    ``log`` is given a line for whatever happens, every ``report_seconds`` one with the progress;
    ``ended`` is called after each job, with its outcome.
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
        self.jobs, self.executor, self.options = jobs, executor, options or RunOptions()
        self.threads, self.log, self.ended = threads, log, ended
        self.report_seconds = report_seconds
        self.outcomes: dict[str, Outcome] = {}
        # What was finished before comes first: its results are then there while the others run.
        self._waiting = deque(sorted(jobs, key=lambda job: not self._finished(job, job.config)))
        self._running: list[_Running] = []
        self._held: set[str] = set()

    def run(self) -> dict[str, Outcome]:
        """Until every job is done, has failed, or cannot run; returns the outcomes by key.

        Raises:
            Interrupted: stopped by Ctrl-C or SIGTERM; all runs are saved.
        """
        reported = time.monotonic()
        with StopRequest() as stop:
            try:
                while self._waiting or self._running:
                    if stop.made:
                        raise Interrupted(STOPPED)
                    if self._start_one() or self._collect_one():
                        continue
                    if self._running and time.monotonic() - reported >= self.report_seconds:
                        reported = time.monotonic()
                        self._log("running " + ", ".join(map(_progress, self._running)))
                    time.sleep(MOMENT)
            finally:
                self.executor.stop()
        return self.outcomes

    def _finished(self, job: Job, config: Config | Callable[..., Config]) -> bool:
        """Whether it is done; of a configuration that is yet to be made that is not known."""
        if not isinstance(config, Config):
            return False
        return job.finished(RunDir(self.options.runs / config.run_name), config)

    def _start_one(self) -> bool:
        """Start what can be started, or settle it if it is finished or cannot be."""
        if len(self._running) >= self.executor.width:
            return False
        for job in self._waiting:
            needs = {key: self.outcomes.get(key) for key in job.needs}
            lost = [key for key, outcome in needs.items() if outcome and outcome.run is None]
            ready = None not in needs.values()
            if ready or lost:
                self._waiting.remove(job)
                if lost:
                    self._settle(job, Outcome("skipped", message=f"needs {lost[0]}, which failed"))
                else:
                    self._start(job)
                return True
        return False

    def _start(self, job: Job) -> None:
        began = time.monotonic()
        try:
            config = job.config
            if not isinstance(config, Config):
                config = config(*(self.outcomes[need].run for need in job.needs))
            run = RunDir(self.options.runs / config.run_name)
            if self._finished(job, config):
                self._settle(job, Outcome("done", run, message=FINISHED))
                return
            if job.key not in self._held:
                self.log(f"started {job.key}")
            spec = JobSpec(config, self.options, job.work, self.threads)
            poll = self.executor.start(job.key, spec)
        except Exception as error:  # a subnetwork that cannot be made must not stop the sweep
            self._settle(job, Outcome("failed", message=f"{type(error).__name__}: {error}"))
            return
        self._running.append(_Running(job, config, run, poll, began))

    def _collect_one(self) -> bool:
        """Settle a run that has ended, or queue it again."""
        for one in self._running:
            ending = one.poll()
            if ending is None:
                continue
            self._running.remove(one)
            key = one.job.key
            if ending.code == DONE:
                self._settle(one.job, Outcome("done", one.run, time.monotonic() - one.began))
            elif ending.code == INTERRUPTED:
                raise Interrupted(STOPPED)
            elif ending.code == BUSY:  # for later, as if it had not been started
                self._waiting.append(one.job)
                if key not in self._held:
                    self.log(f"{key}: another process works on it; will look again")
                self._held.add(key)
                time.sleep(BUSY_SECONDS)
            else:
                self._settle(one.job, Outcome("failed", message=ending.words))
            return True
        return False

    def _settle(self, job: Job, outcome: Outcome) -> None:
        self.outcomes[job.key] = outcome
        took = ""
        if outcome.seconds is not None:
            took = f" in {timedelta(seconds=round(outcome.seconds))}"
        word = outcome.status if outcome.status == "done" else outcome.status.upper()
        said = f": {outcome.message}" if outcome.message else ""
        self._log(f"{word} {job.key}{took}{said}")
        self.ended(job, outcome)

    def _log(self, words: str) -> None:
        self.log(f"[{len(self.outcomes)}/{len(self.jobs)}] {words}")


def _progress(one: _Running) -> str:
    """How much of a run is done, by the epochs in its record."""
    records = one.run.records()
    share = records[-1]["epoch"] / max(one.config.epochs, 1) if records else 0.0
    return f"{one.job.key} {min(share, 1.0):.0%}"

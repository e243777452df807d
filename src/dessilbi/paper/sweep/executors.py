"""Where the runs of a sweep happen: in this process, in processes of this machine, on a cluster."""

from __future__ import annotations

import contextlib
import os
import pickle
import re
import subprocess
import sys
import threading
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from dessilbi.lab.run.config import ConfigError
from dessilbi.paper.sweep.work import (
    FAILED,
    INTERRUPTED,
    PREEMPTED,
    Ending,
    JobSpec,
    execute,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

PATIENCE = 120.0
"""Seconds that a run has to save itself when it is asked to stop."""


class Executor(Protocol):
    """Starts runs."""

    width: int
    """How many may run at a time."""

    def start(self, key: str, spec: JobSpec) -> Future[Ending]:
        """Start a run."""

    def stop(self) -> None:
        """Ask what runs for a clean end, and wait until it is saved."""


@dataclass
class InProcess:
    """One run after the other, here: for runs of seconds, which a new Python would double."""

    width: int = 1

    def start(self, key: str, spec: JobSpec) -> Future[Ending]:
        """Run to the end."""
        return ended(execute(spec))

    def stop(self) -> None:
        """Nothing runs."""


def ended(ending: Ending) -> Future[Ending]:
    """A run that is over."""
    future: Future[Ending] = Future()
    future.set_result(ending)
    return future


def _followed(wait: Callable[[], Ending]) -> Future[Ending]:
    """What a run under way will have answered."""
    future: Future[Ending] = Future()

    def follow() -> None:
        try:
            future.set_result(wait())
        except BaseException as error:  # it belongs to who asks for the result
            future.set_exception(error)

    threading.Thread(target=follow, daemon=True).start()
    return future


# ---------------------------------------------------------------------- this machine


@dataclass
class Processes:
    """A process for each run, ``width`` at a time, each with a log file."""

    width: int
    logs: Path
    _alive: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, key: str, spec: JobSpec) -> Future[Ending]:
        """Start a process; it ends, saved, if this one dies."""
        # Keys are unique in a sweep only, and another one may share the folder.
        name = re.sub(r"[^\w.=+-]+", "_", key)
        log = self.logs / f"{name}-{spec.config.hash}.log"
        self.logs.mkdir(parents=True, exist_ok=True)
        threads = {} if spec.threads is None else {"OMP_NUM_THREADS": str(spec.threads)}
        with log.open("ab") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "dessilbi.paper.sweep.work"],
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=subprocess.STDOUT,
                # Ctrl-C is for the sweep, which then asks its runs to stop, once.
                start_new_session=True,
                env=os.environ | threads,
            )
        self._alive.append(process)
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it died at once: its exit code says so
            process.stdin.write(pickle.dumps(spec))
            process.stdin.flush()
        return _followed(lambda: self._wait(process, log))

    def _wait(self, process: subprocess.Popen[bytes], log: Path) -> Ending:
        code = process.wait()
        self._alive.remove(process)
        assert process.stdin is not None
        process.stdin.close()
        killed = f"killed by signal {-code}; " if code < 0 else ""
        lines = log.read_text(errors="replace").strip().splitlines()
        return Ending(code, f"{killed}{lines[-1] if lines else 'no output'} (log: {log})")

    def stop(self) -> None:
        """Ask for a clean end, and kill what is not saved in time."""
        alive = list(self._alive)
        for process in alive:
            process.terminate()
        for process in alive:
            try:
                process.wait(PATIENCE)
            except (subprocess.TimeoutExpired, KeyboardInterrupt):
                process.kill()
                process.wait()


# ---------------------------------------------------------------------- a cluster

LIMITS = {"timeout_min", "slurm_timeout_min", "slurm_time"}
"""Names under which submitit takes a job's time limit."""


@dataclass
class Cluster:
    """Jobs through submitit: SLURM, or its local executor.

    Args:
        width: jobs at a time.
        folder: where submitit keeps its files; every node must see it, and the runs.
        kind: ``slurm`` or ``local``.
        parameters: for submitit, such as ``slurm_partition``, ``timeout_min``, which SLURM needs,
            or ``slurm_max_num_timeout``: how often a job that ran out of time is queued again.

    Raises:
        ConfigError: there is no submitit or no such cluster here, or a parameter is wrong.
    """

    width: int
    folder: Path
    kind: str = "slurm"
    parameters: Mapping[str, Any] = field(default_factory=dict)
    _submitted: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        try:
            import submitit
        except ModuleNotFoundError as error:
            raise ConfigError(
                "runs on a cluster need the package submitit: pip install 'dessilbi[cluster]'"
            ) from error
        if self.kind == "slurm" and not LIMITS & set(self.parameters):
            raise ConfigError(
                "a time limit is needed, as --slurm timeout_min=600: "
                "without one submitit ends every job after 5 minutes"
            )
        # The one setting that submitit takes when the executor is made, and not later.
        retries = {n: v for n, v in self.parameters.items() if n.endswith("_max_num_timeout")}
        others = {n: v for n, v in self.parameters.items() if n not in retries}
        try:
            self._executor = submitit.AutoExecutor(self.folder, self.kind, **retries)
            self._executor.update_parameters(**{"name": "dessilbi", **others})
        except (AssertionError, NameError, RuntimeError) as error:  # what submitit has for mistakes
            reason = str(error).splitlines()[0]
            raise ConfigError(f"submitit cannot run jobs on {self.kind!r}: {reason}") from error

    def start(self, key: str, spec: JobSpec) -> Future[Ending]:
        """Submit a job."""
        job = self._executor.submit(ClusterWork(spec))
        self._submitted.append(job)
        return _followed(lambda: ending_of(job))

    def stop(self) -> None:
        """Cancel; jobs end when the scheduler gets to them, and keep their last checkpoint."""
        for job in self._submitted:
            if not job.done():
                job.cancel()


class ClusterWork:
    """What a job of the cluster does; a preempted one is queued again and goes on."""

    def __init__(self, spec: JobSpec) -> None:
        self.spec = spec

    def __call__(self) -> Ending:
        """Execute the specification."""
        from dessilbi.lab.training.terminal import TerminalDisplay

        with TerminalDisplay() as display:
            return execute(self.spec, display)

    def checkpoint(self, *arguments: Any, **options: Any) -> Any:
        """Asked by submitit before the time limit: the same again, which resumes the run."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, *arguments, **options)


def ending_of(job: Any) -> Ending:
    """How a submitted job ended, as soon as it has."""
    where = f"(job {job.job_id}, log: {job.paths.stderr})"
    try:
        code, words = job.result()
    except Exception as error:  # submitit has many: the job died, was cancelled, never began
        words = f"{type(error).__name__}: {error}".strip().splitlines()[-1]
        return Ending(FAILED, f"{words} {where}")
    # One job was told to end, by the cluster or by its user, not the sweep.
    return Ending(PREEMPTED if code == INTERRUPTED else code, f"{words} {where}")

"""Where the runs of a sweep happen: in this process, in processes of this machine, on a cluster."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from dessilbi._disk import write_whole
from dessilbi.lab.run.config import ConfigError
from dessilbi.paper.sweep.work import FAILED, INTERRUPTED, PREEMPTED, Order, carry_out

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

PATIENCE = 120.0
"""Seconds that a run has to save itself when it is asked to stop."""


class Handle(Protocol):
    """A run under way."""

    def code(self) -> int | None:
        """Exit code, ``None`` while it runs."""

    def why(self) -> str:
        """The last words of a run that failed."""

    def ask_to_stop(self) -> None:
        """Ask for a clean end: what is done so far gets saved."""

    def wait(self) -> None:
        """Until it has ended, and not longer than it may take to save."""


class Executor(Protocol):
    """Starts runs."""

    width: int
    """How many may run at a time."""

    def start(self, key: str, order: Order) -> Handle:
        """Start a run."""


# ---------------------------------------------------------------------- this process


@dataclass(frozen=True)
class Ended:
    """A run that is over."""

    exit_code: int
    words: str = ""

    def code(self) -> int | None:
        """See :class:`Handle`."""
        return self.exit_code

    def why(self) -> str:
        """See :class:`Handle`."""
        return self.words

    def ask_to_stop(self) -> None:
        """Nothing is left to stop."""

    def wait(self) -> None:
        """Nothing is left to wait for."""


@dataclass
class InProcess:
    """One run after the other, here: for runs of seconds, which a new Python would double."""

    width: int = 1

    def start(self, key: str, order: Order) -> Handle:
        """Run to the end."""
        return Ended(*carry_out(order))


# ---------------------------------------------------------------------- this machine


@dataclass
class Processes:
    """A process for each run, ``width`` at a time, each with a log file."""

    width: int
    logs: Path

    def start(self, key: str, order: Order) -> Handle:
        """Start a process; it ends, saved, if this one dies."""
        # Keys are unique in a sweep only, and another one may share the folder.
        name = f"{file_name(key)}-{order.config.hash}"
        self.logs.mkdir(parents=True, exist_ok=True)
        paper, log = self.logs / f"{name}.json", self.logs / f"{name}.log"
        write_whole(paper, order.to_json().encode())
        threads = {} if order.threads is None else {"OMP_NUM_THREADS": str(order.threads)}
        with log.open("ab") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "dessilbi.paper.sweep.work", str(paper)],
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=subprocess.STDOUT,
                # Ctrl-C is for the sweep, which then asks its runs to stop, once.
                start_new_session=True,
                env=os.environ | threads,
            )
        return _Process(process, log)


@dataclass
class _Process:
    process: subprocess.Popen[bytes]
    log: Path

    def code(self) -> int | None:
        code = self.process.poll()
        if code is not None and self.process.stdin is not None:
            self.process.stdin.close()
        return code

    def why(self) -> str:
        code = self.process.poll()
        killed = f"killed by signal {-code}; " if code is not None and code < 0 else ""
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return f"{killed}{lines[-1] if lines else 'no output'} (log: {self.log})"

    def ask_to_stop(self) -> None:
        self.process.terminate()

    def wait(self) -> None:
        try:
            self.process.wait(PATIENCE)
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            self.process.kill()
            self.process.wait()
        self.code()


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

    def start(self, key: str, order: Order) -> Handle:
        """Submit a job."""
        return _ClusterJob(self._executor.submit(ClusterWork(order.to_json())))


class ClusterWork:
    """What a job of the cluster does; a preempted one is queued again and goes on."""

    def __init__(self, order: str) -> None:
        self.order = order

    def __call__(self) -> tuple[int, str]:
        """Carry out the order."""
        from dessilbi.lab.training.terminal import TerminalDisplay

        with TerminalDisplay() as display:
            return carry_out(Order.from_json(self.order), display)

    def checkpoint(self, *arguments: Any, **options: Any) -> Any:
        """Asked by submitit before the time limit: the same order again, which resumes the run."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, *arguments, **options)


@dataclass
class _ClusterJob:
    job: Any
    words: str = ""

    def code(self) -> int | None:
        if not self.job.done():
            return None
        try:
            code, self.words = self.job.result()
        except Exception as error:  # submitit has many: the job died, was cancelled, never began
            self.words = f"{type(error).__name__}: {error}".strip().splitlines()[-1]
            return FAILED
        # One job was told to end, by the cluster or by its user, not the sweep.
        return PREEMPTED if code == INTERRUPTED else int(code)

    def why(self) -> str:
        return f"{self.words} (job {self.job.job_id}, log: {self.job.paths.stderr})"

    def ask_to_stop(self) -> None:
        self.job.cancel()

    def wait(self) -> None:
        """A cancelled job ends when the scheduler gets to it; its last checkpoint is kept."""


def file_name(key: str) -> str:
    """A key as a file name."""
    return re.sub(r"[^\w.=+-]+", "_", key)

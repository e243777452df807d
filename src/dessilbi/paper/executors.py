"""Where the runs of a sweep happen: in this process, or in processes of this machine."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import threading
import traceback
from dataclasses import dataclass, field
from multiprocessing import get_context, parent_process
from typing import TYPE_CHECKING, Any, NamedTuple

import dessilbi.paper.baselines
import dessilbi.paper.optimizers  # noqa: F401 - lets configurations name them in any process
from dessilbi.lab.run.directory import Busy
from dessilbi.lab.training.display import Silent
from dessilbi.lab.training.errors import Interrupted
from dessilbi.lab.training.loop import train
from dessilbi.lab.training.terminal import TerminalDisplay

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.context import SpawnProcess
    from pathlib import Path

    from dessilbi.lab.run.config import Config
    from dessilbi.lab.run.options import RunOptions
    from dessilbi.lab.training.display import Display

    Work = Callable[[Config, RunOptions, Display], Any]
    """A function of a module that leaves its result in the configuration's run directory."""
    Poll = Callable[[], "Ending | None"]
    """How a run that was started has ended, or ``None`` as long as it goes on."""

DONE, FAILED, INTERRUPTED = 0, 1, 130
BUSY = 75
"""Another process holds the run directory; it may finish the run, so look again later."""
PATIENCE = 120.0
"""Seconds that a run has to save itself when it is asked to stop."""


class Ending(NamedTuple):
    """How a run ended."""

    code: int
    words: str = ""
    """Why, if it did not end well."""


@dataclass(frozen=True)
class JobSpec:
    """What is to be done, here or in another process."""

    config: Config
    options: RunOptions
    work: Work = train
    threads: int | None = None

    def __call__(self, display: Display | None = None) -> Ending:
        """Do it."""
        if self.threads is not None:
            import torch

            torch.set_num_threads(self.threads)
        try:
            self.work(self.config, self.options, display or Silent())
        except Busy as other:
            return Ending(BUSY, str(other))
        except Interrupted as stop:
            return Ending(INTERRUPTED, str(stop))
        except Exception as error:  # whatever it is: the other runs of a sweep go on
            traceback.print_exc()
            return Ending(FAILED, f"{type(error).__name__}: {error}")
        return Ending(DONE)


class Executor:
    """One run after the other in this process: for those whose time a new Python would double."""

    def __init__(self, width: int = 1) -> None:
        self.width = width  # how many may run at a time

    def start(self, key: str, spec: JobSpec) -> Poll:
        """Start a run; returns what tells how it ended."""
        ending = spec()
        return lambda: ending

    def stop(self) -> None:
        """Ask what runs for a clean end, and wait until it is saved."""


@dataclass
class Processes(Executor):
    """A process for each run, ``width`` at a time, each with a log file."""

    width: int
    logs: Path
    _started: list[SpawnProcess] = field(default_factory=list)

    def start(self, key: str, spec: JobSpec) -> Poll:
        """Start a process; it ends, saved, if this one dies."""
        # Keys are unique in a sweep only, and another one may share the folder.
        name = re.sub(r"[^\w.=+-]+", "_", key)
        log = self.logs / f"{name}-{spec.config.hash}.log"
        self.logs.mkdir(parents=True, exist_ok=True)
        process = get_context("spawn").Process(target=_logged, args=(spec, log))
        process.start()
        self._started.append(process)

        def poll() -> Ending | None:
            code = process.exitcode
            if code is None:
                return None
            killed = f"killed by signal {-code}; " if code < 0 else ""
            lines = log.read_text(errors="replace").strip().splitlines() if log.is_file() else []
            return Ending(code, f"{killed}{lines[-1] if lines else 'no output'} (log: {log})")

        return poll

    def stop(self) -> None:
        """Ask for a clean end, and kill what is not saved in time."""
        for process in self._started:
            process.terminate()
        for process in self._started:
            with contextlib.suppress(KeyboardInterrupt):
                process.join(PATIENCE)
            process.kill()
            process.join()


def _logged(spec: JobSpec, log: Path) -> None:
    """Do it in a process of its own, with all output in a file, and end when the parent does."""
    os.setsid()  # Ctrl-C is for the sweep, which then asks its runs to stop, once
    with log.open("ab") as file:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(file.fileno(), stream.fileno())
    parent = parent_process()
    assert parent is not None

    def stop_when_orphaned() -> None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=stop_when_orphaned, daemon=True).start()
    with TerminalDisplay() as display:
        ending = spec(display)
    if ending.words:
        print(ending.words, flush=True)
    raise SystemExit(ending.code)

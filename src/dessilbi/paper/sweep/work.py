"""One run of a sweep: what to do, doing it, and doing it in a process of its own.

``python -m dessilbi.paper.sweep.work`` reads a pickled :class:`JobSpec` from its standard input and
answers by its exit code. The input stays open: its end says that whoever started the process is
gone, and the run then ends as if it had been asked to, saved.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from dessilbi.lab.run.directory import Busy
from dessilbi.lab.training.display import Display, Silent
from dessilbi.lab.training.errors import Interrupted
from dessilbi.lab.training.loop import train
from dessilbi.paper import baselines, optimizers

if TYPE_CHECKING:
    from dessilbi.lab.run.config import Config
    from dessilbi.lab.run.options import RunOptions

REGISTERED: Final = (baselines, optimizers)
"""Imported, so that a configuration can name them in a process of its own."""

DONE: Final = 0
FAILED: Final = 1
BUSY: Final = 75
"""Another process holds the run directory; it may finish the run, so look again later."""
PREEMPTED: Final = 76
"""A cluster asked the run to end, and it is saved: it is to be queued again."""
INTERRUPTED: Final = 130


class Ending(NamedTuple):
    """How a run ended."""

    code: int
    words: str = ""
    """Why, if it did not end well."""


class Work(Protocol):
    """What a job does; a function of a module, so that it can be sent to another process."""

    def __call__(self, config: Config, options: RunOptions, display: Display, /) -> Any:
        """Do it, and leave the result in the run directory of the configuration."""


@dataclass(frozen=True)
class JobSpec:
    """What a process is to do."""

    config: Config
    options: RunOptions
    work: Work = train
    threads: int | None = None


def execute(spec: JobSpec, display: Display | None = None) -> Ending:
    """Do what a specification says."""
    if spec.threads is not None:
        import torch

        torch.set_num_threads(spec.threads)
    try:
        spec.work(spec.config, spec.options, display or Silent())
    except Busy as other:
        return Ending(BUSY, str(other))
    except Interrupted as stop:
        return Ending(INTERRUPTED, str(stop))
    except Exception as error:  # whatever it is: the other runs of a sweep go on
        traceback.print_exc()
        return Ending(FAILED, f"{type(error).__name__}: {error}")
    return Ending(DONE)


def _stop_when_orphaned() -> None:
    """Treat the end of our input, which only the death of our parent brings, as SIGTERM."""

    def watch() -> None:
        while os.read(0, 1024):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


def main() -> int:
    """Execute a specification from standard input, with a log on standard output."""
    from dessilbi.lab.training.terminal import TerminalDisplay

    spec: JobSpec = pickle.load(sys.stdin.buffer)
    _stop_when_orphaned()
    with TerminalDisplay() as display:
        ending = execute(spec, display)
    if ending.words:
        print(ending.words, flush=True)
    return ending.code


if __name__ == "__main__":
    raise SystemExit(main())

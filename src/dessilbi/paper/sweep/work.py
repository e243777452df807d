"""One run of a sweep as a process of its own: ``python -m dessilbi.paper.sweep.work ORDER.json``.

An order says what to do, with which configuration and where. The exit code says how it went. The
process ends cleanly, saved, when whoever started it is gone: it then reads the end of its input.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
import threading
import traceback
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dessilbi.lab.run.config import Config, from_json, to_json
from dessilbi.lab.run.directory import Busy, RunDir
from dessilbi.lab.training.display import Display, Silent
from dessilbi.lab.training.loop import Interrupted, Place, train

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

DONE: Final = 0
FAILED: Final = 1
BUSY: Final = 75
"""Another process holds the run directory; it may finish the run, so look again later."""
PREEMPTED: Final = 76
"""A cluster asked the run to end, and it is saved: it is to be queued again."""
INTERRUPTED: Final = 130

TRAIN: Final = "dessilbi.paper.sweep.work:train_config"


@dataclass(frozen=True)
class Order:
    """What a process is to do."""

    config: Config
    place: Place
    entry: str = TRAIN
    """``module:function`` that takes (config, place, options, display)."""
    options: Mapping[str, str] = field(default_factory=dict)
    threads: int | None = None

    def to_json(self) -> str:
        """The order as text."""
        place = dataclasses.asdict(self.place)
        place["runs"] = str(self.place.runs)
        place["data_dir"] = None if self.place.data_dir is None else str(self.place.data_dir)
        content = {
            "entry": self.entry,
            "options": dict(self.options),
            "threads": self.threads,
            "place": place,
            "config": json.loads(to_json(self.config)),
        }
        return json.dumps(content, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Order:
        """Read what :meth:`to_json` wrote."""
        content = json.loads(text)
        place = content["place"]
        place["runs"] = Path(place["runs"])
        place["data_dir"] = None if place["data_dir"] is None else Path(place["data_dir"])
        return cls(
            from_json(json.dumps(content["config"])),
            Place(**place),
            content["entry"],
            content["options"],
            content["threads"],
        )


def train_config(
    config: Config, place: Place, options: Mapping[str, str], display: Display
) -> None:
    """The usual work: train the configuration."""
    train(config, place, display)


def carry_out(order: Order, display: Display | None = None) -> tuple[int, str]:
    """Do what an order says; returns the exit code and, if it failed, why."""
    if order.threads is not None:
        import torch

        torch.set_num_threads(order.threads)
    run = RunDir(order.place.runs / order.config.run_name)
    try:
        if run.path.exists() and held_elsewhere(run):
            return BUSY, f"{run.path} is in use by another process"
        _function(order.entry)(order.config, order.place, order.options, display or Silent())
    except Busy as other:  # which came in between
        return BUSY, str(other)
    except Interrupted as stop:
        return INTERRUPTED, str(stop)
    except Exception as error:  # whatever it is: the other runs of a sweep go on
        traceback.print_exc()
        return FAILED, f"{type(error).__name__}: {error}"
    return DONE, ""


def held_elsewhere(run: RunDir) -> bool:
    """Whether another process works on a run."""
    try:
        with run.lock():
            return False
    except Busy:
        return True


def _function(entry: str) -> Callable[[Config, Place, Mapping[str, str], Display], Any]:
    module, _, name = entry.partition(":")
    found: Callable[[Config, Place, Mapping[str, str], Display], Any]
    found = getattr(import_module(module), name)
    return found


def _stop_when_orphaned() -> None:
    """Treat the end of our input, which only the death of our parent brings, as SIGTERM."""

    def watch() -> None:
        while os.read(0, 1024):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


def main(arguments: list[str]) -> int:
    """Carry out the order in a file, with a log on standard output."""
    from dessilbi.lab.training.terminal import TerminalDisplay

    order = Order.from_json(Path(arguments[0]).read_text())
    _stop_when_orphaned()
    with TerminalDisplay() as display:
        code, why = carry_out(order, display)
    if why:
        print(why, flush=True)
    return code


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

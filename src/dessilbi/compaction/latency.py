"""How long networks take on the CPU, measured side by side."""

from __future__ import annotations

import math
import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


@dataclass(frozen=True)
class Timing:
    """Milliseconds of one call."""

    median: float
    low: float
    """A quarter of the calls took less."""
    high: float
    """A quarter took more."""

    def __str__(self) -> str:
        return f"{self.median:.3g} ms ({self.low:.3g} to {self.high:.3g})"


def side_by_side(
    calls: Sequence[Callable[[], object]],
    *,
    repetitions: int = 7,
    seconds: float = 2.0,
    clock: Callable[[], float] = time.perf_counter,
) -> list[Timing]:
    """Time calls in turn, so that whatever slows the machine slows all of them.

    Args:
        calls: what is timed, in inference mode; each is called once before.
        repetitions: rounds at least; short calls get more.
        seconds: stop after this long, but not before three rounds.
        clock: what is read before and after a call; :func:`steady_clock` on a busy machine.
    """
    taken: list[list[float]] = [[] for _ in calls]
    with torch.inference_mode():
        for call in calls:
            call()
        start = time.perf_counter()
        rounds = 0
        while rounds < 3 or _goes_on(start, rounds, repetitions, seconds):
            for times, call in zip(taken, calls, strict=True):
                before = clock()
                call()
                times.append(clock() - before)
            rounds += 1
    return [_timing(times) for times in taken]


def _goes_on(start: float, rounds: int, repetitions: int, seconds: float) -> bool:
    spent = time.perf_counter() - start
    # Cheap calls are repeated for a tenth of the time that may be spent.
    return spent < seconds and (
        rounds < repetitions or (spent < seconds / 10 and rounds < 20 * repetitions)
    )


def steady_clock() -> float:
    """Seconds that other processes cannot lengthen: CPU time, if torch runs on one thread."""
    return time.process_time() if torch.get_num_threads() == 1 else time.perf_counter()


def _timing(times: list[float]) -> Timing:
    ordered = sorted(1e3 * t for t in times)
    quarter = math.floor(len(ordered) / 4)
    return Timing(statistics.median(ordered), ordered[quarter], ordered[-1 - quarter])

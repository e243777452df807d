"""Which budgets a step trains: a function of seed and step, so that nothing need be remembered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .ranking import WHOLE, rank_of

# Multiples of the golden ratio, modulo 1, fall evenly: any ten steps in a row, which is as far as
# momentum remembers, see budgets of all sizes. Another irrational number moves the start by seed.
_GOLDEN, _BY_SEED = 0.6180339887498949, 0.7548776662466927


@dataclass(frozen=True, kw_only=True)
class NestedSchedule:
    """Which budgets nested training draws, and when weights are ranked.

    The whole network is trained first. From ``ramp_start`` on the smallest budget that may be drawn
    falls along a cubic, as in gradual pruning, and from ``ramp_end`` on it is ``min_density``.
    Budgets are spread evenly in their logarithm. The defaults are those for single weights;
    :meth:`for_widths` has those for whole channels.

    Example:
        >>> NestedSchedule(min_density=0.01).ramp_end
        0.25
        >>> NestedSchedule.for_widths(min_density=0.25).ramp_end
        0.3
    """

    min_density: float = 0.004
    """The smallest budget, as a fraction of the weights (of the filters of each layer)."""
    max_density: float = 0.3
    """The largest budget beside the whole network, once the smallest is reached. Single weights
    beyond 0.3 add little and need no steps of their own; filters do. Widths do not use it."""
    ramp_start: float = 1 / 12
    """When budgets begin to fall, as a fraction of the training."""
    ramp_end: float = 0.25
    """When they reach ``min_density``."""
    freeze_ranking_at: float = 0.6
    """When the ranking is fixed."""
    full_fraction: float = 0.3
    """Fraction of the steps that train the whole network; beside the drawn budgets if there are
    several a step, else instead."""
    draw_power: float = 1.0
    """Above 1, large budgets are drawn more often than small ones; below 1, less often. Widths do
    not use it."""
    rank_every: int = 100
    """Steps between two rankings."""

    def __post_init__(self) -> None:
        low, start = self.min_density, self.ramp_start
        for rule, holds in {
            f"min_density must lie in (0, 1), got {low!r}": 0 < low < 1,
            f"max_density must lie in [min_density, 1], got {self.max_density!r}": (
                low <= self.max_density <= 1
            ),
            f"ramp_start must lie in [0, 1], got {start!r}": 0 <= start <= 1,
            f"ramp_end must lie in [ramp_start, 1], got {self.ramp_end!r}": (
                start <= self.ramp_end <= 1
            ),
            f"freeze_ranking_at must be >= ramp_start, got {self.freeze_ranking_at!r}": (
                self.freeze_ranking_at >= start
            ),
            f"full_fraction must lie in [0, 1], got {self.full_fraction!r}": (
                0 <= self.full_fraction <= 1
            ),
            f"draw_power must be > 0, got {self.draw_power!r}": self.draw_power > 0,
            f"rank_every must be >= 1, got {self.rank_every!r}": self.rank_every >= 1,
        }.items():
            if not holds:
                raise ValueError(rule)

    @classmethod
    def for_widths(cls, **changed: Any) -> NestedSchedule:
        """The defaults of :class:`NestedWidths`, with some options changed."""
        widths = {"min_density": 0.125, "max_density": 1.0, "ramp_end": 0.3, "full_fraction": 1.0}
        return cls(**widths | changed)

    def smallest(self, progress: float) -> float:
        """The smallest budget that may be drawn, at a fraction of the training."""
        if progress >= self.ramp_end:
            return self.min_density
        if progress <= self.ramp_start:
            return 1.0
        left = 1 - (progress - self.ramp_start) / (self.ramp_end - self.ramp_start)
        return self.min_density + (1 - self.min_density) * left**3

    def one_budget(self, seed: int, step: int, steps: int) -> int:
        """The rank of a step's only budget."""
        progress = step / steps
        if progress < self.ramp_start:
            return WHOLE
        drawn = even(seed, step)
        if drawn < self.full_fraction:
            return WHOLE
        drawn = ((drawn - self.full_fraction) / (1 - self.full_fraction)) ** self.draw_power
        smallest = self.smallest(progress)
        largest = self.max_density if progress >= self.ramp_end else 1.0
        return rank_of(largest * (smallest / largest) ** drawn, self.min_density)

    def several_budgets(self, count: int, seed: int, step: int, steps: int) -> tuple[int, ...]:
        """The ranks of a step's budgets, the largest first.

        Once the smallest budget is reached, each is drawn from a part of its own of the budgets:
        three parts of 0.004 to 0.3 meet at 0.017 and 0.071.
        """
        if count == 1 or step / steps < self.ramp_end:
            return (self.one_budget(seed, step, steps),)
        *each, whole = _together(count + 1)
        part = (self.min_density / self.max_density) ** (1 / count)
        ranks = {
            rank_of(
                self.max_density * part ** (k + even(seed, step, irrational) ** self.draw_power),
                self.min_density,
            )
            for k, irrational in enumerate(each)
        }
        if even(seed, step, whole) < self.full_fraction:
            ranks.add(WHOLE)
        return tuple(sorted(ranks, reverse=True))


def even(seed: int, step: int, irrational: float = _GOLDEN) -> float:
    """A number in [0, 1) for a step; those of successive steps are spread evenly."""
    return (seed * _BY_SEED + step * irrational) % 1


def due(step: int, often: float, offset: float) -> bool:
    """Whether one of the evenly spaced steps, so many of all, is this one."""
    return int((step + 1) * often + offset) > int(step * often + offset)


def _together(count: int) -> list[float]:
    """Irrational numbers whose multiples, modulo 1 and taken together, fall evenly into a cube."""
    root = 2.0
    for _ in range(60):  # of x ** (count + 1) == x + 1: the golden ratio, and its like
        root = (1 + root) ** (1 / (count + 1))
    return [root ** -(k + 1) for k in range(count)]

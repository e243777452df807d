"""Which widths a step trains: while they share weights, and once they have branched off."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .ranking import WHOLE, rank_of
from .schedule import due, even

if TYPE_CHECKING:
    from collections.abc import Callable

    from .branches import Branches
    from .schedule import NestedSchedule

# Another irrational number for the second network of a step, so that the two are drawn apart.
_SECOND = 0.5698402909980532


@dataclass
class WidthDraws:
    """The draws of a training; its options are those of :class:`NestedWidths`."""

    schedule: NestedSchedule
    branches: Branches
    branch_at: tuple[float, float]
    branch_macs: float
    small_fraction: float
    cost: Callable[[int], float]
    """By rank, the multiply-adds of its network as a fraction of the whole one's."""
    _often: float | None = None

    def forget_costs(self) -> None:
        """To be called when the ranking has changed, or a width has left."""
        self._often = None

    def ranks(self, seed: int, step: int, steps: int) -> tuple[int, ...]:
        """Ranks of a step's networks, the largest first."""
        schedule, branches, progress = self.schedule, self.branches, step / steps
        if progress < schedule.ramp_start:
            return (WHOLE,)
        # Whether only widths that leave are trained beside the whole network.
        leaving = progress >= schedule.ramp_end and self.branch_at[0] < 1
        often = self._affordable() if leaving else 1.0
        count = len(branches.by_rank)
        numbered = enumerate(branches.by_rank)
        left = [rank for number, rank in numbered if due(step, often, number / count)][::-1]
        if branches.complete:
            return (WHOLE, *left)
        smallest, shared = schedule.smallest(progress), branches.shared
        if count:  # narrower ones have left
            smallest = max(smallest, shared[0])
        large, drawn = 1.0, even(seed, step)
        if drawn >= schedule.full_fraction:  # the upper half of the widths, in their logarithm
            large = smallest ** (
                0.5 * (drawn - schedule.full_fraction) / (1 - schedule.full_fraction)
            )
        widths = [large]
        second, limit = even(seed, step, _SECOND), often * self.small_fraction
        if second < limit:  # one from the lower half; at last one that is about to leave
            second /= limit
            lower = smallest ** (1 - 0.5 * second)
            widths.append(shared[int(second * len(shared))] if leaving else lower)
        ranks = {rank_of(width, schedule.min_density) for width in widths}
        return (*sorted(ranks, reverse=True), *left)

    def _affordable(self) -> float:
        """In what part of the steps a branch is trained."""
        if self._often is None:
            shared = self.branches.shared
            total = sum(self.cost(rank) for rank in self.branches.by_rank)
            for width in shared:
                cost = self.cost(rank_of(width, self.schedule.min_density))
                total += self.small_fraction * cost / len(shared)
            self._often = min(1.0, self.branch_macs / total)
        return self._often

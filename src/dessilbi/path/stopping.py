"""When the support has settled: a stopping rule for growing supports.

Early-Bird tickets (You et al., ICLR 2020) stop when the masks of the last five epochs, all pruned
to one fixed ratio, differ from the present one in less than a tenth of the channels. A support that
grows from nothing has no fixed ratio: while 2 % of the weights are inside, no two supports can
differ in more than 4 % of them, so that a Hamming distance calls anything stable. The Jaccard
distance, the share of ``A or B`` that is not in both, does not depend on how much is inside; it is
the default.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Literal, get_args

import torch

from .layers import unknown
from .mask import Mask

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

Distance = Literal["hamming", "jaccard"]


class StabilityRule:
    """Settled: as near as ``tolerance`` to each of the last ``window`` supports.

    An empty support is never settled: nothing has begun. Weights count, not groups.

    Args:
        window: how many earlier supports must be near.
        tolerance: largest distance that counts as near.
        distance: ``"jaccard"``, differing weights over weights in either support; or ``"hamming"``,
            over all weights, as Early-Bird has it.

    Example:
        >>> rule = StabilityRule(window=1)
        >>> [rule.update({"w": torch.tensor(s)}) for s in ([True, False], [True, False])]
        [False, True]
    """

    def __init__(
        self, window: int = 5, tolerance: float = 0.1, distance: Distance = "jaccard"
    ) -> None:
        if isinstance(window, bool) or not isinstance(window, int) or window < 1:
            raise ValueError(f"window must be an integer >= 1, got {window!r}")
        if not 0 <= tolerance <= 1:
            raise ValueError(f"tolerance must be from 0 to 1, got {tolerance!r}")
        if distance not in get_args(Distance):
            raise ValueError(unknown("distance", distance, get_args(Distance)))
        self.window, self.tolerance, self.distance = window, tolerance, distance
        self.distances: tuple[float, ...] = ()
        """From the latest support to those before it, the oldest first."""
        self._past: deque[Tensor] = deque(maxlen=window)

    def update(self, support: Mapping[str, Tensor] | Mask) -> bool:
        """Take the next support, and say whether it has settled."""
        tensors = support.tensors if isinstance(support, Mask) else support
        parts = [tensors[name].detach().flatten().cpu() for name in sorted(tensors)]
        now = torch.cat(parts) if parts else torch.zeros(0, dtype=torch.bool)
        if self._past and len(now) != len(self._past[0]):
            raise ValueError(
                f"the support has {len(now)} weights, the one before it {len(self._past[0])}; "
                "use one rule for one network"
            )
        self.distances = tuple(support_distance(now, past, self.distance) for past in self._past)
        full = len(self._past) == self.window
        self._past.append(now)
        return full and bool(now.any()) and max(self.distances) <= self.tolerance


def support_distance(a: Tensor, b: Tensor, distance: Distance = "jaccard") -> float:
    """Distance of two boolean tensors, from 0 (equal) to 1."""
    differ = int((a ^ b).sum())
    if distance == "hamming":
        return differ / max(a.numel(), 1)
    either = (int(a.sum()) + int(b.sum()) + differ) // 2
    return differ / either if either else 0.0

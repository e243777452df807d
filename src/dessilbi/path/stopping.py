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
        >>> import torch
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
        self._past: deque[dict[str, Tensor]] = deque(maxlen=window)

    def update(
        self, support: Mapping[str, Tensor] | Mask, sizes: Mapping[str, int] | None = None
    ) -> bool:
        """Take the next support, and say whether it has settled.

        Args:
            support: boolean tensors by name, an element a weight;
            sizes: or an element a group of so many weights, by name.
        """
        tensors = support.tensors if isinstance(support, Mask) else support
        now = {name: tensor.detach().cpu() for name, tensor in tensors.items()}
        each = dict.fromkeys(now, 1) | dict(sizes or {})
        weights = [sum(t.numel() for t in one.values()) for one in (now, *list(self._past)[:1])]
        if weights[0] != weights[-1] or (self._past and now.keys() != self._past[0].keys()):
            raise ValueError(
                f"the support has {weights[0]} weights, the one before it {weights[-1]}; "
                "use one rule for one network"
            )
        self.distances = tuple(_distance(now, past, each, self.distance) for past in self._past)
        full = len(self._past) == self.window
        self._past.append(now)
        begun = any(bool(tensor.any()) for tensor in now.values())
        return full and begun and max(self.distances) <= self.tolerance


def support_distance(a: Tensor, b: Tensor, distance: Distance = "jaccard") -> float:
    """Distance of two boolean tensors, from 0 (equal) to 1."""
    return _distance({"": a}, {"": b}, {"": 1}, distance)


def _distance(
    a: Mapping[str, Tensor], b: Mapping[str, Tensor], each: Mapping[str, int], distance: Distance
) -> float:
    """The same over several tensors, whose elements stand for so many weights each."""
    differ = sum(int((a[name] ^ b[name]).sum()) * each[name] for name in a)
    if distance == "hamming":
        over = sum(tensor.numel() * each[name] for name, tensor in a.items())
    else:
        over = sum(int((a[name] | b[name]).sum()) * each[name] for name in a)
    return differ / over if over else 0.0

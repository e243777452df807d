"""How large the network is that a mask leaves."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, NamedTuple

from dessilbi.graph.names import named_weights
from dessilbi.path import count_macs_per_weight
from dessilbi.subnet.project import masked_weights, zero_outside

if TYPE_CHECKING:
    from torch import Tensor, nn

    from dessilbi.path import Mask


class Size(NamedTuple):
    """What a network has and does."""

    parameters: int
    """All its numbers but the weights that are zero, biases and BatchNorm included."""
    macs: float
    """Multiply-adds of an image, of the weights that are not zero."""


def size_under(model: nn.Module, mask: Mask, image: Tensor) -> Size:
    """The size of the masked network, counted on the compact one.

    A filter that is gone takes the weights of the next layer that read it along. What is zero in
    the compact network, single weights or the filters that a residual stream keeps, does not count.
    A network that cannot be traced is counted as it is.
    """
    from dessilbi.compaction import CompactError, compact  # training needs none of it

    small: nn.Module
    try:
        small = compact(model, mask, image, latency=False).model
    except CompactError:
        small = deepcopy(model)
        zero_outside(masked_weights(small, mask))
    uses = count_macs_per_weight(small, image)
    weights = named_weights(small)
    left = {n: int(p.count_nonzero()) if p.ndim > 1 else p.numel() for n, p in weights.items()}
    return Size(sum(left.values()), sum(left[name] * each for name, each in uses.items()))

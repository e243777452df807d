"""What a group weighs when weights of different layers are compared."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from dessilbi.path import Layer


def magnitudes(W: Tensor, layer: Layer) -> Tensor:
    """|W| by element, shaped as W, or the root mean square of each group's weights."""
    W = W.detach()
    if layer.group_dim is None:
        return W.abs()
    return layer.norms(W) / math.sqrt(max(layer.group_size, 1))

"""Multiply-adds of a network, whole or masked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dessilbi.graph.macs import count_macs_per_weight
from dessilbi.graph.names import named_weights

from .mask import Mask

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor, nn


def macs(model: nn.Module, example_input: Any, mask: Mapping[str, Tensor] | None = None) -> float:
    """Multiply-adds of the convolutions and linear layers of a network, for one example.

    Args:
        model: the network.
        example_input: a batch, or a tuple of arguments whose first is one.
        mask: count the weights that it keeps; those that it does not name all count.

    Example:
        >>> model, x = nn.Linear(8, 2), torch.zeros(1, 8)
        >>> macs(model, x), macs(model, x, Mask.magnitude(model, density=0.25))
        (16.0, 4.0)
    """
    kept = {} if mask is None else {name: int(t.sum()) for name, t in Mask.of(mask).items()}
    weights = named_weights(model)
    each = count_macs_per_weight(model, example_input)
    return sum(kept.get(name, weights[name].numel()) * uses for name, uses in each.items())

"""How many multiply-adds each weight of a network takes part in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from .names import named_weights

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle


@torch.no_grad()
def count_macs_per_weight(model: nn.Module, example_input: Any) -> dict[str, float]:
    """Multiply-adds that one weight of each layer takes part in, for one example.

    A linear weight is used once, or once a token; a convolution's once for every output position;
    a transposed convolution's once for every input position. Padding counts as if it were data, as
    usual. A weight that is used in several places counts in each.

    Args:
        model: run once in evaluation mode; modes are restored.
        example_input: a batch (its first dimension counts examples), or a tuple of arguments whose
            first is one.

    Returns:
        By the parameter's name, for convolutions and linear layers. What calls neither (attention,
        recurrent layers) is missing; add it by hand if it is to share a budget.

    Example:
        >>> count_macs_per_weight(nn.Sequential(nn.Conv2d(1, 4, 3)), torch.zeros(2, 1, 5, 5))
        {'0.weight': 9.0}
    """
    arguments = example_input if isinstance(example_input, tuple) else (example_input,)
    if not arguments or not isinstance(arguments[0], Tensor) or arguments[0].ndim == 0:
        raise ValueError("example_input must be a batch, or a tuple whose first entry is one")
    examples = len(arguments[0])
    if examples == 0:
        raise ValueError("example_input must have at least one example, got an empty batch")
    uses: dict[int, float] = {}

    def count(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
        positions = _positions(module, inputs[0], output) / examples
        key = id(_weight(module))
        uses[key] = uses.get(key, 0.0) + positions

    handles: list[RemovableHandle] = [
        module.register_forward_hook(count)
        for module in model.modules()
        if isinstance(module, _ConvNd | nn.Linear)
    ]
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        model(*arguments)
    finally:
        for module, mode in modes:
            module.training = mode
        for handle in handles:
            handle.remove()
    return {name: uses[id(p)] for name, p in named_weights(model).items() if id(p) in uses}


def _positions(module: nn.Module, x: Tensor, y: Tensor) -> float:
    """How often each weight was used, over all examples."""
    if isinstance(module, _ConvTransposeNd):
        return x.numel() / module.in_channels
    channels = module.out_channels if isinstance(module, _ConvNd) else y.shape[-1]
    return y.numel() / int(channels)


def _weight(module: nn.Module) -> object:
    # A module under torch.nn.utils.prune holds its parameter under another name.
    return getattr(module, "weight_orig", module.weight)

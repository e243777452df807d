"""Soft Filter Pruning: the weakest filters of each layer are zeroed every epoch, and may return.

He, Kang, Dong, Fu, Yang: Soft Filter Pruning for Accelerating Deep Convolutional Neural Networks.
IJCAI 2018.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn.modules.conv import _ConvNd
from torch.nn.utils import prune

from dessilbi.path import Mask

if TYPE_CHECKING:
    from torch import nn


def check_rate(rate: float) -> float:
    """The fraction of filters to zero, the same in every layer."""
    if not 0 <= rate < 1:
        raise ValueError(f"rate must be in [0, 1), got {rate!r}")
    return rate


@torch.no_grad()
def zero_weak_filters(model: nn.Module, rate: float) -> None:
    """Zero, in each convolution, the filters of smallest l2 norm.

    They are trained on like the others: a filter that grows back above another takes its place. The
    network after the last epoch is the pruned one.
    """
    params = dict(model.named_parameters())
    mask = weak_filters_out(model, rate)
    for name in mask.names:
        params[name].mul_(mask[name].to(params[name].device))


@torch.no_grad()
def weak_filters_out(model: nn.Module, rate: float) -> Mask:
    """The filters that stay when each convolution loses that fraction; never its last one."""
    kept = {}
    for name, module in model.named_modules():
        if isinstance(module, _ConvNd):
            count = min(round(rate * module.out_channels), module.out_channels - 1)
            ones = torch.ones_like(module.weight)
            rule: Any = prune.LnStructured(count, n=2, dim=0)  # torch leaves it untyped
            found = rule.compute_mask(module.weight, ones) if count else ones
            kept[f"{name}.weight".lstrip(".")] = found.bool()
    if not kept:
        raise ValueError("Soft Filter Pruning needs convolutions; there are none")
    return Mask(kept)


def rate_for(model: nn.Module, density: float) -> float:
    """The rate that leaves a fraction of all weights that may have a twin.

    Only filters are pruned: a density below what the linear layers hold cannot be reached.
    """
    from dessilbi.path.names import weights_with_twin

    weights = weights_with_twin(model)
    total = sum(w.numel() for w in weights.values())
    filters = sum(m.weight.numel() for m in model.modules() if isinstance(m, _ConvNd))
    return min(max((1 - density) * total / max(filters, 1), 0.0), 0.999)

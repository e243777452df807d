"""Copies of a network to be analysed."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_leaves

from .operations import NORMS


def copied(model: nn.Module) -> nn.Module:
    """A copy without gradients, also of a network that keeps results of its last pass."""
    memo: dict[int, Any] = {}
    for module in model.modules():
        for value in tree_leaves({**module.__dict__, "_modules": None}):
            if isinstance(value, torch.Tensor) and not value.is_leaf:
                memo[id(value)] = value.detach()
    copy = deepcopy(model, memo)
    copy.zero_grad(set_to_none=True)
    return copy


def with_known_norms(model: nn.Module) -> nn.Module:
    """A copy whose BatchNorm layers are torch's own: others, too, work channel by channel.

    They all have parameters, by which the channels of their statistics are found.
    """
    copy = copied(model)
    for parent in [*copy.modules()]:
        for name, child in parent.named_children():
            if isinstance(child, _BatchNorm) and not child.affine and child.running_var is not None:
                child.affine = True
                child.weight = nn.Parameter(torch.ones_like(child.running_var))
                child.bias = nn.Parameter(torch.zeros_like(child.running_var))
            if isinstance(child, _BatchNorm) and not isinstance(child, NORMS):
                known = nn.SyncBatchNorm(child.num_features, child.eps)  # any dimension
                known.__dict__.update(child.__dict__)
                setattr(parent, name, known)
    return copy

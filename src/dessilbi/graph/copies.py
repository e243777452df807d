"""Copies of a network to be analysed."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.utils._pytree import tree_leaves

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


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


def fit_attributes(module: nn.Module) -> None:
    """Let a layer's attributes say the sizes that its tensors have."""
    known: Any = module
    weight = module._parameters.get("weight")
    if weight is None:
        if isinstance(module, _BatchNorm) and module.running_mean is not None:
            module.num_features = len(module.running_mean)
        return
    rows, columns = weight.shape[0], weight.shape[1] if weight.ndim > 1 else 0
    if isinstance(module, nn.Linear):
        module.out_features, module.in_features = rows, columns
    elif isinstance(module, _ConvTransposeNd):
        module.in_channels, module.out_channels = rows, columns * module.groups
    elif isinstance(module, _ConvNd):
        module.out_channels, module.in_channels = rows, columns * module.groups
    elif isinstance(module, _BatchNorm):
        module.num_features = rows
    elif isinstance(module, nn.GroupNorm):
        module.num_groups = module.num_groups * rows // module.num_channels
        module.num_channels = rows
    elif isinstance(module, nn.PReLU):
        module.num_parameters = rows
    elif isinstance(module, nn.Embedding):
        module.embedding_dim = columns
    elif type(module).__name__ == "Conv1D" and hasattr(module, "nf"):  # GPT-2's linear layer
        known.nx, known.nf = rows, columns

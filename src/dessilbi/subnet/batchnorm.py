"""BatchNorm statistics of a network whose weights were changed without training."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor


def has_batchnorm(model: nn.Module) -> bool:
    """Whether the model keeps running statistics that a projection makes stale."""
    return any(isinstance(m, _BatchNorm) and m.track_running_stats for m in model.modules())


@torch.no_grad()
def recalibrate_batchnorm(model: nn.Module, inputs: Iterable[Tensor]) -> None:
    """Measure the running statistics of every BatchNorm layer anew, over ``inputs``.

    Projected weights send other activations through the network than the ones its BatchNorm layers
    remember, and at early epochs that alone puts it at chance. The statistics become the plain
    average over the given batches; all other layers stay in evaluation mode, weights are not
    touched, and the model's modes are restored.

    Args:
        model: the network, weights as they are to be used.
        inputs: batches of training inputs; a few thousand images are enough.
    """
    norms = [m for m in model.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
    if not norms:
        return
    modes = {m: m.training for m in model.modules()}
    momenta = [m.momentum for m in norms]
    try:
        model.eval()
        for m in norms:
            m.reset_running_stats()
            m.momentum = None  # cumulative average
            m.train()
        seen = False
        for x in inputs:
            model(x)
            seen = True
        if not seen:
            raise ValueError("recalibrate_batchnorm needs at least one batch of inputs, got none")
    finally:
        for m, momentum in zip(norms, momenta, strict=True):
            m.momentum = momentum
        for module, mode in modes.items():
            module.training = mode

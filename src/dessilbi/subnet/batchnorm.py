"""BatchNorm statistics of a network whose weights were changed without training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor


_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")

Statistics = list[tuple[_BatchNorm, dict[str, "Tensor"]]]
"""BatchNorm layers, each with copies of its running statistics."""


def has_batchnorm(model: nn.Module) -> bool:
    """Whether the model keeps running statistics that a projection makes stale."""
    return any(isinstance(m, _BatchNorm) and m.track_running_stats for m in model.modules())


def copy_statistics(model: nn.Module) -> Statistics:
    """The running statistics of every BatchNorm layer as they are now."""
    return [
        (m, {n: b.clone() for n, b in m.named_buffers(recurse=False) if n in _STATISTICS})
        for m in model.modules()
        if isinstance(m, _BatchNorm)
    ]


@torch.no_grad()
def restore_statistics(statistics: Statistics) -> None:
    """Put back what :func:`copy_statistics` gave."""
    for m, copies in statistics:
        for name, copy in copies.items():
            m.get_buffer(name).copy_(copy)


@torch.no_grad()
def recalibrate_batchnorm(model: nn.Module, inputs: Iterable[Any]) -> None:
    """Measure the running statistics of every BatchNorm layer anew, over ``inputs``.

    Projected weights send other activations through the network than the ones its BatchNorm layers
    remember, and at early epochs that alone puts it at chance. The statistics become the plain
    average over the given batches; all other layers stay in evaluation mode, weights are not
    touched, and the model's modes are restored. If anything fails on the way the old statistics
    stay.

    Within :func:`project` they last as long as the context: the dense weights come back with
    theirs.

    Args:
        model: the network, weights as they are to be used.
        inputs: batches of training inputs, or tuples of arguments; a few thousand images are
            enough.
    """
    norms = [m for m in model.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
    if not norms:
        return
    modes = {m: m.training for m in model.modules()}
    momenta = [m.momentum for m in norms]
    before = copy_statistics(model)
    try:
        model.eval()
        for m in norms:
            m.reset_running_stats()
            m.momentum = None  # cumulative average
            m.train()
        seen = False
        for x in inputs:
            model(*x) if isinstance(x, tuple) else model(x)
            seen = True
        if not seen:
            raise ValueError("recalibrate_batchnorm needs at least one batch of inputs, got none")
    except BaseException:
        restore_statistics(before)
        raise
    finally:
        for m, momentum in zip(norms, momenta, strict=True):
            m.momentum = momentum
        for module, mode in modes.items():
            module.training = mode

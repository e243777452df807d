"""BatchNorm statistics of a network whose weights were changed without training."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_map

from dessilbi.graph.wrappers import bare_model

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

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
def recalibrate_batchnorm(model: nn.Module, inputs: Tensor | Iterable[Any]) -> None:
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
        inputs: a batch of training inputs, or several, as a DataLoader gives them; a few thousand
            images are enough. A tensor or a tuple is the arguments of a call, a dictionary its
            keywords. Of a list, as of inputs and labels, the first are taken, as many as the
            network must be given; of a tuple, too, if it cannot take them all.

    Example:
        >>> from torch.utils.data import DataLoader, TensorDataset
        >>> loader = DataLoader(TensorDataset(torch.randn(64, 8), torch.zeros(64)), batch_size=16)
        >>> recalibrate_batchnorm(nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4)), loader)
    """
    model = bare_model(model)
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
        for batch in [inputs] if isinstance(inputs, torch.Tensor) else inputs:
            _run(model, batch)
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


def _run(model: nn.Module, batch: Any) -> None:
    """A forward pass on what a data loader gives."""
    weight = next(model.parameters(), None)
    if weight is not None:  # a loader's batches are on the CPU
        batch = tree_map(lambda t: t.to(weight.device) if isinstance(t, torch.Tensor) else t, batch)
    if isinstance(batch, Mapping):
        model(**batch)
    elif isinstance(batch, list | tuple):
        model(*_inputs(model.forward, batch))
    else:
        model(batch)


def _inputs(forward: Callable[..., Any], batch: list[Any] | tuple[Any, ...]) -> tuple[Any, ...]:
    """What of a batch are inputs: labels come after them."""
    signature = inspect.signature(forward)
    if isinstance(batch, tuple):
        try:
            signature.bind(*batch)
        except TypeError:
            pass  # more than it takes
        else:
            return batch
    given = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = [p for p in signature.parameters.values() if p.kind in given and p.default is p.empty]
    return tuple(batch[: max(len(needed), 1)])

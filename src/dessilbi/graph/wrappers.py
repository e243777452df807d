"""What frameworks wrap networks and optimizers in, and what is inside.

DistributedDataParallel, ``torch.compile``, Accelerate and Lightning hand out wrappers; names,
shapes and hooks are those of what is inside.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.optim import Optimizer

if TYPE_CHECKING:
    from collections.abc import Iterator


def bare_model(model: nn.Module) -> nn.Module:
    """The network inside of its wrappers."""
    for layer in _layers(model):
        model = layer
    return model


def averages_gradients(model: nn.Module) -> bool:
    """Whether a backward pass through this wrapper averages gradients over processes."""
    return any(isinstance(layer, DistributedDataParallel) for layer in _layers(model))


def bare_optimizer(opt: Optimizer) -> Optimizer:
    """The optimizer inside of its wrappers, which have no steps of their own to follow."""
    # Accelerate's is an Optimizer, Lightning's is not; both keep the one that steps here.
    inner = getattr(opt, "optimizer", None)
    while isinstance(inner, Optimizer) and inner is not opt:
        opt, inner = inner, getattr(inner, "optimizer", None)
    return opt


def _layers(model: nn.Module) -> Iterator[nn.Module]:
    """The model, and what each wrapper has inside, from the outside in."""
    while True:
        kind = type(model).__name__
        if kind in ("FullyShardedDataParallel", "DeepSpeedEngine"):
            raise TypeError(
                f"{kind} keeps weights flattened, which have no groups that could enter or leave; "
                "use torch.distributed.fsdp.fully_shard (FSDP2) or DistributedDataParallel"
            )
        yield model
        if isinstance(model, DistributedDataParallel | DataParallel):
            model = cast("nn.Module", model.module)
        elif isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):
            model = inner  # torch.compile's
        else:
            return

"""Forward and backward passes of subnetworks, whose gradients are added to those of the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor, nn

    from dessilbi.optim._keep import Keeper


@dataclass(frozen=True)
class Run:
    """What the passes of a step are made with."""

    arguments: tuple[Any, ...]
    """Of the network."""
    loss: Callable[[Any], Tensor]
    """What to make of an output."""
    weight: float
    """Factor of the gradients."""
    average: bool
    """Whether to take the mean of the gradients over all processes."""

    @classmethod
    def make(
        cls, x: Any, loss: Callable[[Any], Tensor], weight: float, net: nn.Module | None
    ) -> Run:
        """The run of a step.

        Args:
            x: the batch, or a tuple of arguments.
            loss: what to make of an output.
            weight: factor of all gradients.
            net: the network as it is to be called, if it is wrapped.
        """
        arguments = x if isinstance(x, tuple) else (x,)
        return cls(arguments, loss, weight, average=isinstance(net, DistributedDataParallel))

    def through(self, net: nn.Module) -> tuple[Any, Tensor]:
        """A pass as torch makes it, which adds its gradients: output and loss."""
        output = net(*self.arguments)
        value = self.loss(output)
        torch.autograd.backward(value * self.weight)
        return output.detach(), value.detach()


class SubnetPasses:
    """The subnetworks of a ranking.

    Args:
        model: the network.
        keepers: by parameter, what is kept at a level.
    """

    def __init__(self, model: nn.Module, keepers: Mapping[Tensor, Keeper]) -> None:
        self._model, self._keepers = model, keepers
        self._others = [p for p in model.parameters() if p not in keepers]

    def masked(self, level: int, run: Run) -> tuple[Any, Tensor]:
        """A pass of the whole network, the weights of the subnetwork in place."""
        output = self._model(*run.arguments)
        value = run.loss(output)
        seen = [p for p in (*self._keepers, *self._others) if p.requires_grad]
        found = torch.autograd.grad(value * run.weight, seen, allow_unused=True)
        known = {p: g for p, g in zip(seen, found, strict=True) if g is not None}
        if run.average:
            average_over_processes(known)
        for p, gradient in known.items():
            if p in self._keepers:
                self._keepers[p].gradient(gradient, level)
            p.grad = gradient if p.grad is None else p.grad + gradient
        return output.detach(), value.detach()


def average_over_processes(gradients: Mapping[Any, Tensor]) -> None:
    """Over all processes, in place, as DistributedDataParallel does for the whole network."""
    if not gradients:
        return
    flat = torch.cat([g.flatten() for g in gradients.values()])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    parts = torch.split(flat, [g.numel() for g in gradients.values()])
    for g, part in zip(gradients.values(), parts, strict=True):
        g.copy_(part.view(g.shape))

"""Forward and backward passes of subnetworks, whose gradients are added to those of the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.func import functional_call
from torch.utils._pytree import tree_map

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from torch import Tensor

    Loss = Callable[[Any], Tensor]


class _WithLoss(nn.Module):
    """A network and its loss, which may read what the network's forward has stored."""

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, *arguments: Any) -> tuple[Any, Tensor]:
        output = self.model(*arguments)
        return output, self.loss(output)


def forward(
    model: nn.Module, tensors: Mapping[str, Tensor], arguments: tuple[Any, ...], loss: Loss
) -> tuple[Any, Tensor]:
    """Output and loss of a network with other tensors for its parameters and buffers.

    Its own forward runs, with its hooks; what it stores is of this pass, and so are the weights
    that the loss may look at.
    """
    named = {f"model.{name}": tensor for name, tensor in tensors.items()}
    found: tuple[Any, Tensor] = functional_call(_WithLoss(model, loss), named, arguments)
    return found


@dataclass(frozen=True)
class Masked:
    """A parameter in a subnetwork: a copy in memory of its own, used again by every pass."""

    p: Tensor
    weights: Tensor
    """The copy, zero outside of the subnetwork: what the network is run with."""
    inside: Tensor
    """1 in the subnetwork, else 0."""

    @classmethod
    def like(cls, p: Tensor) -> Masked:
        """The memory for a parameter."""
        inside = torch.empty_like(p, requires_grad=False)
        return cls(p, torch.empty_like(p, requires_grad=p.requires_grad), inside)

    @torch.no_grad()
    def set(self, ranks: Tensor, rank: int) -> Tensor:
        """The weights up to a rank; the last pass that used the memory must be over."""
        torch.le(ranks, rank, out=self.inside)
        torch.mul(self.p, self.inside, out=self.weights.detach())
        return self.weights

    @torch.no_grad()
    def pass_gradient_on(self) -> None:
        """Add the copy's gradient to the parameter's."""
        g, self.weights.grad = self.weights.grad, None
        if g is None:
            return
        if self.p.grad is not None:
            self.p.grad.addcmul_(g, self.inside)
        else:  # in memory as the parameter is
            g = g if g.stride() == self.p.stride() else torch.empty_like(self.p).copy_(g)
            self.p.grad = g.mul_(self.inside)


def add_gradients(value: Tensor, params: Iterable[Tensor], *, average: bool) -> None:
    """Add the gradients of a loss to those that parameters (or copies of them) have.

    Args:
        value: the loss.
        params: those that it may depend on.
        average: whether to take the mean over all processes, as DistributedDataParallel does for
            the whole network, whose hooks must not see these gradients.
    """
    if not average:
        torch.autograd.backward(value)
        return
    params = [p for p in params if p.requires_grad]
    gradients = torch.autograd.grad(value, params, allow_unused=True)
    found = [(p, g) for p, g in zip(params, gradients, strict=True) if g is not None]
    if not found:
        return
    flat = torch.cat([g.flatten() for _, g in found])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    parts = torch.split(flat, [g.numel() for _, g in found])
    for (p, _), part in zip(found, parts, strict=True):
        mean = torch.empty_like(p).copy_(part.view(p.shape))
        p.grad = mean if p.grad is None else p.grad + mean


def detached(output: Any) -> Any:
    """An output, whatever holds its tensors, without its graph."""
    return tree_map(lambda t: t.detach() if isinstance(t, torch.Tensor) else t, output)

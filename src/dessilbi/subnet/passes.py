"""Forward and backward pass of a subnetwork, its gradients kept apart until they are added.

Few weights cost little: where there are kernels for it, weights that are not there are skipped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from dessilbi.lean import LeanPasses, Ranked, available
from dessilbi.lean.functions import images_first, images_last

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor, nn

    from dessilbi.optim._keep import Keeper

_DTYPES = (torch.float32, torch.float64)


class SubnetPasses:
    """The subnetworks of a ranking.

    Args:
        model: the network; the weights of the subnetwork are in place while a pass lasts.
        keepers: by parameter, what is kept at a level.
        highest: the last level that few weights have; up to it, those that are not there are
            skipped, on a CPU with a C++ compiler.
    """

    def __init__(self, model: nn.Module, keepers: Mapping[Tensor, Keeper], highest: int) -> None:
        self._model, self._keepers, self._highest = model, keepers, highest
        self._ranked: dict[Tensor, Ranked] = {}
        if _has_kernels(model):
            self._ranked = {
                p: Ranked(keeper.levels, highest)
                for p, keeper in keepers.items()
                if p.ndim in (2, 4)
            }

    def skips(self, level: int) -> bool:
        """Whether a pass costs what the weights of its level do."""
        return bool(self._ranked) and level <= self._highest

    def backward(
        self,
        level: int,
        arguments: tuple[Any, ...],
        loss: Callable[[Any], Tensor],
        weight: float,
        *,
        average: bool,
    ) -> tuple[Any, Tensor, Callable[[], None]]:
        """Output, loss, and what is left to do: add the gradients to those of the whole network.

        Args:
            level: of the subnetwork.
            arguments: of the network.
            loss: what to make of an output.
            weight: factor of the gradients.
            average: whether to take the mean over all processes.
        """
        ranked = self._ranked if self.skips(level) else {}
        values = {p: p.detach().flatten()[r.index].requires_grad_() for p, r in ranked.items()}
        table = {p: (r.at(level), values[p]) for p, r in ranked.items()}
        if ranked:
            with LeanPasses(table):
                output = self._model(*arguments)
        else:
            output = self._model(*arguments)
        value = loss(output)
        # Also of ranked weights: the network may use them in a way that no kernel knows.
        trained = [p for p in self._model.parameters() if p.requires_grad]
        found = torch.autograd.grad(value * weight, [*values.values(), *trained], allow_unused=True)
        few: dict[Tensor, Tensor] = {
            p: g for p, g in zip(values, found, strict=False) if g is not None
        }
        many: dict[Tensor, Tensor] = {
            p: g for p, g in zip(trained, found[len(values) :], strict=True) if g is not None
        }
        if average:
            average_over_processes(few)
            average_over_processes(many)

        def add() -> None:
            for p, gradient in many.items():
                if p in self._keepers:
                    self._keepers[p].gradient(gradient, level)
                p.grad = gradient if p.grad is None else p.grad + gradient
            for p, gradient in few.items():
                _add_at(p, ranked[p].index, gradient)

        return output.detach(), value.detach(), add


def _has_kernels(model: nn.Module) -> bool:
    fit = (p.device.type == "cpu" and p.dtype in _DTYPES for p in model.parameters())
    return all(fit) and available()


@torch.no_grad()
def _add_at(p: Tensor, index: Tensor, gradient: Tensor) -> None:
    if p.grad is None:
        p.grad = torch.zeros_like(p)
    if p.grad.is_contiguous():
        p.grad.view(-1).index_add_(0, index, gradient)
    else:
        p.grad += p.new_zeros(p.numel()).index_add_(0, index, gradient).view(p.shape)


def side_by_side(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """The same with the images of a batch side by side in memory, as the kernels want them."""
    return tuple(
        images_first(images_last(a))
        if isinstance(a, torch.Tensor) and a.ndim == 4 and a.dtype in _DTYPES
        else a
        for a in arguments
    )


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

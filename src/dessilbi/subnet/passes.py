"""Forward and backward passes of subnetworks, whose gradients are added to those of the others.

Few weights cost little: where there are kernels for it, weights that are not there are skipped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from dessilbi.lean import LeanPasses, NotSkippedError, Ranked, available

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from torch import Tensor, nn

    from dessilbi.optim._keep import Keeper


@dataclass(frozen=True)
class Run:
    """What a pass is made with."""

    arguments: tuple[Any, ...]
    """Of the network."""
    loss: Callable[[Any], Tensor]
    """What to make of an output."""
    weight: float
    """Factor of the gradients."""
    average: bool
    """Whether to take the mean of the gradients over all processes."""
    close: tuple[Any, ...] = ()
    """The arguments with the images of a batch side by side, for passes that skip weights."""


class SubnetPasses:
    """The subnetworks of a ranking.

    Args:
        model: the network.
        keepers: by parameter, what is kept at a level.
        highest: up to these levels, of which the lower ones need shorter lists, weights that are
            not there are skipped; where there are kernels for it.
    """

    def __init__(
        self, model: nn.Module, keepers: Mapping[Tensor, Keeper], highest: Iterable[int]
    ) -> None:
        self._model, self._keepers = model, keepers
        self._highest = sorted(highest) if _fit(model, keepers) else []
        self._others = [p for p in model.parameters() if p not in keepers]
        self._ranked: dict[int, dict[Tensor, Ranked]] = {}

    def skips(self, level: int) -> bool:
        """Whether a pass costs what the weights of its level do; then the network stays whole."""
        return any(level <= highest for highest in self._highest)

    def _lists(self, level: int) -> dict[Tensor, Ranked]:
        highest = next(one for one in self._highest if level <= one)
        if highest not in self._ranked:
            self._ranked[highest] = {
                p: Ranked(keeper.levels, highest) for p, keeper in self._keepers.items()
            }
        return self._ranked[highest]

    def skipping(self, level: int, run: Run) -> tuple[Any, Tensor] | None:
        """A pass that skips what is not there.

        Returns:
            Output and loss; ``None`` if the network uses its weights in ways that the kernels do
            not know, which then holds for all passes of this ranking.
        """
        ranked = self._lists(level)
        values = {
            p: p.detach().flatten().index_select(0, r.index).requires_grad_(p.requires_grad)
            for p, r in ranked.items()
        }
        try:
            with LeanPasses({p: (r.at(level), values[p]) for p, r in ranked.items()}):
                output = self._model(*run.close)
        except NotSkippedError:
            self._highest = []
            return None
        value = run.loss(output)
        for p, gradient in self._gradients(value, values, run):
            _add_at(p, ranked[p].index, gradient)
        return output.detach(), value.detach()

    def masked(self, level: int, run: Run) -> tuple[Any, Tensor]:
        """A pass of the whole network, the weights of the subnetwork in place."""
        output = self._model(*run.arguments)
        value = run.loss(output)
        for p, gradient in self._gradients(value, {p: p for p in self._keepers}, run):
            self._keepers[p].gradient(gradient, level)
            p.grad = gradient if p.grad is None else p.grad + gradient
        return output.detach(), value.detach()

    def _gradients(
        self, value: Tensor, leaves: Mapping[Tensor, Tensor], run: Run
    ) -> list[tuple[Tensor, Tensor]]:
        """Those of ranked weights, which are seen as leaves; others are added where they belong."""
        seen = {p: leaf for p, leaf in leaves.items() if leaf.requires_grad}
        seen |= {p: p for p in self._others if p.requires_grad}
        found = torch.autograd.grad(value * run.weight, [*seen.values()], allow_unused=True)
        known = {p: g for p, g in zip(seen, found, strict=True) if g is not None}
        if run.average:
            average_over_processes(known)
        for p, gradient in known.items():
            if p not in self._keepers:
                p.grad = gradient if p.grad is None else p.grad + gradient
        return [(p, gradient) for p, gradient in known.items() if p in self._keepers]


def _fit(model: nn.Module, keepers: Iterable[Tensor]) -> bool:
    """Whether there are kernels: for linear layers and convolutions, on a CPU with a compiler."""
    return all(p.ndim in (2, 4) for p in keepers) and available(model.parameters())


@torch.no_grad()
def _add_at(p: Tensor, index: Tensor, gradient: Tensor) -> None:
    if p.grad is None:
        p.grad = torch.zeros_like(p)
    if p.grad.is_contiguous():
        p.grad.view(-1).index_add_(0, index, gradient)
    else:
        p.grad += p.new_zeros(p.numel()).index_add_(0, index, gradient).view(p.shape)


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

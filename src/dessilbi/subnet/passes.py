"""Forward and backward passes of subnetworks, whose gradients are added to those of the others.

Few weights cost little: where there are kernels for it, weights that are not there are skipped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from dessilbi.lean import Ranked

from .levels import FULL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from torch import Tensor, nn

    from dessilbi.lean import Pass, Program, Programs
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
    program: Program | None
    """What the network does, by the lean kernels; ``None`` if torch has to run it."""
    batch: Tensor | None
    """The argument as the program takes it."""

    own: bool
    """Whether the program may run the whole network, too: a wrapper may do more than call it."""

    @classmethod
    def make(
        cls,
        programs: Programs,
        step: int,
        x: Any,
        loss: Callable[[Any], Tensor],
        weight: float,
        net: nn.Module | None,
    ) -> Run:
        """The run of a step.

        Args:
            programs: of the network.
            step: its number.
            x: the batch, or a tuple of arguments.
            loss: what to make of an output.
            weight: factor of all gradients.
            net: the network as it is to be called, if it is wrapped.
        """
        arguments = x if isinstance(x, tuple) else (x,)
        program = programs.get(arguments, step)
        return cls(
            arguments=arguments,
            loss=loss,
            weight=weight,
            average=isinstance(net, DistributedDataParallel),
            program=program,
            batch=None if program is None else program.enter(arguments[0]),
            own=program is not None and (net is None or net is programs.model),
        )

    def through(self, net: nn.Module) -> tuple[Any, Tensor]:
        """A pass as torch makes it, which adds its gradients: output and loss."""
        output = net(*self.arguments)
        value = self.loss(output)
        torch.autograd.backward(value * self.weight)
        return output.detach(), value.detach()


def backward_through(
    done: Pass,
    run: Run,
    share: float = 1.0,
    others: Callable[[Tensor], Tensor] | None = None,
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """The loss and the backward pass of a program's forward pass.

    Args:
        done: the forward pass.
        run: with the loss.
        share: of the loss in what gradients are of.
        others: what else they are of: its gradient by the output.

    Returns:
        Output, loss, and the gradients of weights that took part.
    """
    output = done.output.detach().requires_grad_()
    value = run.loss(output)
    # Also what else the loss depends on and asks for gradients gets them, as ever.
    torch.autograd.backward(value * (run.weight * share))
    output, gradient = output.detach(), output.grad
    if others is not None:
        more = others(output) * run.weight
        gradient = more if gradient is None else gradient + more
    return output, value.detach(), {} if gradient is None else done.backward(gradient)


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
        self._params = dict(model.named_parameters())
        self._highest = sorted(highest)
        self._others = [p for p in model.parameters() if p not in keepers]
        self._ranked: dict[int, dict[Tensor, Ranked]] = {}

    def _highest_for(self, level: int) -> int | None:
        return next((one for one in self._highest if level <= one), None)

    def _lists(self, level: int, program: Program) -> dict[Tensor, Ranked]:
        """The weights up to a level that a program can do without the others of."""
        highest = self._highest_for(level)
        if highest is None:
            return {}
        if highest not in self._ranked:
            self._ranked[highest] = {
                p: Ranked(self._keepers[p].levels, highest)
                for name, p in self._params.items()
                if p in self._keepers and name in program.skippable
            }
        return self._ranked[highest]

    def by_program(self, level: int, run: Run, *, remember: bool) -> tuple[Any, Tensor]:
        """A pass by the lean kernels; what is not there costs nothing where it is much.

        Args:
            level: of the subnetwork.
            run: with a program.
            remember: whether running statistics of BatchNorm follow.
        """
        program, batch = run.program, run.batch
        assert program is not None
        assert batch is not None
        ranked = self._lists(level, program)
        weights: dict[str, Any] = {}
        for name, p in self._params.items():
            if level == FULL or p not in self._keepers:
                weights[name] = p.detach()
            elif p in ranked:
                weights[name] = ranked[p].moving.to(level, p.detach())
            else:
                weights[name] = self._keepers[p].weights(p.detach(), level)
        wanted = [name for name, p in self._params.items() if p.requires_grad]
        again = ("whole",) if level == FULL else ("masked", self._highest_for(level))
        done = program.run(batch, weights, wanted, remember=remember, again=again)
        output, value, gradients = backward_through(done, run)
        if run.average:
            average_over_processes(gradients)
        for name, gradient in gradients.items():
            p = self._params[name]
            if level < FULL and p in ranked:
                _add_at(p, ranked[p].index, gradient)
                continue
            if level < FULL and p in self._keepers:
                self._keepers[p].gradient(gradient, level)
            p.grad = gradient if p.grad is None else p.grad + gradient
        return output, value

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

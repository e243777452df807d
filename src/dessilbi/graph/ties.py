"""Which slices of which parameters must leave a network together."""

from __future__ import annotations

from collections import defaultdict
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from .analysis import Analysis
from .matrix_layers import GroupedConvolution, MatrixLayer
from .steps import Opaque, PerChannel
from .tracing import as_arguments, refuse_hidden_code, trace

if TYPE_CHECKING:
    from torch import Tensor, nn

    from .channels import Flow


@dataclass(frozen=True, eq=False)
class Member:
    """Slices of one parameter, some for each channel of a tied set."""

    parameter: str
    """As ``model.named_parameters()`` calls it."""
    dim: int
    """Dimension that the slices are taken of: 0 writes channels, 1 reads them."""
    index: Tensor
    """Channels by slices: which slices belong to each channel. More than one after a flatten."""


@dataclass(frozen=True, eq=False)
class Tied:
    """Channels that are written, scaled and read by the same parameters."""

    channels: int
    members: tuple[Member, ...]
    free: bool
    """Whether they may leave: the network's inputs and outputs, and operations that are not known
    channel by channel, hold theirs."""


def tied_channels(model: nn.Module, example_input: Any) -> list[Tied]:
    """The sets of channels of a network, each with all parameter slices that go with a channel.

    A filter of a convolution, its bias and BatchNorm parameters, and the weights of the next layers
    that read it are one channel. Residual sums tie the channels of all layers that write to the
    stream. Depends on the architecture only, not on values.

    Args:
        model: the network; it is not changed.
        example_input: a batch, or a tuple of arguments whose first is one.

    Example:
        >>> net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 2, 3))
        >>> pixels, hidden, outputs = tied_channels(net, torch.zeros(1, 1, 8, 8))
        >>> [(m.parameter, m.dim) for m in hidden.members]
        [('0.weight', 0), ('0.bias', 0), ('1.weight', 0), ('1.bias', 0), ('2.weight', 1)]
    """
    refuse_hidden_code(model)
    arguments = as_arguments(example_input)
    analysis = Analysis(trace(deepcopy(model).eval(), arguments), constants=False)
    roots = analysis.classes.roots()
    slices: dict[int, dict[tuple[str, int], list[int]]] = defaultdict(dict)
    held: set[int] = set()

    def add(flow: Flow, parameter: str, dim: int) -> None:
        for index, root in enumerate(roots[flow.ids].tolist()):
            slices[root].setdefault((parameter, dim), []).append(index)

    for step in analysis.steps.values():
        name = str(step.node.target)
        if isinstance(step, MatrixLayer):
            if step.tracked and not isinstance(step, GroupedConvolution):
                add(step.source, f"{name}.weight", 1)
            add(step.output, f"{name}.weight", 0)
            if step.weights.has_bias:
                add(step.output, f"{name}.bias", 0)
            if isinstance(step, GroupedConvolution) and step.source.ids is not step.output.ids:
                # Groups must stay equal: no channel of theirs can go alone.
                held.update(roots[torch.cat([step.source.ids, step.output.ids])].tolist())
            elif not step.tracked:
                held.update(roots[step.source.ids].tolist())
        elif isinstance(step, PerChannel):
            for own, _ in step.module.named_parameters():
                add(step.channels, f"{name}.{own}", 0)
        elif isinstance(step, Opaque):
            for flow in [*step.sources, *([] if step.flow is None else [step.flow])]:
                held.update(roots[flow.ids].tolist())
    return _alike(slices, held)


def _alike(slices: dict[int, dict[tuple[str, int], list[int]]], held: set[int]) -> list[Tied]:
    """Channels with the same parameters as one set, in the order of the network."""
    sets: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for root in sorted(slices):
        found = slices[root]
        key = (root in held, *((*where, len(index)) for where, index in found.items()))
        sets[key].append(root)
    return [
        Tied(
            len(roots),
            tuple(
                Member(parameter, dim, torch.tensor([slices[r][parameter, dim] for r in roots]))
                for parameter, dim in slices[roots[0]]
            ),
            free=not key[0],
        )
        for key, roots in sets.items()
    ]

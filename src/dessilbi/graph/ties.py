"""Which slices of which parameters must leave a network together."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from .analysis import Analysis
from .copies import copied
from .example import Example
from .matrix import GroupedConvolution, Matrix
from .reading import read, refuse_hidden_code

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True, eq=False)
class Member:
    """Slices of one parameter, some for each channel of a tied set."""

    parameter: str
    """As ``model.named_parameters()`` calls it."""
    dim: int
    """Dimension that the slices are taken of: of a convolution's or linear layer's weight, 0 writes
    channels and 1 reads them."""
    index: Tensor
    """Channels by slices: which slices belong to each channel. More than one after a flatten, and
    for the heads of an attention layer."""


@dataclass(frozen=True, eq=False)
class Tied:
    """Channels, neurons or heads that are written, scaled and read by the same parameters."""

    channels: int
    members: tuple[Member, ...]
    free: bool
    """Whether they may leave: the network's inputs and outputs, and operations that are not known
    channel by channel, hold theirs."""
    writers: frozenset[str]
    """Weights that write these channels, by name."""


def tied_channels(model: nn.Module, example_input: Any, *, blocks: bool = False) -> list[Tied]:
    """The sets of channels of a network, each with all parameter slices that go with a channel.

    A filter of a convolution, its bias and BatchNorm parameters, and the weights of the next layers
    that read it are one channel. Residual sums tie the channels of all layers that write to the
    stream. Depends on the architecture only, not on values.

    Args:
        model: the network; it is not changed.
        example_input: a batch, a tuple of arguments whose first is one, or a dict of keyword
            arguments.
        blocks: whether channels that leave in blocks of several filters are free as well: heads of
            attention layers, groups of grouped convolutions and of GroupNorm. Code that names their
            number must then be told of it.

    Example:
        >>> net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 2, 3))
        >>> pixels, hidden, outputs = tied_channels(net, torch.zeros(1, 3, 8, 8))
        >>> [(m.parameter, m.dim) for m in hidden.members]
        [('0.weight', 0), ('0.bias', 0), ('1.weight', 0), ('1.bias', 0), ('2.weight', 1)]
    """
    refuse_hidden_code(model)
    example = Example.of(example_input)
    model = copied(model).eval()
    network = read(model, example.at_least_two(model))
    analysis = Analysis(network, constants=False)
    roots = analysis.classes.roots()
    held = analysis.classes.held(roots)
    names = {id(p): name for name, p in model.named_parameters()}
    slices: dict[int, dict[tuple[str, int], list[int]]] = defaultdict(dict)
    grouped: set[str] = set()
    kernels: set[str] = set()
    writers: dict[int, set[str]] = defaultdict(set)
    for step in analysis.steps.values():
        if not isinstance(step, Matrix) or step.leaf is None:
            continue
        for root in roots[step.written].tolist():
            writers[root].add(names.get(id(step.leaf.tensor), ""))
        kernels.add(step.leaf.name)
        if isinstance(step, GroupedConvolution):
            grouped.add(step.leaf.name)
    for leaf in analysis.leaves.values():
        name = names.get(id(leaf.tensor))
        if name is None:
            continue
        for dim in range(leaf.tensor.ndim):
            ids = leaf.ids[dim]
            if ids is None or (leaf.name in kernels and dim > 1):
                continue
            if dim == 1 and leaf.name in grouped:
                continue
            for index, root in enumerate(roots[ids].tolist()):
                slices[root].setdefault((name, dim), []).append(index)
    ndim = {name: p.ndim for name, p in model.named_parameters()}
    return _alike(slices, held, writers, ndim, blocks)


def _alike(
    slices: dict[int, dict[tuple[str, int], list[int]]],
    held: Tensor,
    writers: dict[int, set[str]],
    ndim: dict[str, int],
    blocks: bool,
) -> list[Tied]:
    """Channels with the same parameters as one set, in the order of the network."""
    sets: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for root in sorted(slices):
        found = slices[root]
        free = not bool(held[root]) and (blocks or _are_filters(found, writers[root], ndim))
        key = (free, *((*where, len(index)) for where, index in found.items()))
        sets[key].append(root)
    return [
        Tied(
            len(roots),
            tuple(
                Member(parameter, dim, torch.tensor([slices[r][parameter, dim] for r in roots]))
                for parameter, dim in slices[roots[0]]
            ),
            free=bool(key[0]),
            writers=frozenset(writers[roots[0]]),
        )
        for key, roots in sets.items()
    ]


def _are_filters(
    found: dict[tuple[str, int], list[int]], writers: set[str], ndim: dict[str, int]
) -> bool:
    """Whether one row of each weight writes a channel, and columns read it."""
    return all((name, 0) in found for name in writers if name) and all(
        (dim == 1 and ndim[name] > 1) or (len(index) == 1 and (name in writers or ndim[name] == 1))
        for (name, dim), index in found.items()
    )

"""Weights that leave a network together as one group of Gamma, found by its graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from dessilbi.graph.ties import tied_channels

if TYPE_CHECKING:
    from torch import Tensor, nn

    from dessilbi.graph.ties import Member, Tied


def tied_weights(
    model: nn.Module, example_input: Any
) -> tuple[list[list[str]], list[dict[str, int]]]:
    """Sets of weights whose slices are one channel each, by name.

    Returns:
        Filters: slice i along dimension 0 of all weights of a set writes channel i. And neurons of
        hidden layers, each with the dimension of its weights: rows of those that write them (up and
        gate), columns of the one that reads them (down).

    Channels that cannot leave are left out, and so are sets to which a weight belongs with a part
    of its slices only (a concatenation) or in another order.
    """
    weights: dict[str, Tensor] = {n: p for n, p in model.named_parameters() if p.ndim > 1}
    filters, neurons = [], []
    sets = [one for one in tied_channels(model, example_input, blocks=True) if one.free]
    anywhere = [(m.parameter, m.dim) for one in sets for m in one.members]
    for one in sets:
        members = [m for m in one.members if m.parameter in weights]
        if hidden := _neurons(one, members, weights, anywhere):
            neurons.append(hidden)
            continue
        writers = [m for m in members if m.dim == 0 and m.parameter in one.writers]
        if len(writers) > 1 and _one_slice_each(one, writers, weights):
            filters.append([m.parameter for m in writers])
    return filters, neurons


def _one_slice_each(one: Tied, members: list[Member], weights: dict[str, Tensor]) -> bool:
    return all(
        m.index.shape[1] == 1
        and torch.equal(m.index, members[0].index)
        and one.channels == weights[m.parameter].shape[m.dim]
        for m in members
    )


def _neurons(
    one: Tied,
    members: list[Member],
    weights: dict[str, Tensor],
    anywhere: list[tuple[str, int]],
) -> dict[str, int]:
    """A hidden layer between two streams that stay: each matrix takes part with one dimension."""
    matrices = all(weights[m.parameter].ndim == 2 for m in members)
    names = {m.parameter for m in members}
    once = all(sum(name == n for n, _ in anywhere) == 1 for name in names)
    read = bool(names - one.writers)
    if len(members) < 2 or not (
        matrices and once and read and _one_slice_each(one, members, weights)
    ):
        return {}
    return {m.parameter: m.dim for m in members}

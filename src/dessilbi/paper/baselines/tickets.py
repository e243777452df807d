"""Masks to retrain from the same initialisation: one-shot magnitude, SGD-lottery and random.

Liu, Sun, Zhou, Huang, Darrell: Rethinking the Value of Network Pruning. ICLR 2019.
Frankle, Carbin: The Lottery Ticket Hypothesis. ICLR 2019.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from dessilbi.graph.names import named_weights
from dessilbi.path import Mask
from dessilbi.path.names import weights_with_twin

if TYPE_CHECKING:
    from torch import Tensor, nn


def one_shot(model: nn.Module, density: float) -> Mask:
    """Rethinking-Lottery: the largest weights of a trained network, over all layers."""
    return Mask.magnitude(model, density, scope="global")


@torch.no_grad()
def largest_as(model: nn.Module, ticket: Mask) -> Mask:
    """SGD-lottery: of each layer the largest weights, as many as a ticket keeps there.

    Where the ticket keeps or drops whole filters, whole filters are chosen, by their norm.
    """
    weights = named_weights(model)
    ticket.check(model)
    return Mask({name: _largest(weights[name], ticket[name]) for name in ticket.names})


def _largest(weight: Tensor, like: Tensor) -> Tensor:
    by_filter = whole_filters(like)
    sizes = weight.detach().flatten(1).norm(dim=1) if by_filter else weight.detach().abs().flatten()
    count = int(like.flatten(1).any(1).sum()) if by_filter else int(like.sum())
    kept = torch.zeros(len(sizes), dtype=torch.bool)
    kept[torch.argsort(sizes.cpu(), descending=True, stable=True)[:count]] = True
    if by_filter:
        return kept.reshape(-1, *[1] * (weight.ndim - 1)).expand(weight.shape)
    return kept.reshape(weight.shape)


def random_as(ticket: Mask, seed: int) -> Mask:
    """Drawn at random with the layer densities of a ticket, by filter where the ticket is."""
    return Mask.random(
        ticket,
        layer_densities=ticket.layer_densities(),
        group_dims={name: 0 for name in ticket.names if whole_filters(ticket[name])},
        generator=torch.Generator().manual_seed(seed),
    )


def whole_filters(kept: Tensor) -> bool:
    """Whether a convolution's mask keeps or drops every filter as a whole."""
    if kept.ndim < 3:
        return False
    rows = kept.flatten(1)
    return bool((rows.all(1) | ~rows.any(1)).all())


def density(mask: Mask, model: nn.Module) -> float:
    """Fraction of the weights that may have a twin that a mask keeps; those it does not name stay.

    Masks of different methods name different parameters; this is the number to compare them by.
    """
    weights = weights_with_twin(model)
    kept = sum(
        int(mask[name].sum()) if name in mask.names else w.numel() for name, w in weights.items()
    )
    return kept / sum(w.numel() for w in weights.values())

"""Which groups belong to which budget: a rank for each group, found without sorting.

Budgets from ``min_density`` to 1 lie on a grid of :data:`BUDGETS` densities, equally spaced in
their logarithm. A group's budget rank is the number of the first of them that has room for it when
groups are taken by their score; the network of a budget is every group at or below its number, so
networks are nested.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from dessilbi.optim.dtensor import is_dtensor
from dessilbi.path.sharded import placed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from dessilbi.path import Layer

BUDGETS = 255
"""Neighbouring budgets from 0.4 % on differ by 2 %, less than a point of accuracy can tell."""
WHOLE = BUDGETS - 1
"""The rank of the whole network."""

# The upper half of a float32, without its sign: scores that agree in 8 bits of the mantissa
# (0.4 %) share a bin. Counting bins is ten times faster than sorting, and ranks as well.
_BINS, _SHIFT = 1 << 16, 15


def density_of(rank: int, min_density: float) -> float:
    """The budget of a rank."""
    return float(min_density ** (1 - rank / WHOLE))


def rank_of(density: float, min_density: float) -> int:
    """The rank whose budget is nearest to a density, seen as factors."""
    position = 1 - np.log(max(density, min_density)) / np.log(min_density)
    return round(float(np.clip(position, 0, 1)) * WHOLE)


@torch.no_grad()
def budget_ranks(
    scores: Sequence[Tensor], layers: Sequence[Layer], min_density: float, min_groups: int
) -> list[Tensor]:
    """The budget rank of each group, as uint8 tensors shaped as the scores.

    Args:
        scores: by layer, one number >= 0 a group; larger is taken earlier, over all layers.
        layers: what a group costs: its number of weights.
        min_density: density of rank 0.
        min_groups: groups of each layer that are in every budget, the best of it.
    """
    bins = [score.float().view(torch.int32) >> _SHIFT & (_BINS - 1) for score in scores]
    weights = np.zeros(_BINS)
    for b, layer in zip(bins, layers, strict=True):
        counts = torch.bincount(b.flatten(), minlength=_BINS).cpu().numpy()
        weights += counts * layer.group_size
    total = sum(layer.numel for layer in layers)
    # The bins from the top down, and the share of the weights in each and all above it.
    needed = np.cumsum(weights[::-1]) / total
    grid = np.array([density_of(rank, min_density) for rank in range(WHOLE)])
    room = np.searchsorted(needed, grid, side="right")  # bins that a budget has room for
    from_top = np.repeat(np.arange(BUDGETS, dtype=np.uint8), np.diff(room, prepend=0, append=_BINS))
    table = torch.from_numpy(from_top[::-1].copy())
    ranks = []
    for score, b in zip(scores, bins, strict=True):
        rank = torch.empty_like(score, dtype=torch.uint8)
        rank.copy_(table.to(b.device)[b])
        best = score.flatten().topk(min(min_groups, score.numel())).indices
        rank[torch.unravel_index(best, rank.shape)] = 0
        ranks.append(rank)
    return ranks


def by_weight(layer: Layer, ranks: Tensor, p: Tensor) -> Tensor:
    """The ranks of a layer's groups, one number a weight, in memory as the weights are."""
    if is_dtensor(p):
        return placed(layer.expand(ranks) if layer.group_dim is not None else ranks, p)
    if layer.group_dim is None:
        return ranks
    return torch.empty_like(p, dtype=torch.uint8, requires_grad=False).copy_(layer.expand(ranks))


def cumulative_share(weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """By rank, the share of all weights at or below it."""
    return np.asarray(np.cumsum(weights) / weights.sum())

"""The strongest groups that a size has room for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from dessilbi.path.layers import tied_sets

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from dessilbi.path import Layer

    from .compact_size import CompactSize

_ROUNDING = 1e-9
"""Sizes are sums of floats."""


@torch.no_grad()
def best_groups(
    ranking: Sequence[Tensor],
    layers: Sequence[Layer],
    size: CompactSize,
    target: float,
    min_groups: int,
) -> list[Tensor]:
    """By layer, which groups stay: taken by their strength until the next one is too large.

    Then smaller ones further down are taken, until none fits any more.

    Args:
        ranking: by layer, a number for each group; those of tied layers are the same.
        layers: what is ranked.
        size: of what stays.
        target: as a fraction of the whole size.
        min_groups: groups of each layer that stay in any case.
    """
    numbers = {layer.name: i for i, layer in enumerate(layers)}
    sets = [[numbers[layer.name] for layer in tied] for tied in tied_sets(layers)]
    flat = [ranking[first].flatten().cpu().clone() for first, *_ in sets]
    for one in flat:
        one[one.topk(min(min_groups, len(one))).indices] = torch.inf
    strength, counts = torch.cat(flat), torch.tensor([len(one) for one in flat])
    ranked = torch.argsort(strength, descending=True, stable=True)
    limit = target * size.total * (1 + _ROUNDING)
    kept = strength == torch.inf

    def by_layer() -> list[Tensor]:
        parts = torch.split(kept, counts.tolist())
        found = {i: part for tied, part in zip(sets, parts, strict=True) for i in tied}
        return [found[i] for i in range(len(layers))]

    def fits(groups: Tensor) -> bool:
        before = kept[groups]
        kept[groups] = True
        found = size(by_layer()) <= limit
        kept[groups] = before
        return found

    prices = {sum(size.price(i) for i in tied) for tied in sets}
    if size.additive and len(prices) == 1:  # millions of single weights
        kept[ranked[: int(limit / prices.pop())]] = True
        return by_layer()
    low, high = 0, len(ranked)  # the size grows with the groups that stay
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(ranked[:middle]) else (low, middle - 1)
    kept[ranked[:low]] = True
    owner, full = torch.arange(len(sets)).repeat_interleave(counts), set[int]()
    for group in ranked[low:].tolist():
        if int(owner[group]) in full:
            continue  # its groups are all of a size
        if fits(torch.tensor([group])):
            kept[group] = True
        else:
            full.add(int(owner[group]))
        if len(full) == len(sets):
            break
    return by_layer()

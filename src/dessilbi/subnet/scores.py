"""What a group weighs when groups of different layers are compared."""

from __future__ import annotations

import math
from types import MappingProxyType
from typing import TYPE_CHECKING

import torch

from dessilbi.path.layers import tied_sets

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from dessilbi.path import Layer


@torch.no_grad()
def scores(
    weights: Mapping[str, Tensor],
    layers: Sequence[Layer],
    per_layer: bool | None = None,
    prices: Mapping[str, float] = MappingProxyType({}),
) -> list[Tensor]:
    """By layer, a number >= 0 for each group; larger is kept longer. Tied groups have the same.

    Args:
        weights: by the layer's name.
        layers: what is ranked.
        per_layer: ``True`` ranks each layer for itself, so that every layer keeps the same fraction
            of its groups; ``False`` compares all by the root mean square of their weights; ``None``
            is ``True`` if there are filters. A BatchNorm behind a filter undoes its norm, which
            then says little about other layers, and one narrow layer chokes the whole network.
        prices: by the layer's name, what its scores are divided by; 1 if it is not named.
    """
    if per_layer is None:
        per_layer = any(layer.exact for layer in layers)
    found: dict[str, Tensor] = {}
    for tied in tied_sets(layers):
        score = _joint([_magnitudes(weights[layer.name], layer) for layer in tied], tied)
        score = score / (sum(prices.get(layer.name, 1.0) for layer in tied) / len(tied))
        found |= {layer.name: rank_shares(score) if per_layer else score for layer in tied}
    return [found[layer.name] for layer in layers]


def _joint(magnitudes: list[Tensor], tied: Sequence[Layer]) -> Tensor:
    """Root mean squares of the weights of tied groups, from those of the layers."""
    if len(tied) == 1:
        return magnitudes[0]
    size = sum(layer.group_size for layer in tied)
    squares = [
        m.square() * (layer.group_size / size) for m, layer in zip(magnitudes, tied, strict=True)
    ]
    return torch.stack(squares).sum(0).sqrt()


def _magnitudes(W: Tensor, layer: Layer) -> Tensor:
    """|W| by element, shaped as W, or the root mean square of each group's weights."""
    W = W.detach()
    if layer.group_dim is None:
        return W.abs()
    return layer.norms(W) / math.sqrt(max(layer.group_size, 1))


def rank_shares(score: Tensor) -> Tensor:
    """From 1 for the largest down to 1/n for the smallest."""
    ranked = score.flatten().argsort(descending=True, stable=True)
    rank_shares = torch.empty(len(ranked), dtype=torch.float32, device=score.device)
    n = len(ranked)
    rank_shares[ranked] = torch.arange(n, 0, -1, dtype=torch.float32, device=score.device) / n
    return torch.empty_like(score, dtype=torch.float32).copy_(rank_shares.view(score.shape))

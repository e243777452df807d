"""Masks that know nothing of a path: random, and by magnitude."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Generator, Tensor


def most_weights(density: float, total: int) -> int:
    """The largest n with ``n / total <= density``: what a density allows, rounding or not."""
    n = min(int(density * total) + 1, total)
    while n > 0 and n / total > density:
        n -= 1
    return n


def random(
    shapes: Mapping[str, tuple[int, ...]],
    density: float | None,
    layer_densities: Mapping[str, float] | None,
    group_dims: Mapping[str, int],
    generator: Generator | None,
) -> dict[str, Tensor]:
    """Tensors drawn at random; a budget for all of them, or one each."""
    if (density is None) == (layer_densities is None):
        raise ValueError("give either density or layer_densities")
    if layer_densities is None:
        assert density is not None
        return _draw(shapes, _checked(density), group_dims, generator)
    missing = [name for name in shapes if name not in layer_densities]
    if missing:
        raise ValueError(f"layer_densities lacks parameter {missing[0]!r}")
    drawn: dict[str, Tensor] = {}
    for name, shape in shapes.items():
        drawn |= _draw({name: shape}, _checked(layer_densities[name]), group_dims, generator)
    return drawn


def _draw(
    shapes: Mapping[str, tuple[int, ...]],
    density: float,
    group_dims: Mapping[str, int],
    generator: Generator | None,
) -> dict[str, Tensor]:
    """Shuffle all groups and keep them until the first that does not fit."""
    counts = [_groups(shape, group_dims.get(name)) for name, shape in shapes.items()]
    sizes = [math.prod(s) // max(n, 1) for s, n in zip(shapes.values(), counts, strict=True)]
    limit = most_weights(density, sum(math.prod(shape) for shape in shapes.values()))
    cost = torch.repeat_interleave(torch.tensor(sizes), torch.tensor(counts))
    shuffled = torch.randperm(len(cost), generator=generator)
    kept = torch.zeros(len(cost), dtype=torch.bool)
    kept[shuffled[cost[shuffled].cumsum(0) <= limit]] = True
    return {
        name: _expanded(part, shape, group_dims.get(name))
        for (name, shape), part in zip(shapes.items(), torch.split(kept, counts), strict=True)
    }


def magnitude(weights: Mapping[str, Tensor], density: float, scope: str) -> dict[str, Tensor]:
    """The largest weights: of all tensors, or of each."""
    _checked(density)
    if scope not in ("global", "layer"):
        raise ValueError(f"scope must be 'global' or 'layer', got {scope!r}")
    if scope == "layer":
        return {name: _largest([w], density)[0] for name, w in weights.items()}
    return dict(zip(weights, _largest(list(weights.values()), density), strict=True))


def _largest(weights: Sequence[Tensor], density: float) -> list[Tensor]:
    if not weights:
        return []
    sizes = torch.cat([w.detach().abs().flatten().cpu() for w in weights])
    ranked = torch.argsort(sizes, descending=True, stable=True)
    kept = torch.zeros(len(sizes), dtype=torch.bool)
    kept[ranked[: most_weights(density, len(sizes))]] = True
    parts = torch.split(kept, [w.numel() for w in weights])
    return [part.reshape(w.shape) for part, w in zip(parts, weights, strict=True)]


def _groups(shape: tuple[int, ...], dim: int | None) -> int:
    return math.prod(shape) if dim is None else shape[dim]


def _expanded(kept: Tensor, shape: tuple[int, ...], dim: int | None) -> Tensor:
    if dim is None:
        return kept.reshape(shape)
    slices = [n if d == dim % len(shape) else 1 for d, n in enumerate(shape)]
    return kept.reshape(slices).expand(shape)


def _checked(density: float) -> float:
    if not 0 <= density <= 1:
        raise ValueError(f"density must be from 0 to 1, got {density!r}")
    return density

"""Levels: a ranking by counting bins must be the ranking that sorting gives."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dessilbi.nested.levels import FULL, LEVELS, density_of, level_of, rank
from dessilbi.path.layers import make_layers

LAYERS = make_layers([("a", (30, 20), None), ("b", (16, 9), 0), ("c", (4, 12), 1)])


def scores(seed: int, spread: float = 2.0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = [(30, 20), (16,), (12,)]
    return [torch.randn(s, generator=generator).mul(spread).exp() for s in shapes]


def kept_weights(levels: list[torch.Tensor], level: int) -> int:
    return sum(
        int((lv <= level).sum()) * layer.group_size
        for lv, layer in zip(levels, LAYERS, strict=True)
    )


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1000), lowest=st.sampled_from([0.004, 0.05, 0.3]))
def test_every_level_is_the_prefix_that_sorting_gives(seed: int, lowest: float) -> None:
    by_layer = scores(seed)
    levels = rank(by_layer, LAYERS, lowest, floor=0)
    flat = torch.cat([s.flatten() for s in by_layer]).double()
    cost = torch.cat(
        [
            torch.full((layer.groups,), float(layer.group_size), dtype=torch.float64)
            for layer in LAYERS
        ]
    )
    level = torch.cat([lv.flatten() for lv in levels])
    total = float(cost.sum())
    for at in range(0, LEVELS, 17):
        inside = level <= at
        assert float(cost[inside].sum()) <= density_of(at, lowest) * total + 1e-6
        if inside.any() and not inside.all():
            # Scores within a bin, 0.8 % wide at most, count as equal.
            assert float(flat[inside].min()) >= 0.99 * float(flat[~inside].max())
        if not inside.all():
            # The next bin would not have fitted.
            best = float(flat[~inside].max())
            alike = ~inside & (flat >= 0.99 * best)
            needed = float(cost[inside].sum() + cost[alike].sum())
            assert needed >= density_of(at, lowest) * total - 1e-6
    assert (level <= FULL).all()


def test_the_best_groups_of_each_layer_are_in_every_budget() -> None:
    by_layer = scores(0)
    by_layer[1] *= 1e-6  # a layer that would vanish
    levels = rank(by_layer, LAYERS, 0.01, floor=2)
    for score, level in zip(by_layer, levels, strict=True):
        best = score.flatten().topk(2).indices
        assert (level.flatten()[best] == 0).all()
    without = rank(by_layer, LAYERS, 0.01, floor=0)
    assert (without[1] > 0).all()


def test_scores_of_zero_and_ties_are_ranked_without_fault() -> None:
    by_layer = [torch.zeros(30, 20), torch.ones(16), torch.ones(12)]
    levels = rank(by_layer, LAYERS, 0.1, floor=0)
    assert (levels[0] == FULL).all()
    assert len(set(levels[1].tolist() + levels[2].tolist())) == 1
    assert kept_weights(levels, FULL) == sum(layer.numel for layer in LAYERS)


def test_memory_layout_is_kept() -> None:
    by_layer = scores(3)
    by_layer[0] = by_layer[0].t().contiguous().t()
    levels = rank(by_layer, LAYERS, 0.01, floor=1)
    assert levels[0].stride() == by_layer[0].stride()
    plain = rank([by_layer[0].contiguous(), *by_layer[1:]], LAYERS, 0.01, floor=1)
    assert torch.equal(levels[0], plain[0])


@pytest.mark.parametrize("lowest", [0.001, 0.004, 0.25])
def test_levels_and_densities_are_inverse(lowest: float) -> None:
    for level in range(LEVELS):
        assert level_of(density_of(level, lowest), lowest) == level
    assert density_of(0, lowest) == pytest.approx(lowest)
    assert density_of(FULL, lowest) == 1
    assert level_of(lowest / 10, lowest) == 0
    assert np.all(np.diff([density_of(level, lowest) for level in range(LEVELS)]) > 0)

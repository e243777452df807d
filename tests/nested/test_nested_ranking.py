"""Budget ranks: a ranking by counting bins must be the ranking that sorting gives."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from dessilbi import DessiLBI, split_parameters
from dessilbi.nested.ranking import (
    BUDGETS,
    WHOLE,
    budget_ranks,
    density_of,
    rank_of,
)
from dessilbi.path.layers import make_layers
from dessilbi.path.twins import ranked_weights

LAYERS = make_layers([("a", (30, 20), None), ("b", (16, 9), 0), ("c", (4, 12), 1)])


def scores(seed: int, spread: float = 2.0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = [(30, 20), (16,), (12,)]
    return [torch.randn(s, generator=generator).mul(spread).exp() for s in shapes]


def kept_weights(ranks: list[torch.Tensor], rank: int) -> int:
    return sum(
        int((one <= rank).sum()) * layer.group_size
        for one, layer in zip(ranks, LAYERS, strict=True)
    )


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1000), smallest=st.sampled_from([0.004, 0.05, 0.3]))
def test_every_rank_is_the_prefix_that_sorting_gives(seed: int, smallest: float) -> None:
    by_layer = scores(seed)
    ranks = budget_ranks(by_layer, LAYERS, smallest, min_groups=0)
    flat = torch.cat([s.flatten() for s in by_layer]).double()
    cost = torch.cat(
        [
            torch.full((layer.groups,), float(layer.group_size), dtype=torch.float64)
            for layer in LAYERS
        ]
    )
    rank = torch.cat([one.flatten() for one in ranks])
    total = float(cost.sum())
    for at in range(0, BUDGETS, 17):
        inside = rank <= at
        assert float(cost[inside].sum()) <= density_of(at, smallest) * total + 1e-6
        if inside.any() and not inside.all():
            # Scores within a bin, 0.8 % wide at most, count as equal.
            assert float(flat[inside].min()) >= 0.99 * float(flat[~inside].max())
        if not inside.all():
            # The next bin would not have fitted.
            best = float(flat[~inside].max())
            alike = ~inside & (flat >= 0.99 * best)
            needed = float(cost[inside].sum() + cost[alike].sum())
            assert needed >= density_of(at, smallest) * total - 1e-6
    assert (rank <= WHOLE).all()


def test_the_best_groups_of_each_layer_are_in_every_budget() -> None:
    by_layer = scores(0)
    by_layer[1] *= 1e-6  # a layer that would vanish
    ranks = budget_ranks(by_layer, LAYERS, 0.01, min_groups=2)
    for score, rank in zip(by_layer, ranks, strict=True):
        best = score.flatten().topk(2).indices
        assert (rank.flatten()[best] == 0).all()
    without = budget_ranks(by_layer, LAYERS, 0.01, min_groups=0)
    assert (without[1] > 0).all()


def test_scores_of_zero_and_ties_are_ranked_without_fault() -> None:
    by_layer = [torch.zeros(30, 20), torch.ones(16), torch.ones(12)]
    ranks = budget_ranks(by_layer, LAYERS, 0.1, min_groups=0)
    assert (ranks[0] == WHOLE).all()
    assert len(set(ranks[1].tolist() + ranks[2].tolist())) == 1
    assert kept_weights(ranks, WHOLE) == sum(layer.numel for layer in LAYERS)


def test_memory_layout_is_kept() -> None:
    by_layer = scores(3)
    by_layer[0] = by_layer[0].t().contiguous().t()
    ranks = budget_ranks(by_layer, LAYERS, 0.01, min_groups=1)
    assert ranks[0].stride() == by_layer[0].stride()
    plain = budget_ranks([by_layer[0].contiguous(), *by_layer[1:]], LAYERS, 0.01, min_groups=1)
    assert torch.equal(ranks[0], plain[0])


@pytest.mark.parametrize("smallest", [0.001, 0.004, 0.25])
def test_ranks_and_densities_are_inverse(smallest: float) -> None:
    for rank in range(BUDGETS):
        assert rank_of(density_of(rank, smallest), smallest) == rank
    assert density_of(0, smallest) == pytest.approx(smallest)
    assert density_of(WHOLE, smallest) == 1
    assert rank_of(smallest / 10, smallest) == 0
    assert np.all(np.diff([density_of(rank, smallest) for rank in range(BUDGETS)]) > 0)


def test_which_weights_are_ranked() -> None:
    """By groups, else by the optimizer's own groups, else by the defaults of split_parameters."""
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(16, 2))
    neurons = split_parameters(net, {"2": {"penalty": "group_lasso"}})
    only = split_parameters(net, exclude=["0"])
    lines = {"0.weight": 0, "2.weight": None}
    for opt, groups, wanted in (
        (torch.optim.SGD(net.parameters()), None, lines),
        (torch.optim.AdamW(neurons), None, {"0.weight": 0, "2.weight": 0}),
        (torch.optim.AdamW(neurons), only, {"2.weight": None}),
        (DessiLBI(only), None, {"2.weight": None}),
        (DessiLBI(only), neurons, {"0.weight": 0, "2.weight": 0}),
        (DessiLBI(net.parameters()), None, lines),
    ):
        params, layers = ranked_weights(net, opt, groups)
        assert {layer.name: layer.group_dim for layer in layers} == wanted
        assert all(p is net.get_parameter(name) for name, p in params.items())
    with pytest.raises(ValueError, match="there is no weight to rank"):
        ranked_weights(net, torch.optim.SGD([{"params": net.parameters(), "penalty": None}]))
    with pytest.raises(ValueError, match="is not one of the model's"):
        ranked_weights(nn.Linear(2, 2), torch.optim.AdamW(neurons))

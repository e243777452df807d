"""Which budgets a step draws: a function of seed and step, within a schedule's bounds."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from nested_nets import batch, by_weight, make, train, train_in_place
from torch.nn.functional import cross_entropy

from dessilbi import NestedSchedule
from dessilbi.nested.ranking import density_of

NEVER_WHOLE = {"full_fraction": 0.0, "max_density": 0.5}


def drawn(schedule: NestedSchedule, count: int, seed: int = 0, steps: int = 1000) -> Any:
    ranks = [schedule.several_budgets(count, seed, step, steps) for step in range(steps)]
    return [[density_of(rank, schedule.min_density) for rank in some] for some in ranks]


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
def test_budgets_fall_and_then_cover_the_whole_range(power: float) -> None:
    schedule = NestedSchedule(
        min_density=0.01,
        max_density=1.0,
        ramp_start=0.1,
        ramp_end=0.5,
        full_fraction=0.2,
        draw_power=power,
    )
    budgets = [budget for (budget,) in drawn(schedule, 1)]
    assert set(budgets[:100]) == {1.0}
    early, late = budgets[100:300], budgets[500:]
    assert min(early) > 0.04 > 0.0103 > min(late) >= 0.01
    assert 0.15 < sum(b == 1 for b in late) / len(late) < 0.27
    below = sorted(b for b in late if b < 1)
    middle = below[len(below) // 2]  # power 1, evenly in the logarithm: the geometric mean, 0.1
    assert 0.7 < middle / 0.01 ** (0.5**power) < 1.4


@pytest.mark.parametrize(("count", "power"), [(2, 1.0), (3, 1.0), (3, 2.0), (5, 1.0)])
def test_each_budget_of_a_step_has_a_part_of_the_range(count: int, power: float) -> None:
    schedule = NestedSchedule(
        min_density=0.01, max_density=0.4, full_fraction=0.1, draw_power=power
    )
    budgets = drawn(schedule, count, steps=400)
    assert all(len(some) == 1 for some in budgets[:100]), "budgets are still falling"
    late = budgets[100:]
    assert 0.08 < sum(some[0] == 1 for some in late) / len(late) < 0.12
    assert all(len(set(some)) == len(some) for some in late)
    assert all(some == sorted(some, reverse=True) for some in late)
    part = (0.01 / 0.4) ** (1 / count)
    parts = [[b for b in some if b < 1] for some in late]
    parts = [some for some in parts if len(some) == count]
    assert len(parts) > 280, "but for two at one end of their parts"
    for k in range(count):
        one = sorted(some[k] for some in parts)
        assert 0.4 * part ** (k + 1) / 1.02 < one[0]
        assert one[-1] < 0.4 * part**k * 1.02
        if power == 1:
            assert all(b / a < 1.1 for a, b in itertools.pairwise(one)), "no gap"
        else:
            assert one[len(one) // 2] > 0.4 * part ** (k + 0.4), "large ones more often"


def test_draws_depend_on_seed_and_step_only() -> None:
    found = []
    for seed in (0, 0, 1):
        net, opt = make()
        nested = by_weight(net, opt, 100, seed=seed)
        state = torch.get_rng_state()
        budgets = []
        for _ in range(20):
            with nested:
                budgets += nested.budgets
            opt.step()
        assert torch.equal(state, torch.get_rng_state()), "global random numbers are left alone"
        torch.rand(seed + 1)  # other consumers of random numbers do not matter
        found.append(budgets)
    assert found[0] == found[1] != found[2]


@pytest.mark.parametrize("at", [0.0, 0.5, 1.0])
def test_budgets_may_fall_at_once(at: float) -> None:
    net, opt = make()
    nested = by_weight(net, opt, 10, {"ramp_start": at, "ramp_end": at} | NEVER_WHOLE)
    budgets = []
    for step in range(10):
        (train if step % 2 else train_in_place)(net, opt, nested, step, step + 1)
        budgets.append(nested.budgets[0])
    first = round(10 * at)
    assert all(b == 1 for b in budgets[:first])
    assert all(b < 1 for b in budgets[first:])
    assert NestedSchedule(ramp_start=at, ramp_end=at, freeze_ranking_at=1).smallest(at) == 0.004


def test_the_defaults_are_those_of_the_recipes() -> None:
    assert NestedSchedule() == NestedSchedule(
        min_density=0.004,
        max_density=0.3,
        ramp_start=1 / 12,
        ramp_end=0.25,
        freeze_ranking_at=0.6,
        full_fraction=0.3,
        draw_power=1.0,
        rank_every=100,
    )
    widths = NestedSchedule.for_widths(min_density=0.25)
    assert (widths.min_density, widths.ramp_end, widths.full_fraction) == (0.25, 0.3, 1.0)
    assert NestedSchedule.for_widths().min_density == 0.125


def test_weights_are_ranked_when_the_schedule_says_so() -> None:
    net, opt = make()
    schedule = {"ramp_start": 0.2, "ramp_end": 0.2, "freeze_ranking_at": 0.6, "rank_every": 5}
    nested = by_weight(net, opt, 30, schedule)
    changed = []
    before = None
    for step in range(30):
        x, y = batch(step)
        opt.zero_grad()
        with nested:
            cross_entropy(net(x), y).backward()
        opt.step()
        now = {name: ranks.tolist() for name, ranks in (nested.budget_ranks or {}).items()}
        if now != (before or {}):
            changed.append(step)
        before = now
    assert changed == [6, 10, 15]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_density": 0.0}, r"min_density must lie in \(0, 1\), got 0.0"),
        ({"max_density": 0.001}, "max_density must lie in"),
        ({"ramp_start": -0.1}, "ramp_start must lie in"),
        ({"ramp_start": 0.5, "ramp_end": 0.2}, "ramp_end must lie in"),
        ({"freeze_ranking_at": 0.0}, "freeze_ranking_at must be >= ramp_start"),
        ({"full_fraction": 1.5}, "full_fraction must lie in"),
        ({"rank_every": 0}, "rank_every must be >= 1"),
        ({"draw_power": 0.0}, "draw_power must be > 0"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        NestedSchedule(**options)

"""Settings that let nothing enter, or late: said at the first record, never without reason."""

from __future__ import annotations

import re
import warnings
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from dessilbi import DessiLBI, NestedTraining, PathRecorder, SplitLBI, split_parameters

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.optim import Optimizer

STEPS = 4


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(4 * 16, 3))


def train(net: nn.Module, opt: Optimizer, steps: int, *, rest: bool = False) -> None:
    """Some steps; at rest only the coupling moves the weights."""
    for step in range(steps):
        x = torch.randn(8, 1, 6, 6, generator=torch.Generator().manual_seed(step))
        opt.zero_grad()
        (net(x).square().mean() * (not rest)).backward()
        opt.step()


def foretold(opt: Callable[[Any], Any], records: int = 1, **options: Any) -> list[float]:
    """The steps after which the first group is said to enter."""
    net = network()
    made = opt(split_parameters(net, **options))
    recorder = PathRecorder(net, made)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for epoch in range(1, records + 1):
            train(net, made, STEPS)
            recorder.record(epoch)
    assert all(one.filename == __file__ for one in caught)
    texts = [str(one.message) for one in caught]
    assert all(f"nothing has entered Gamma in {STEPS} steps; at this rate" in t for t in texts)
    found = [re.search(r"after ([\d,]+) epochs \(([\d,]+) steps", text) for text in texts]
    numbers = [[float(part.replace(",", "")) for part in one.groups()] for one in found if one]
    assert all(epochs == pytest.approx(steps / STEPS, abs=0.6) for epochs, steps in numbers)
    return [steps for _, steps in numbers]


def test_a_twin_whose_length_was_not_given_is_foretold() -> None:
    """Rate 1e-3, nu 100: V takes 100,000 steps to become as large as W."""
    (steps,) = foretold(lambda g: SplitLBI(torch.optim.AdamW(g, lr=1e-3)), records=3)
    assert 20_000 < steps < 120_000  # a single weight may be a few times as large as the typical


def test_the_first_group_enters_when_it_was_said() -> None:
    for exclude, options in ((["2"], {"c": 0.05}), (["0"], {"lambd": 0.01})):
        settings = {"lr": 0.05, "nu": 75.0, "kappa": 2.0, **options}
        (steps,) = foretold(lambda g, s=settings: DessiLBI(g, **s), exclude=exclude)
        assert 125 < steps < 250
        net = network()
        opt = DessiLBI(split_parameters(net, exclude=exclude), **settings)
        train(net, opt, int(0.8 * steps), rest=True)
        assert opt.density() == 0
        train(net, opt, int(0.4 * steps), rest=True)
        assert opt.density() > 0


@pytest.mark.parametrize(
    "make",
    [
        lambda g: DessiLBI(g, lr=0.1, steps=8_000),
        lambda g: SplitLBI(torch.optim.AdamW(g, lr=1e-3), steps=10_000),
        lambda g: DessiLBI(g, lr=0.1, nu=2.0, lambd=0.05),
        lambda g: DessiLBI(g, lr=0.1, nu=float("inf")),
        lambda g: DessiLBI(g, lr=0.0),
    ],
    ids=["steps=", "steps=, AdamW", "soon", "not coupled", "at rest"],
)
def test_nothing_is_said_where_groups_will_enter(make: Callable[[Any], Any]) -> None:
    assert foretold(make) == []


def test_a_warmup_is_not_taken_for_the_rate() -> None:
    def warming(groups: Any) -> DessiLBI:
        opt = DessiLBI(groups, lr=0.1, nu=5.0, c=1.0)
        torch.optim.lr_scheduler.LinearLR(opt, start_factor=0.01, total_iters=1000)
        return opt

    assert foretold(warming) == []


def test_a_threshold_beyond_the_training_is_said_however_short_it_is() -> None:
    (steps,) = foretold(lambda g: DessiLBI(g, lr=0.1, steps=100, c=100.0))
    assert steps > 100


def test_nested_training_needs_no_entry() -> None:
    net = network()
    opt = DessiLBI(split_parameters(net), lr=0.1, nu=100.0, lambd=1e9)
    nested = NestedTraining(net, opt, steps=STEPS)
    recorder = PathRecorder(net, opt, nested=nested)
    train(net, opt, STEPS)
    recorder.record(1)  # without a warning, which would be an error
    assert recorder.path.density(1) == 0

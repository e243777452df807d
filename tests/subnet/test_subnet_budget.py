"""A budget that is hit: to one group, counted in the compact network, under any optimizer."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from dessilbi import DessiLBI, PathRecorder, SplitLBI, compact, split_parameters
from dessilbi.graph.macs import count_macs_per_weight
from dessilbi.subnet import GradualPruning

X = torch.zeros(2, 2, 8, 8)
STEPS = 24


def plain() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 12, 3, padding=1),
        nn.BatchNorm2d(12),
        nn.ReLU(),
        nn.Conv2d(12, 16, 3, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(4),
        nn.Flatten(),
        nn.Linear(64, 5),
    )


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Conv2d(2, 8, 3, padding=1)
        self.inner = nn.Conv2d(8, 10, 3, padding=1)
        self.outer = nn.Conv2d(10, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x).relu()
        x = (x + self.norm(self.outer(self.inner(x).relu()))).relu()
        return self.head(x.mean((2, 3)))


def sgd(groups: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(groups, lr=0.05, momentum=0.9)


OPTIMIZERS: dict[str, Any] = {
    "sgd": sgd,
    "adamw": lambda groups: torch.optim.AdamW(groups, lr=0.01),
    "dessilbi": lambda groups: DessiLBI(groups, lr=0.05, momentum=0.9, steps=STEPS),
    "split": lambda groups: SplitLBI(torch.optim.AdamW(groups, lr=0.01), steps=STEPS),
}


def train(net: nn.Module, opt: torch.optim.Optimizer, start: int = 0, stop: int = STEPS) -> None:
    for step in range(start, stop):
        g = torch.Generator().manual_seed(step)
        x, y = torch.randn(8, 2, 8, 8, generator=g), torch.randint(5, (8,), generator=g)
        opt.zero_grad()
        cross_entropy(net(x), y).backward()
        opt.step()


def pruned(net: nn.Module, opt: torch.optim.Optimizer, **options: Any) -> GradualPruning:
    found = GradualPruning(net, opt, STEPS, every=2, **options)
    train(net, opt)
    assert found.done
    return found


def weights_of(net: nn.Module, names: list[str]) -> int:
    return sum(p.numel() for name, p in net.named_parameters() if name in names)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("density", [0.5, 0.2])
def test_the_compact_network_has_the_density_that_was_asked_for(name: str, density: float) -> None:
    net = plain()
    opt = OPTIMIZERS[name](split_parameters(net, exclude=["8"]))
    pruning = pruned(net, opt, density=density, example_input=X)
    assert pruning.mask is not None
    small = compact(net.eval(), pruning.mask, X, latency=False)
    names = ["0.weight", "3.weight"]
    left, whole = weights_of(small.model, names), weights_of(net, names)
    assert pruning.density == left / whole
    assert small.report.carriers == 0
    # A filter more of either layer would be too many.
    first, second = (net.get_parameter(n).flatten(1).any(1).sum() for n in names)
    assert left == 9 * (2 * first + first * second) <= density * whole
    assert density * whole < left + min(9 * (2 + second), 9 * first)


def test_what_was_pruned_comes_back_as_it_was_where_it_fills_the_budget() -> None:
    """In few prunings a cheap filter leaves, and in the end there would be room for it."""
    names, returned = ["0.weight", "3.weight"], 0
    for density in [k / 50 for k in range(3, 30)]:
        net = plain()
        opt = sgd(split_parameters(net, exclude=["8"]))
        pruning = GradualPruning(net, opt, STEPS, density=density, example_input=X, every=5)
        masks = []
        for step in range(STEPS):
            train(net, opt, step, step + 1)
            if pruning.mask is not None and pruning.mask not in masks:
                masks.append(pruning.mask)
        first, second = (int(net.get_parameter(n).flatten(1).any(1).sum()) for n in names)
        left = 9 * (2 * first + first * second)
        assert left <= density * weights_of(net, names) < left + min(9 * (2 + second), 9 * first)
        for earlier, later in itertools.pairwise(masks):
            for name in names:
                back = later[name] & ~earlier[name]
                returned += int(back.flatten(1).any(1).sum())
                assert bool(net.get_parameter(name)[back].all())
    assert returned > 0


def test_multiply_adds_are_hit() -> None:
    net = plain()
    pruning = pruned(net, sgd(split_parameters(net, exclude=["8"])), macs=0.4, example_input=X)
    assert pruning.mask is not None
    small = compact(net.eval(), pruning.mask, X, latency=False).model
    macs = []
    for one in (net, small):
        per_weight = count_macs_per_weight(one, X)
        sizes = {name: p.numel() for name, p in one.named_parameters()}
        macs.append(sum(per_weight[n] * sizes[n] for n in ("0.weight", "3.weight")))
    assert pruning.density == pytest.approx(macs[1] / macs[0])
    assert 0.4 - 0.06 < macs[1] / macs[0] <= 0.4


def test_groups_are_counted() -> None:
    net = plain()
    pruning = pruned(net, sgd(split_parameters(net)), groups=0.25)
    assert pruning.mask is not None
    inside = [pruning.mask[n].flatten(1).any(1).sum() for n in ("0.weight", "3.weight")]
    single = pruning.mask["8.weight"].sum()
    assert sum(inside) + single == (12 + 16 + 320) // 4


@pytest.mark.parametrize("name", ["sgd", "split"])
def test_tied_filters_leave_together(name: str) -> None:
    net = Residual()
    groups = split_parameters(net, exclude=["head"], tied=True, example_input=X)
    pruning = pruned(net, OPTIMIZERS[name](groups), density=0.4, example_input=X)
    assert pruning.mask is not None
    stem, outer = (net.get_parameter(n).flatten(1).any(1) for n in ("stem.weight", "outer.weight"))
    assert torch.equal(stem, outer)
    assert 0 < stem.sum() < 8
    small = compact(net.eval(), pruning.mask, X, latency=False)
    names = ["stem.weight", "inner.weight", "outer.weight"]
    assert weights_of(small.model, names) == pruning.density * weights_of(net, names)
    for p in (net.stem.bias, net.norm.weight, net.norm.bias):
        assert not p[~stem].any(), "a filter that is off takes bias and norm along"


def test_neurons_of_two_matrices() -> None:
    """A neuron is its row of the first and its column of the second matrix; nothing is traced."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(128, 10), nn.GELU(), nn.Linear(10, 5))
    patterns = {"*": {"penalty": "group_lasso", "tied": True, "group_dim": (0, 1)}}
    pruning = pruned(net, OPTIMIZERS["adamw"](split_parameters(net, patterns)), density=0.3)
    assert pruning.mask is not None
    rows, columns = pruning.mask["1.weight"].any(1), pruning.mask["3.weight"].any(0)
    assert torch.equal(rows, columns)
    assert rows.sum() == 3
    assert pruning.density == pytest.approx(0.3)


@pytest.mark.parametrize("name", ["dessilbi", "split"])
@pytest.mark.parametrize("by", ["weights", "gamma"])
def test_gamma_is_the_network_that_is_left(name: str, by: str) -> None:
    net = plain()
    opt = OPTIMIZERS[name](split_parameters(net, exclude=["8"]))
    recorder = PathRecorder(net, opt)
    recorder.record(0)
    pruning = pruned(net, opt, density=0.3, example_input=X, by=by)
    recorder.record(1)
    assert pruning.mask is not None
    for n, kept in opt.mask(net).items():
        assert torch.equal(kept, pruning.mask[n])
    assert recorder.path.mask(epoch=1).density == pytest.approx(opt.density())
    train(net, opt, STEPS, STEPS + 3)
    assert all(torch.equal(opt.mask(net)[n], pruning.mask[n]) for n in opt.mask(net))


@pytest.mark.parametrize("per_layer", [True, False])
@pytest.mark.parametrize("scaling", [{"c": 1.0}, {"lambd": 0.1}, {"lambd_scale": "size"}])
def test_the_support_of_gamma_grows_to_the_target(per_layer: bool, scaling: dict[str, Any]) -> None:
    net = plain()
    opt = DessiLBI(split_parameters(net), lr=0.05, nu=1.0, **scaling)
    target = GradualPruning(
        net, opt, STEPS, groups=0.5, by="gamma", every=2, end=0.75, per_layer=per_layer
    )
    seen = []
    for step in range(STEPS):
        train(net, opt, step, step + 1)
        if step % 2 and step > 2:
            seen.append(sum(int(k.sum()) for k in groups_of(opt, net)))
    assert seen == [int(target.target(step + 1) * (12 + 16 + 320)) for step in range(3, STEPS, 2)]
    assert target.mask is not None
    assert seen[-1] == sum(int(k.sum()) for k in groups_of(opt, net)) == 174


def groups_of(opt: DessiLBI, net: nn.Module) -> list[torch.Tensor]:
    masks = opt.mask(net)
    return [m.flatten() if n == "8.weight" else m.flatten(1).any(1) for n, m in masks.items()]


@pytest.mark.parametrize("by", ["weights", "gamma"])
@pytest.mark.parametrize("stopped", [4, 9, 20])
def test_a_resumed_run_is_the_same(by: str, stopped: int) -> None:
    def made() -> tuple[nn.Module, DessiLBI, GradualPruning]:
        net = plain()
        opt = DessiLBI(split_parameters(net), lr=0.05, momentum=0.9, nu=1.0)
        options: dict[str, Any] = {"density": 0.3, "example_input": X, "by": by, "every": 2}
        return net, opt, GradualPruning(net, opt, STEPS, **options)

    whole, opt, _ = made()
    train(whole, opt)
    half, half_opt, before = made()
    train(half, half_opt, 0, stopped)
    again, again_opt, after = made()
    again.load_state_dict(half.state_dict())
    again_opt.load_state_dict(copy.deepcopy(half_opt.state_dict()))
    after.load_state_dict(before.state_dict())
    train(again, again_opt, stopped)
    for a, b in zip(whole.parameters(), again.parameters(), strict=True):
        assert torch.equal(a, b)
    assert all(torch.equal(opt.mask(whole)[n], m) for n, m in again_opt.mask(again).items())


def test_the_coupling_rests_unless_gamma_chooses() -> None:
    """Then the twin costs nothing: the weights are those of the optimizer without it."""
    net, other = plain(), plain()
    groups = [split_parameters(one, exclude=["8"]) for one in (net, other)]
    pruned(net, SplitLBI(torch.optim.AdamW(groups[0], lr=0.01), nu=0.1), density=0.3)
    pruned(other, torch.optim.AdamW(groups[1], lr=0.01), density=0.3)
    for a, b in zip(net.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_layer_never_vanishes() -> None:
    net = plain()
    with torch.no_grad():
        net[3].weight.mul_(1e-3)
    pruning = pruned(net, sgd(split_parameters(net)), groups=0.01, per_layer=False)
    assert pruning.mask is not None
    assert all(kept.any() for kept in pruning.mask.values())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "give one of density, groups and macs, got none"),
        ({"density": 0.1, "groups": 0.2}, "got density and groups"),
        ({"density": 1.5}, r"density must lie in \(0, 1\], got 1.5"),
        ({"macs": 0.5}, "macs needs example_input"),
        ({"density": 0.1, "by": "gamma"}, "by='gamma' needs an optimizer with a twin"),
        ({"density": 0.1, "by": "size"}, "by must be 'weights' or 'gamma', got 'size'"),
        ({"density": 0.001, "example_input": X}, "density=0.001 cannot be reached: 0.0139 is left"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, Any], message: str) -> None:
    net = plain()
    with pytest.raises(ValueError, match=message):
        GradualPruning(net, sgd(split_parameters(net, exclude=["8"])), STEPS, **options)

"""Pruning while training, and a support that nothing enters any more."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from dessilbi import DessiLBI, SplitLBI, split_parameters
from dessilbi.subnet import FrozenSupport, GradualPruning

if TYPE_CHECKING:
    from dessilbi.optim import TwinOptimizer


def net_and_sgd() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(128, 5))
    return net, torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)


def steps(net: nn.Module, opt: torch.optim.Optimizer, start: int, stop: int) -> None:
    for step in range(start, stop):
        generator = torch.Generator().manual_seed(step)
        x, y = torch.randn(16, 1, 6, 6, generator=generator), torch.randint(5, (16,))
        y = torch.randint(5, (16,), generator=generator)
        opt.zero_grad()
        cross_entropy(net(x), y).backward()
        opt.step()


# ---------------------------------------------------------------------- gradual pruning


def test_the_schedule_is_the_cubic() -> None:
    net, opt = net_and_sgd()
    pruning = GradualPruning(
        net, opt, 100, density=0.1, param_groups=split_parameters(net), begin=0.2, end=0.7
    )
    assert [pruning.target(t) for t in (0, 19)] == [1.0, 1.0]
    assert pruning.target(20) == 1.0
    # Zhu and Gupta: s_t = s_f + (s_i - s_f) (1 - (t - t0) / (n dt))^3, in sparsity
    for t in (21, 45, 69):
        sparsity = 0.9 + (0 - 0.9) * (1 - (t - 20) / 50) ** 3
        assert pruning.target(t) == pytest.approx(1 - sparsity)
    assert pruning.target(70) == pruning.target(100) == 0.1


@pytest.mark.parametrize("batchnorm", [False, True])
def test_density_falls_to_the_target_and_zeros_stay(batchnorm: bool) -> None:
    net, opt = net_and_sgd()
    if batchnorm:  # it divides by a pruned filter's variance, so that its gradient is huge
        assert isinstance(net, nn.Sequential)
        net.insert(1, nn.BatchNorm2d(8))
        nn.init.ones_(net[1].bias)  # where ReLU lets it through
        opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)
    pruning = GradualPruning(
        net, opt, 60, density=0.2, param_groups=split_parameters(net), begin=0.1, end=0.6, every=5
    )
    densities, before = [], None
    for step in range(60):
        steps(net, opt, step, step + 1)
        mask = pruning.mask
        if mask is None:
            continue
        assert before is None or mask.issubset(before), "a pruned weight came back"
        before = mask
        densities.append(mask.density)
        for name in mask.names:
            assert not net.get_parameter(name)[~mask[name]].any()
    assert densities == sorted(densities, reverse=True)
    assert len(set(densities)) > 4
    assert densities[-1] == pytest.approx(0.2, abs=0.02)
    kernel = net.get_parameter("0.weight").detach()
    whole = kernel.flatten(1).ne(0).any(1)
    assert torch.equal(whole, kernel.flatten(1).ne(0).all(1)), "filters leave as a whole"


def test_prune_once_and_fine_tune() -> None:
    net, opt = net_and_sgd()
    pruning = GradualPruning(
        net, opt, 20, density=0.3, param_groups=split_parameters(net), begin=0.5, end=0.5
    )
    steps(net, opt, 0, 9)
    assert pruning.mask is None
    steps(net, opt, 9, 10)
    first = pruning.mask
    assert first is not None
    assert first.density == pytest.approx(0.3, abs=0.02)
    steps(net, opt, 10, 20)
    assert pruning.mask == first


def test_pruned_from_the_start() -> None:
    net, opt = net_and_sgd()
    pruning = GradualPruning(
        net, opt, 20, density=0.3, param_groups=split_parameters(net), begin=0.0, end=0.0
    )
    steps(net, opt, 0, 1)
    first = pruning.mask
    assert first is not None
    assert first.density == pytest.approx(0.3, abs=0.02)
    steps(net, opt, 1, 3)
    assert pruning.mask == first


def test_a_dimension_counted_from_the_end() -> None:
    masks = []
    for dim in (-1, 1):
        net, opt = net_and_sgd()
        options = {"3": {"penalty": "group_lasso", "group_dim": dim}}
        groups = split_parameters(net, options, exclude=("0",))
        pruning = GradualPruning(net, opt, 4, density=0.3, param_groups=groups, begin=0.5, end=0.5)
        steps(net, opt, 0, 2)
        assert pruning.mask is not None
        masks.append(pruning.mask)
    assert masks[0] == masks[1]
    columns = masks[0]["3.weight"]
    assert torch.equal(columns.any(0), columns.all(0))


def test_tied_neurons_leave_with_the_weights_that_read_them() -> None:
    """By the joint norm of a row of one matrix and a column of the next, half of each pair."""
    torch.manual_seed(0)
    net = nn.Sequential(*(nn.Linear(a, b) for a, b in ((3, 6), (6, 3), (3, 8), (8, 2))))
    opt = torch.optim.SGD(net.parameters(), lr=0.0)
    neuron = {"penalty": "group_lasso", "tied": True, "group_dim": (0, 1)}
    pruning = GradualPruning(
        *(net, opt, 4),
        density=0.5,
        param_groups=split_parameters(net, {"[01]": neuron, "[23]": neuron}),
        begin=0.5,
        end=0.5,
    )
    pairs = [[net[i].weight.detach().clone(), net[i + 1].weight.detach().T.clone()] for i in (0, 2)]
    for _ in range(3):
        net(torch.ones(1, 3)).sum().backward()
        opt.step()
    mask = pruning.mask
    assert mask is not None
    for i, both in zip((0, 2), pairs, strict=True):
        rows, columns = mask[f"{i}.weight"], mask[f"{i + 1}.weight"].T
        assert torch.equal(rows[:, 0], columns[:, 0])
        assert torch.equal(rows.any(1), rows.all(1))
        assert torch.equal(columns.any(1), columns.all(1))
        norms = torch.cat(both, 1).norm(dim=1)
        half = norms.topk(len(norms) // 2).indices
        assert sorted(rows[:, 0].nonzero().flatten().tolist()) == sorted(half.tolist())
    assert mask.density <= 0.5


def test_resumed_pruning_is_the_same() -> None:
    options: dict[str, Any] = {"begin": 0.1, "end": 0.6, "every": 4}
    net, opt = net_and_sgd()
    GradualPruning(net, opt, 40, density=0.2, param_groups=split_parameters(net), **options)
    steps(net, opt, 0, 40)
    half, half_opt = net_and_sgd()
    before = GradualPruning(
        half, half_opt, 40, density=0.2, param_groups=split_parameters(half), **options
    )
    steps(half, half_opt, 0, 15)
    again, again_opt = net_and_sgd()
    again.load_state_dict(half.state_dict())
    again_opt.load_state_dict(half_opt.state_dict())
    after = GradualPruning(
        again, again_opt, 40, density=0.2, param_groups=split_parameters(again), **options
    )
    after.load_state_dict(before.state_dict())
    steps(again, again_opt, 15, 40)
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), again.parameters(), strict=True))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"begin": 0.8, "end": 0.5}, "end must lie in"),
        ({"every": 0}, "every must be >= 1"),
        ({"begin": 1.2}, "begin must lie in"),
    ],
)
def test_bad_schedules(options: dict[str, Any], message: str) -> None:
    net, opt = net_and_sgd()
    with pytest.raises(ValueError, match=message):
        GradualPruning(net, opt, 10, density=0.5, param_groups=split_parameters(net), **options)


# ---------------------------------------------------------------------- frozen support


def twin_net(base: str = "sgd") -> tuple[nn.Module, TwinOptimizer]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(128, 5))
    groups = split_parameters(net)
    if base == "adamw":
        return net, SplitLBI(torch.optim.AdamW(groups, lr=0.01), nu=0.3, lambd=0.06)
    return net, DessiLBI(groups, lr=0.1, nu=5.0, lambd=0.03, momentum=0.9)


@pytest.mark.parametrize(("base", "nu"), [("sgd", 0.5), ("adamw", 0.1)])
def test_nothing_enters_and_the_rest_fades(base: str, nu: float) -> None:
    net, opt = twin_net(base)
    steps(net, opt, 0, 30)
    supports = {name: opt.support(p) for name, p in opt.twins()}
    assert 0 < opt.density() < 1
    sizes = {n: net.get_parameter(n).detach()[~s].abs().sum() for n, s in supports.items()}
    frozen = FrozenSupport(net, opt, nu=nu)
    steps(net, opt, 30, 60)
    for name, p in opt.twins():
        assert not (opt.support(p) & ~supports[name]).any()
        outside = ~supports[name]
        if outside.any():
            assert net.get_parameter(name).detach()[outside].abs().sum() < 0.6 * sizes[name]
            assert not opt.state[p]["v"][outside].any()
    assert any((~s).any() for s in supports.values())
    frozen.close()
    steps(net, opt, 60, 120)
    assert opt.density() > 0


def test_the_pull_is_lr_over_nu() -> None:
    """One step with a zero gradient: coupling, then the pull."""
    net = nn.Linear(4, 3, bias=False).double()
    opt = DessiLBI(split_parameters(net), lr=0.1, nu=2.0)
    FrozenSupport(net, opt, nu=0.4)
    W = net.weight.detach().clone()
    net.weight.grad = torch.zeros_like(W)
    opt.step()
    torch.testing.assert_close(net.weight.detach(), W * (1 - 0.1 / 2.0) * (1 - 0.1 / 0.4))


@pytest.mark.parametrize("base", ["sgd", "adamw"])
def test_a_frozen_support_is_restored(base: str) -> None:
    net, opt = twin_net(base)
    steps(net, opt, 0, 30)
    frozen = FrozenSupport(net, opt, nu=0.5)
    state = frozen.state_dict()
    steps(net, opt, 30, 40)
    again, again_opt = twin_net(base)
    again.load_state_dict(net.state_dict())
    again_opt.load_state_dict(deepcopy(opt.state_dict()))  # else torch shares the tensors
    later = FrozenSupport(again, again_opt, nu=0.5)
    later.load_state_dict(state)
    steps(net, opt, 40, 50)
    steps(again, again_opt, 40, 50)
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), again.parameters(), strict=True))


def test_the_pull_follows_a_learning_rate_that_was_loaded() -> None:
    """Loading replaces the optimizer's groups, which schedulers then change."""
    net = nn.Linear(4, 3, bias=False).double()
    opt = DessiLBI(split_parameters(net), lr=0.1, nu=2.0)
    FrozenSupport(net, opt, nu=0.4)
    opt.load_state_dict(opt.state_dict())
    opt.param_groups[0]["lr"] = 0.01
    W = net.weight.detach().clone()
    net.weight.grad = torch.zeros_like(W)
    opt.step()
    torch.testing.assert_close(net.weight.detach(), W * (1 - 0.01 / 2.0) * (1 - 0.01 / 0.4))


def test_a_pull_must_be_positive() -> None:
    net, opt = twin_net()
    with pytest.raises(ValueError, match="nu must be > 0"):
        FrozenSupport(net, opt, nu=0.0)

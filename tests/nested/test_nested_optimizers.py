"""Nested training with any torch optimizer: what rests, what is kept, what is learned."""

from __future__ import annotations

from copy import deepcopy
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch
from nested_nets import Net, Plain, batch, by_weight, make_widths, train, weights
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from dessilbi import (
    DessiLBI,
    NestedSchedule,
    NestedTraining,
    NestedWidths,
    SplitLBI,
    split_parameters,
)
from dessilbi.nested.restrict import Restriction

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.optim import Optimizer

OPTIMIZERS: dict[str, Callable[[Any], Optimizer]] = {
    "adamw": partial(torch.optim.AdamW, lr=1e-2, weight_decay=0.1),
    "sgd": partial(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-2),
    "rmsprop": partial(torch.optim.RMSprop, lr=1e-3, momentum=0.5, weight_decay=1e-2),
}
TWINS: dict[str, Callable[[Any], SplitLBI]] = {
    f"twin-{kind}": partial(lambda kind, groups: SplitLBI(OPTIMIZERS[kind](groups), **LIVELY), kind)
    for kind in OPTIMIZERS
}
LIVELY: dict[str, Any] = {"steps": 12, "tau": 3.0, "c": 0.5}
EVERY = OPTIMIZERS | TWINS
NEVER_WHOLE = {"full_fraction": 0.0, "max_density": 0.5, "rank_every": 3}
every = pytest.mark.parametrize("kind", OPTIMIZERS)
with_twins = pytest.mark.parametrize("kind", EVERY)


def make(kind: str) -> tuple[Net, Optimizer]:
    torch.manual_seed(0)
    net = Net().double()
    return net, EVERY[kind](split_parameters(net))


def state_of(opt: Optimizer, p: Tensor) -> dict[str, Tensor]:
    return {k: t.clone() for k, t in opt.state.get(p, {}).items() if t.shape == p.shape}


@every
def test_resting_weights_and_their_state_do_not_move(kind: str) -> None:
    net, opt = make(kind)
    nested = by_weight(net, opt, schedule=NEVER_WHOLE)
    for step in range(8):
        before = weights(net)
        states = {name: state_of(opt, p) for name, p in net.named_parameters()}
        train(net, opt, nested, step, step + 1)
        mask = nested.mask(nested.budgets[0])
        assert mask.density < 0.6
        for name, p in net.named_parameters():
            where = mask[name] if name in mask.names else torch.ones_like(p, dtype=torch.bool)
            assert torch.equal(p[~where], before[name][~where])
            assert (p != before[name])[where].any()
            for key, tensor in state_of(opt, p).items():
                old = states[name].get(key, torch.zeros_like(tensor))
                assert torch.equal(tensor[~where], old[~where])
                assert (tensor != old)[where].any()


@every
def test_weights_that_move_do_so_as_if_they_were_all(kind: str) -> None:
    """Against the same optimizer on the masked weights alone, for as long as the mask is one."""
    net, opt = make(kind)
    schedule = {"min_density": 0.3, "max_density": 0.3, "full_fraction": 0.0, "rank_every": 100}
    nested = by_weight(net, opt, schedule=schedule, budgets_per_step=1)
    alone, its_opt = make(kind)
    for step in range(6):
        train(net, opt, nested, step, step + 1)
        mask = nested.mask(0.3)
        with torch.no_grad():
            for name in mask.names:
                alone.get_parameter(name).mul_(mask[name])
        x, y = batch(step)
        its_opt.zero_grad()
        cross_entropy(alone(x), y).backward()
        for name in mask.names:
            p = alone.get_parameter(name)
            assert p.grad is not None
            p.grad.mul_(mask[name])
        its_opt.step()
    for name, p in net.named_parameters():
        where = mask[name] if name in mask.names else torch.ones_like(p, dtype=torch.bool)
        torch.testing.assert_close(p[where], alone.get_parameter(name)[where])


def coupling_of(opt: SplitLBI) -> dict[str, tuple[Tensor, Tensor]]:
    """W and V of each twin after the coupling of the next step alone."""
    found = {}
    for group in opt.param_groups:
        for name, p in zip(group["param_names"], group["params"], strict=True):
            if group["penalty"] is not None:
                C = (p.detach() - opt.gamma(p)) / group["nu"]
                found[name] = p.detach() - group["lr"] * C, opt.dual(p) + group["lr"] * C
    return found


@pytest.mark.parametrize("kind", TWINS)
def test_the_coupling_of_a_twin_goes_on_for_resting_weights(kind: str) -> None:
    """Of them nothing else moves: value by the coupling, state of the base not at all."""
    net, opt = make(kind)
    assert isinstance(opt, SplitLBI)
    nested = by_weight(net, opt, schedule=NEVER_WHOLE)
    for step in range(8):
        coupled = coupling_of(opt)
        states = {name: state_of(opt, p) for name, p in net.named_parameters()}
        train(net, opt, nested, step, step + 1)
        mask = nested.mask(nested.budgets[0])
        assert mask.density < 0.6
        for name in mask.names:
            p = net.get_parameter(name)
            rests = ~mask[name]
            W, V = coupled[name]
            torch.testing.assert_close(p.detach()[rests], W[rests], rtol=1e-12, atol=1e-12)
            torch.testing.assert_close(opt.dual(p), V, rtol=1e-12, atol=1e-12)
            assert (p != W)[mask[name]].any()
            for key, tensor in state_of(opt, p).items():
                if key not in opt.twin_keys:
                    old = states[name].get(key, torch.zeros_like(tensor))
                    assert torch.equal(tensor[rests], old[rests]), key
    assert 0 < opt.density() < 1


def test_a_twin_around_sgd_is_nested_as_dessilbi() -> None:
    options = {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 1e-2}
    nets = []
    for twin in (False, True):
        torch.manual_seed(0)
        net = Net().double()
        groups = split_parameters(net)
        opt: Optimizer = DessiLBI(groups, **options, **LIVELY)
        if twin:
            opt = SplitLBI(torch.optim.SGD(split_parameters(net), **options), **LIVELY)
        nested = by_weight(net, opt, 12, schedule=NEVER_WHOLE)
        train(net, opt, nested, 0, 12)
        nets.append((net, opt))
    (one, first), (other, second) = nets
    for p, q in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-10, atol=1e-10)
    assert first.density() == second.density() > 0


@with_twins
@pytest.mark.parametrize("widths", [False, True])
def test_a_resumed_run_goes_on_bit_for_bit(kind: str, widths: bool) -> None:
    def begin() -> tuple[nn.Module, Optimizer, NestedTraining | NestedWidths]:
        if widths:
            return make_widths(
                Plain, opt=EVERY[kind], branch_at=(0.3, 0.6), schedule={"min_density": 0.25}
            )
        net, opt = make(kind)
        return net, opt, by_weight(net, opt, 12)

    net, opt, nested = begin()
    train(net, opt, nested, 0, 5)
    other, its_opt, its_nested = begin()
    other.load_state_dict(net.state_dict())
    its_opt.load_state_dict(deepcopy(opt.state_dict()))  # else torch shares the tensors
    its_nested.load_state_dict({name: t.clone() for name, t in nested.state_dict().items()})
    for one, of, by in ((net, opt, nested), (other, its_opt, its_nested)):
        train(one, of, by, 5, 12)
    assert all(torch.equal(p, q) for p, q in zip(net.parameters(), other.parameters(), strict=True))
    wanted, found = nested.state_dict(), its_nested.state_dict()
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in wanted.items())
    assert any(name.startswith("branches/1/optimizer/") for name in found) is widths


@pytest.mark.parametrize("kind", ["adamw", "sgd"])
def test_every_budget_is_learned(kind: str) -> None:
    """And better than by cutting down the same network that was trained without it."""
    accuracies: dict[bool, list[float]] = {}
    for on in (False, True):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(20, 60), nn.ReLU(), nn.Linear(60, 5))
        groups = split_parameters(net)
        opt: Optimizer = torch.optim.AdamW(groups, lr=1e-2)
        if kind == "sgd":
            opt = torch.optim.SGD(groups, lr=0.1, momentum=0.9)
        schedule = NestedSchedule(min_density=0.02, full_fraction=0.1 if on else 1.0, rank_every=20)
        nested = NestedTraining(net, opt, 300, schedule=schedule, budgets_per_step=3 if on else 1)
        generator = torch.Generator().manual_seed(0)
        teacher = torch.randn(20, 5, generator=generator)
        x = torch.randn(512, 20, generator=generator)
        y = (x @ teacher).argmax(1)
        for _ in range(300):
            opt.zero_grad()
            nested.backward(x, partial(cross_entropy, target=y))
            opt.step()
        accuracies[on] = [
            float((nested.network(density)(x).argmax(1) == y).float().mean())
            for density in (0.03, 0.08, 0.3, 1.0)
        ]
    chance = float(torch.bincount(y).max()) / 512
    assert all(accuracy > chance + 0.15 for accuracy in accuracies[True])
    assert accuracies[True][1] > accuracies[False][1] + 0.1


@every
def test_a_branch_is_the_bases(kind: str) -> None:
    """It has no twin, begins with the base's state and is stepped by the base alone."""
    net, opt, nested = make_widths(
        Plain, opt=EVERY[f"twin-{kind}"], branch_at=(0.3, 0.6), schedule={"min_density": 0.25}
    )
    train(net, opt, nested, 0, 8)
    branches = list(nested._branches.by_rank.values())
    assert branches
    for branch in branches:
        assert type(branch.opt) is type(opt.base)
        keys = {key for state in branch.opt.state.values() for key in state}
        assert keys == {key for s in opt.state.values() for key in s} - {"v", "lambd_scale"}


@every
def test_widths_are_trained(kind: str) -> None:
    net, opt, nested = make_widths(
        Plain, opt=OPTIMIZERS[kind], schedule={"full_fraction": 0.0}, seed=1
    )
    for step in range(6):
        before = weights(net)
        train(net, opt, nested, step, step + 1)
        mask = nested.mask(nested.budgets[0])
        assert mask.density < 1
        for name in mask.names:
            p = net.get_parameter(name).detach()
            assert torch.equal(p[~mask[name]], before[name][~mask[name]])
            assert not torch.equal(p, before[name])


def test_widths_take_filters_whatever_the_groups_say() -> None:
    """Of another optimizer than DessiLBI they say what is ranked, and nothing else."""
    net = Plain().double()
    for groups in (split_parameters(net), net.parameters()):
        opt = torch.optim.AdamW(groups, lr=1e-3)  # type: ignore[arg-type]
        nested = NestedWidths(net, opt, 10, batch(0)[0])
        train(net, opt, nested, 0, 2)
        small = nested.network(0.5)
        assert (small.one.out_channels, small.norm.num_features) == (4, 4)
        assert small.out.weight.shape == (4, small.hidden.out_features)
        assert small.hidden.out_features < 10
        nested.close()


def test_branches_need_an_optimizer_for_all_parameters() -> None:
    net = Plain().double()
    opt = torch.optim.SGD([p for n, p in net.named_parameters() if n != "norm.bias"], lr=0.1)
    with pytest.raises(ValueError, match=r"'norm\.bias' is trained by another optimizer"):
        NestedWidths(net, opt, 10, batch(0)[0])
    nested = NestedWidths(net, opt, 10, batch(0)[0], branch_at=(1, 1))
    train(net, opt, nested, 0, 4)


def test_a_scaler_that_skips_a_step_leaves_the_next_one_alone() -> None:
    p = nn.Parameter(torch.ones(4))
    opt = torch.optim.SGD([p], lr=1.0)
    restriction = Restriction(opt)
    restriction.set({p: torch.tensor([True, False, True, False])})
    restriction.set({p: torch.tensor([True, True, False, False])})  # no step between
    p.grad = torch.ones(4)
    opt.step()
    assert p.tolist() == [0, 0, 1, 1]
    opt.step()
    assert p.tolist() == [-1, -1, 0, 0], "the next step is free"
    restriction.close()
    assert not opt._optimizer_step_post_hooks

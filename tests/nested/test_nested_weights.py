"""Nested training: what a step trains, what it leaves alone, and what can be read off after."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from compilers import needs_compiler
from dessilbi import DessiLBI, PathRecorder, SolutionPath, split_parameters
from dessilbi.nested.levels import FULL
from dessilbi.optim._reference import Reference
from dessilbi.path import count_macs_per_weight
from dessilbi.subnet import NestedTraining

if TYPE_CHECKING:
    from pathlib import Path

OPTIONS: dict[str, Any] = {
    "lr": 0.1,
    "nu": 5.0,
    "lambd": 0.05,
    "momentum": 0.9,
    "weight_decay": 1e-3,
}
EARLY: dict[str, Any] = {"begin": 0.0, "descended": 0.0, "settled": 1.0, "full": 0.2}
"""Every budget from the first step on."""


class Net(nn.Module):
    """A convolution by filter, BatchNorm, and two linear layers by element."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 8, 3)
        self.norm = nn.BatchNorm2d(8)
        self.hidden = nn.Linear(8 * 16, 20)
        self.out = nn.Linear(20, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.hidden(self.norm(self.conv(x)).relu().flatten(1)).relu())


def make(dtype: torch.dtype = torch.float64, **options: Any) -> tuple[Net, DessiLBI]:
    torch.manual_seed(0)
    net = Net().to(dtype)
    return net, DessiLBI(split_parameters(net), **(OPTIONS | options))


def batch(step: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(16, 1, 6, 6, dtype=torch.float64, generator=generator)
    return x.to(dtype), torch.randint(4, (16,), generator=generator)


def train(net: nn.Module, opt: DessiLBI, nested: NestedTraining, start: int, stop: int) -> None:
    for step in range(start, stop):
        x, y = batch(step, next(net.parameters()).dtype)
        opt.zero_grad()
        with nested:
            cross_entropy(net(x), y).backward()
        opt.step()


def weights(net: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in net.named_parameters()}


# ---------------------------------------------------------------------- a step


@pytest.mark.parametrize(
    "how", [{}, {"foreach": True}, pytest.param({"fused": True}, marks=needs_compiler)]
)
def test_steps_are_those_of_the_masked_network(how: dict[str, bool]) -> None:
    """Against gradients of the masked weights and the literal reference, step by step."""
    net, opt = make(**how)
    nested = NestedTraining(net, opt, 30, refresh=4, lowest=0.02, **EARLY)
    twins = dict(opt.twins())
    references = {}
    for name, p in net.named_parameters():
        kind = None
        if name in twins:
            kind = "group_lasso" if p.ndim == 4 else "lasso"
        references[name] = Reference(p.detach().clone(), penalty=kind, **OPTIONS)
    shadow = Net().double()
    budgets = set()
    for step in range(30):
        x, y = batch(step)
        opt.zero_grad()
        with nested:
            loss = cross_entropy(net(x), y)
            loss.backward()
            budgets.add(nested.budget)
            mask = nested.mask(nested.budget)
        opt.step()

        masked = {
            name: (r.W * mask[name] if name in twins else r.W.clone()).requires_grad_()
            for name, r in references.items()
        }
        wanted = cross_entropy(functional_call(shadow.train(), masked, (x,)), y)
        grads = torch.autograd.grad(wanted, list(masked.values()))
        torch.testing.assert_close(loss.detach(), wanted.detach())
        for (name, reference), grad in zip(references.items(), grads, strict=True):
            reference.step(grad, mask[name] if name in twins else None)
        for name, p in net.named_parameters():
            torch.testing.assert_close(p.detach(), references[name].W, rtol=1e-10, atol=1e-11)
    assert len(budgets) > 10
    assert max(budgets) == 1.0


def test_what_is_outside_feels_the_coupling_and_has_no_gradient() -> None:
    net, opt = make()
    nested = NestedTraining(net, opt, 100, lowest=0.02, highest=0.5, **EARLY | {"full": 0.0})
    before = weights(net)
    x, y = batch(0)
    with nested:
        cross_entropy(net(x), y).backward()
        mask = nested.mask(nested.budget)
    assert mask.density < 0.99
    assert all(torch.equal(p.detach(), before[n]) for n, p in net.named_parameters())
    for name in mask.names:
        p = net.get_parameter(name)
        assert p.grad is not None
        assert not p.grad[~mask[name]].any()
        assert p.grad[mask[name]].any()
    opt.step()
    for name in mask.names:  # V = 0, so Gamma = 0 and the coupling is W / nu
        p, W = net.get_parameter(name).detach(), before[name]
        torch.testing.assert_close(p[~mask[name]], (W - 0.1 * W / 5.0)[~mask[name]])
        assert not opt.state[net.get_parameter(name)]["momentum_buffer"][~mask[name]].any()


def test_the_forward_pass_sees_zeros_outside() -> None:
    net, opt = make()
    nested = NestedTraining(net, opt, 100, lowest=0.02, highest=0.5, **EARLY | {"full": 0.0})
    with nested:
        mask = nested.mask(nested.budget)
        for name in mask.names:
            p = net.get_parameter(name).detach()
            assert not p[~mask[name]].any()
            assert p[mask[name]].all()


def test_weights_come_back_when_the_body_raises() -> None:
    net, opt = make()
    nested = NestedTraining(net, opt, 100, lowest=0.02, highest=0.5, **EARLY | {"full": 0.0})
    before = weights(net)
    with pytest.raises(ZeroDivisionError), nested:
        1 / 0  # noqa: B018
    assert all(torch.equal(p.detach(), before[n]) for n, p in net.named_parameters())
    assert all(m.momentum == 0.1 for m in net.modules() if isinstance(m, nn.BatchNorm2d))
    x, y = batch(0)
    cross_entropy(net(x), y).backward()
    opt.step()  # a step without the context trains everything
    moved = net.out.weight.detach() != before["out.weight"] * (1 - 0.1 / 5.0)
    assert moved.all()


def test_contexts_do_not_nest_and_may_follow_each_other() -> None:
    """Several passes before a step accumulate gradients of one subnetwork."""
    net, opt = make()
    nested = NestedTraining(net, opt, 100, lowest=0.02, highest=0.5, **EARLY | {"full": 0.0})
    with nested, pytest.raises(RuntimeError, match="do not nest"):
        nested.__enter__()
    budgets = []
    for step in range(3):
        x, y = batch(step)
        with nested:
            cross_entropy(net(x), y).backward()
        budgets.append(nested.budget)
    opt.step()
    with nested:
        budgets.append(nested.budget)
    assert budgets[0] == budgets[1] == budgets[2] != budgets[3]


def test_batchnorm_statistics_follow_the_whole_network() -> None:
    net, opt = make()
    nested = NestedTraining(net, opt, 50, lowest=0.02, **EARLY)
    seen = set()
    for step in range(50):
        x, y = batch(step)
        assert net.norm.running_mean is not None
        before = net.norm.running_mean.clone()
        with nested:
            cross_entropy(net(x), y).backward()
        opt.step()
        changed = not torch.equal(before, net.norm.running_mean)
        assert changed == (nested.budget == 1)
        seen.add(changed)
    assert seen == {True, False}


def test_masked_batches_do_not_count_in_a_cumulative_average() -> None:
    net, opt = make()
    net.norm.momentum = None
    nested = NestedTraining(net, opt, 20, lowest=0.02, **EARLY | {"full": 0.5})
    seen = []
    for step in range(20):
        x, y = batch(step)
        if nested._drawn() == FULL:
            seen.append(net.conv(x).detach().mean((0, 2, 3)))
        opt.zero_grad()
        with nested:
            cross_entropy(net(x), y).backward()
        opt.step()
    assert 5 < len(seen) < 15
    assert net.norm.running_mean is not None
    torch.testing.assert_close(net.norm.running_mean, torch.stack(seen).mean(0))


@pytest.mark.parametrize("full", [0.0, 1.0])
def test_a_step_within_the_context_is_refused(full: float) -> None:
    """It would be lost where a subnetwork is in place, so it is refused from the first on."""
    net, opt = make()
    nested = NestedTraining(net, opt, 10, lowest=0.02, highest=0.5, **EARLY | {"full": full})
    before, (x, y) = weights(net), batch(0)
    with nested:
        cross_entropy(net(x), y).backward()
        with pytest.raises(RuntimeError, match="leave the `with` before"):
            opt.step()
    assert all(torch.equal(p.detach(), before[n]) for n, p in net.named_parameters())
    nested.close()
    with nested:
        opt.step()


def test_a_closure_may_open_and_close_the_context() -> None:
    net, opt = make()
    nested = NestedTraining(net, opt, 6, lowest=0.02, **EARLY)

    def closure(step: int) -> float:
        x, y = batch(step)
        opt.zero_grad()
        with nested:
            loss = cross_entropy(net(x), y)
            loss.backward()
        return float(loss.detach())

    for step in range(6):
        opt.step(partial(closure, step))
    other, other_opt = make()
    train(other, other_opt, NestedTraining(other, other_opt, 6, lowest=0.02, **EARLY), 0, 6)
    assert all(torch.equal(p, q) for p, q in zip(net.parameters(), other.parameters(), strict=True))


# ---------------------------------------------------------------------- the draws


@pytest.mark.parametrize("tilt", [0.5, 1.0, 2.0])
def test_budgets_fall_and_then_cover_the_whole_range(tilt: float) -> None:
    net, opt = make()
    nested = NestedTraining(
        net, opt, 1000, lowest=0.01, begin=0.1, descended=0.5, full=0.2, tilt=tilt, refresh=500
    )
    budgets = []
    for _ in range(1000):
        with nested:
            budgets.append(nested.budget)
        opt.step()
    assert set(budgets[:100]) == {1.0}
    early, late = budgets[100:300], budgets[500:]
    assert min(early) > 0.04 > 0.0103 > min(late) >= 0.01
    full = sum(b == 1 for b in late) / len(late)
    assert 0.15 < full < 0.27
    drawn = sorted(b for b in late if b < 1)
    middle = drawn[len(drawn) // 2]  # tilt 1, evenly in the logarithm: the geometric mean, 0.1
    assert 0.7 < middle / 0.01 ** (0.5**tilt) < 1.4


def test_draws_depend_on_seed_and_step_only() -> None:
    drawn = []
    for seed in (0, 0, 1):
        net, opt = make()
        nested = NestedTraining(net, opt, 100, seed=seed, **EARLY)
        budgets = []
        for _ in range(20):
            torch.rand(seed + 1)  # other consumers of random numbers do not matter
            with nested:
                budgets.append(nested.budget)
            opt.step()
        drawn.append(budgets)
    assert drawn[0] == drawn[1] != drawn[2]


def test_global_random_numbers_are_left_alone() -> None:
    net, opt = make()
    nested = NestedTraining(net, opt, 100, **EARLY)
    state = torch.get_rng_state()
    train(net, opt, nested, 0, 5)
    assert torch.equal(state, torch.get_rng_state())


# ---------------------------------------------------------------------- what came of it


def test_the_path_gives_the_trained_subnetworks(tmp_path: Path) -> None:
    net, opt = make()
    nested = NestedTraining(net, opt, 40, lowest=0.02, settled=0.5, begin=0.0, descended=0.2)
    recorder = PathRecorder(net, opt)
    assert nested.levels is None
    assert recorder.path.default_order == "magnitude"
    train(net, opt, nested, 0, 40)
    recorder.record(1, levels=nested.levels)
    recorder.path.save(tmp_path / "path.safetensors")
    for path in (recorder.path, SolutionPath.load(tmp_path / "path.safetensors")):
        assert path.default_order == "nested"
        smaller = None
        for density in (0.05, 0.2, 0.5, 1.0):
            trained = nested.mask(density)
            found = path.mask(density=trained.density)
            assert found == trained
            assert smaller is None or smaller.issubset(found)
            smaller = found
        assert path.mask(density=0.2) != path.mask(density=0.2, order="magnitude")
        macs = dict.fromkeys(trained.names, 2.0)
        by_macs = path.mask(macs=2 * nested.mask(0.2).kept, macs_per_weight=macs)
        assert by_macs == nested.mask(0.2)


def test_another_path_has_no_nested_order() -> None:
    net, opt = make()
    recorder = PathRecorder(net, opt)
    recorder.record(0)
    with pytest.raises(ValueError, match="needs the ranking of a nested run"):
        recorder.path.mask(density=0.5, order="nested")


@pytest.mark.parametrize("stop", [3, 17, 29])
def test_a_resumed_run_goes_on_as_if_it_had_not_stopped(stop: int) -> None:
    schedule: dict[str, Any] = {"lowest": 0.02, "begin": 0.2, "descended": 0.5, "refresh": 4}
    net, opt = make(torch.float32)
    whole = NestedTraining(net, opt, 30, **schedule)
    train(net, opt, whole, 0, 30)

    first, first_opt = make(torch.float32)
    before = NestedTraining(first, first_opt, 30, **schedule)
    train(first, first_opt, before, 0, stop)
    again, again_opt = make(torch.float32)
    again.load_state_dict(first.state_dict())
    again_opt.load_state_dict(first_opt.state_dict())
    after = NestedTraining(again, again_opt, 30, **schedule)
    after.load_state_dict(before.state_dict())
    train(again, again_opt, after, stop, 30)
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), again.parameters(), strict=True))
    assert whole.state_dict().keys() == after.state_dict().keys()


def test_a_ranking_of_another_network_is_refused() -> None:
    net, opt = make()
    nested = NestedTraining(net, opt, 30, **EARLY)
    train(net, opt, nested, 0, 2)
    state = nested.state_dict()
    state["levels.out.weight"] = state["levels.out.weight"][:-1]
    with pytest.raises(ValueError, match=r"does not fit layer 'out\.weight' with 80 groups"):
        nested.load_state_dict(state)


@pytest.mark.parametrize("fused", [False, pytest.param(True, marks=needs_compiler)])
def test_channels_last_weights(fused: bool) -> None:
    """Levels, masks and buffers lie in memory as the weights do."""
    results = []
    for layout in (torch.contiguous_format, torch.channels_last):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3), nn.Flatten())
        net = net.double().to(memory_format=layout)
        opt = DessiLBI(split_parameters(net, {"*": {"penalty": "lasso"}}), fused=fused, **OPTIONS)
        nested = NestedTraining(net, opt, 20, lowest=0.05, **EARLY)
        for step in range(20):
            generator = torch.Generator().manual_seed(step)
            x = torch.randn(8, 3, 5, 5, dtype=torch.float64, generator=generator)
            y = torch.randint(4, (8,), generator=generator)
            opt.zero_grad()
            with nested:
                cross_entropy(net(x), y).backward()
            opt.step()
        results.append(weights(net))
    for name, W in results[0].items():
        torch.testing.assert_close(W, results[1][name], rtol=1e-9, atol=1e-10)


def test_a_trained_run_is_better_at_small_budgets_than_one_shot() -> None:
    """The point of it all, on a toy: nested beats the same network cut down without it."""
    accuracies = {}
    for on in (False, True):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(20, 60), nn.ReLU(), nn.Linear(60, 5))
        opt = DessiLBI(split_parameters(net), lr=0.1, nu=100.0, lambd=0.03, momentum=0.9)
        nested = NestedTraining(net, opt, 400, lowest=0.02, full=0.1 if on else 1.0, refresh=20)
        generator = torch.Generator().manual_seed(0)
        teacher = torch.randn(20, 5, generator=generator)
        x = torch.randn(512, 20, generator=generator)
        y = (x @ teacher).argmax(1)
        for _ in range(400):
            opt.zero_grad()
            with nested:
                cross_entropy(net(x), y).backward()
            opt.step()
        mask = nested.mask(0.08)
        with torch.no_grad():
            for name in mask.names:
                net.get_parameter(name).mul_(mask[name])
            accuracies[on] = float((net(x).argmax(1) == y).float().mean())
    assert accuracies[True] > accuracies[False] + 0.1


# ---------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lowest": 0.0}, "lowest must lie in"),
        ({"highest": 0.001}, "highest must lie in"),
        ({"begin": -0.1}, "begin must lie in"),
        ({"begin": 0.5, "descended": 0.2}, "descended must lie in"),
        ({"settled": 0.0}, "settled must be >= begin"),
        ({"full": 1.5}, "full must lie in"),
        ({"refresh": 0}, "refresh must be >= 1"),
        ({"floor": -1}, "floor must be >= 0"),
        ({"tilt": 0.0}, "tilt must be > 0"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    net, opt = make()
    with pytest.raises(ValueError, match=message):
        NestedTraining(net, opt, 10, **options)


def test_bad_use() -> None:
    net, opt = make()
    with pytest.raises(ValueError, match="steps must be >= 1"):
        NestedTraining(net, opt, 0)
    nested = NestedTraining(net, opt, 10)
    with pytest.raises(RuntimeError, match="nothing is ranked yet"):
        nested.mask(0.5)
    with pytest.raises(ValueError, match="density must lie in"):
        nested.mask(0.0)
    other = Net()
    with pytest.raises(ValueError, match="is not one of the model's"):
        NestedTraining(other, opt, 10)


def test_closed_it_leaves_the_optimizer_alone() -> None:
    net, opt = make()
    nested = NestedTraining(net, opt, 10, **EARLY | {"full": 0.0})
    x, y = batch(0)
    with nested:
        cross_entropy(net(x), y).backward()
    nested.close()
    opt.step()
    assert net.out.weight.detach().ne(0).all()
    assert opt.state[net.out.weight]["momentum_buffer"].ne(0).any()


# ---------------------------------------------------------------------- multiply-adds


def by_element(**options: Any) -> tuple[Net, DessiLBI, NestedTraining]:
    torch.manual_seed(0)
    net = Net().double()
    opt = DessiLBI(split_parameters(net, {"*": {"penalty": "lasso"}}), **OPTIONS)
    return net, opt, NestedTraining(net, opt, 10, lowest=0.02, **EARLY, **options)


@pytest.mark.parametrize("thrift", [0.0, 0.25, 1.0])
def test_thrift_compares_weights_by_what_they_cost(thrift: float) -> None:
    macs = count_macs_per_weight(Net().double(), batch(0)[0])
    assert macs == {"conv.weight": 16, "hidden.weight": 1, "out.weight": 1}
    net, opt, nested = by_element(macs=macs, thrift=thrift)
    before = weights(net)
    train(net, opt, nested, 0, 1)
    worth = torch.cat([(before[n].abs() / macs[n] ** thrift).flatten() for n in macs])
    for density in (0.1, 0.3, 0.6):
        mask = nested.mask(density)
        kept = torch.cat([mask[n].flatten() for n in macs])
        # Scores that differ by less than 0.4 % share a bin; and each layer keeps its best weight.
        assert worth[kept].sort().values[2] >= worth[~kept].max() * 0.99
        assert float(kept.double().mean()) == pytest.approx(density, rel=0.06)


def test_thrift_saves_multiply_adds() -> None:
    macs = count_macs_per_weight(Net().double(), batch(0)[0])
    spent = []
    for thrift in (0.0, 0.25):
        net, opt, nested = by_element(macs=macs, thrift=thrift)
        train(net, opt, nested, 0, 10)
        mask = nested.mask(0.2)
        spent.append(sum(macs[n] * int(mask[n].sum()) for n in macs))
    assert spent[1] < 0.9 * spent[0]


def test_thrift_needs_costs_and_layers_that_are_compared() -> None:
    with pytest.raises(ValueError, match="thrift must be >= 0, got -1"):
        by_element(thrift=-1)
    with pytest.raises(ValueError, match="thrift needs macs"):
        by_element(thrift=0.5)
    with pytest.raises(ValueError, match="every layer keeps the same fraction"):
        by_element(thrift=0.5, macs={}, uniform=True)
    net, opt = make()
    with pytest.raises(ValueError, match="every layer keeps the same fraction"):
        NestedTraining(net, opt, 10, thrift=0.5, macs={})

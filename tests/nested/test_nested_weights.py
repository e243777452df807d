"""Nested training by weight: what a step trains, what it leaves alone, what can be read off."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
from nested_nets import (
    OPTIONS,
    Net,
    Plain,
    Remembering,
    batch,
    by_weight,
    make,
    make_widths,
    train,
    train_in_place,
    weights,
)
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy
from torch.testing._internal.distributed.fake_pg import FakeStore

from compilers import needs_compiler
from dessilbi import (
    DessiLBI,
    NestedTraining,
    PathRecorder,
    SolutionPath,
    recalibrate_batchnorm,
    split_parameters,
)
from dessilbi.optim._reference import Reference
from dessilbi.path import count_macs_per_weight

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NEVER_WHOLE = {"max_density": 0.5, "full_fraction": 0.0}


# ---------------------------------------------------------------------- a step


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize(
    "how", [{}, {"foreach": True}, pytest.param({"fused": True}, marks=needs_compiler)]
)
def test_gradients_of_all_networks_add_up(how: dict[str, bool], in_place: bool) -> None:
    """Against gradients of the masked weights and the literal reference, step by step."""
    net, opt = make(**how)
    # Else a filter that is not there is 0 before its ReLU but for rounding, which decides.
    nn.init.normal_(net.norm.bias)
    nested = by_weight(net, opt, budgets_per_step=3)
    twins = dict(opt.twins())
    references = {}
    for name, p in net.named_parameters():
        kind = None
        if name in twins:
            kind = "group_lasso" if p.ndim == 4 else "lasso"
        references[name] = Reference(p.detach().clone(), penalty=kind, **OPTIONS)
    shadow = Net().double().train()
    drawn = []
    for step in range(30):
        x, y = batch(step)
        opt.zero_grad()
        if in_place:
            with nested:
                loss = cross_entropy(net(x), y)
                loss.backward()
        else:
            _, loss = nested.backward(x, partial(cross_entropy, target=y))
        opt.step()
        drawn.append(nested.budgets)
        masks = [nested.mask(budget) for budget in nested.budgets]
        total: dict[str, Tensor] = {}
        for number, mask in enumerate(masks):
            masked = {
                name: (r.W * mask[name] if name in twins else r.W.clone()).requires_grad_()
                for name, r in references.items()
            }
            wanted = cross_entropy(functional_call(shadow, masked, (x,)), y)
            if number == 0:
                torch.testing.assert_close(loss.detach(), wanted.detach())
            grads = torch.autograd.grad(wanted, list(masked.values()))
            for name, grad in zip(masked, grads, strict=True):
                inside = grad * mask[name] if name in twins else grad
                total[name] = total.get(name, 0) + inside
        for name, reference in references.items():
            reference.step(total[name], masks[0][name] if name in twins else None)
            torch.testing.assert_close(net.get_parameter(name).detach(), reference.W)
    assert {len(budgets) for budgets in drawn} == ({1} if in_place else {3, 4})
    assert max(budgets[0] for budgets in drawn) == 1


def test_what_is_outside_feels_the_coupling_and_has_no_gradient() -> None:
    net, opt = make()
    nested = by_weight(net, opt, schedule=NEVER_WHOLE)
    before = weights(net)
    x, y = batch(0)
    nested.backward(x, partial(cross_entropy, target=y))
    mask = nested.mask(nested.budgets[0])
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


def test_a_loss_may_read_what_forward_stored() -> None:
    """An auxiliary loss gets the value of the pass that it is made for, whatever was before."""
    torch.manual_seed(0)
    net = Remembering().double()
    opt = torch.optim.SGD(split_parameters(net), lr=0.1)
    nested = by_weight(net, opt, budgets_per_step=2)
    x, y = batch(0)
    with torch.no_grad():
        net(-x)  # an evaluation in between
    nested.backward(x, lambda output: cross_entropy(output, y) + net.h.square().mean())
    budgets, found = nested.budgets, {n: p.grad for n, p in net.named_parameters()}
    assert len(budgets) >= 2
    wanted = {n: torch.zeros_like(p) for n, p in net.named_parameters()}
    for budget in budgets:
        mask = nested.mask(budget)
        masked = {
            n: (p.detach() * mask[n] if n in mask.names else p.detach()).requires_grad_()
            for n, p in net.named_parameters()
        }
        value = cross_entropy(functional_call(net, masked, (x,)), y) + net.h.square().mean()
        for name, grad in zip(masked, torch.autograd.grad(value, [*masked.values()]), strict=True):
            wanted[name] += grad * mask[name] if name in mask.names else grad
    for name, grad in wanted.items():
        torch.testing.assert_close(found[name], grad)
    assert nested.network(budgets[0])(x).shape == (16, 4), "a graph in the network is not copied"


def test_a_loss_sees_the_weights_of_its_pass() -> None:
    net, opt = make()
    nested = by_weight(net, opt, schedule=NEVER_WHOLE)
    seen = []
    x, y = batch(0)

    def loss(output: Tensor) -> Tensor:
        seen.append(float((net.hidden.weight != 0).double().mean()))
        return cross_entropy(output, y) + net.hidden.weight.abs().sum()

    nested.backward(x, loss)
    assert seen == sorted(seen)
    assert len(seen) == 2
    assert seen[-1] < 0.6
    mask = nested.mask(nested.budgets[0])["hidden.weight"]
    assert net.hidden.weight.grad is not None
    assert not net.hidden.weight.grad[~mask].any()


def test_hooks_that_are_added_during_training_are_called() -> None:
    net, opt = make()
    nested = by_weight(net, opt, 60)
    train(net, opt, nested, 0, 20)
    calls = []
    net.hidden.register_forward_hook(lambda *_: calls.append("forward"))
    net.hidden.register_full_backward_hook(lambda *_: calls.append("backward"))
    networks = 0
    for step in range(20, 30):
        train(net, opt, nested, step, step + 1)
        networks += len(nested.budgets)
    assert calls.count("forward") == calls.count("backward") == networks


def test_statistics_follow_the_whole_network() -> None:
    net, opt = make()
    nested = by_weight(net, opt, 40)
    changes = []
    for step in range(40):
        before = {name: b.clone() for name, b in net.norm.named_buffers()}
        (train if step % 2 else train_in_place)(net, opt, nested, step, step + 1)
        changed = any(not torch.equal(b, before[name]) for name, b in net.norm.named_buffers())
        assert changed is (nested.budgets[0] == 1)
        changes.append(changed)
    assert set(changes) == {True, False}


def test_without_the_whole_network_statistics_follow_the_largest() -> None:
    net, opt = make()
    nested = by_weight(net, opt, schedule=NEVER_WHOLE)
    x, y = batch(0)
    nested.backward(x, partial(cross_entropy, target=y))
    other = Net().double()
    other.load_state_dict(make()[0].state_dict())
    with torch.no_grad():
        for name in nested.mask(0.5).names:
            other.get_parameter(name).mul_(nested.mask(nested.budgets[0])[name])
    other(x)
    for name, b in net.named_buffers():
        assert torch.equal(b, other.get_buffer(name))


def test_a_batch_may_come_in_parts() -> None:
    found = []
    for parts in (1, 2):
        torch.manual_seed(0)
        net = Remembering().double()
        opt = DessiLBI(split_parameters(net), **OPTIONS)
        nested = by_weight(net, opt)
        for step in range(12):
            x, y = batch(step)
            opt.zero_grad()
            for some, labels in zip(x.chunk(parts), y.chunk(parts), strict=True):
                nested.backward(some, partial(cross_entropy, target=labels), weight=1 / parts)
            opt.step()
        found.append(weights(net))
    for name, W in found[0].items():
        torch.testing.assert_close(found[1][name], W)


def test_one_budget_a_step_is_that_of_the_context() -> None:
    found = []
    for step_by in (train, train_in_place):
        net, opt = make()
        nn.init.normal_(net.norm.bias)
        step_by(net, opt, by_weight(net, opt, 40, budgets_per_step=1), 0, 40)
        found.append(weights(net))
    for name, W in found[0].items():
        torch.testing.assert_close(found[1][name], W)


def test_a_frozen_weight_stays() -> None:
    net, opt = make()
    net.hidden.weight.requires_grad_(requires_grad=False)
    before = net.hidden.weight.clone()
    train(net, opt, by_weight(net, opt), 0, 8)
    assert torch.equal(net.hidden.weight, before)
    assert net.hidden.weight.grad is None


def test_outputs_may_be_structures_and_inputs_several() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(3, 4), nn.Linear(5, 4)

        def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
            return {"sum": self.one(x) + self.two(y)}

    net = Two()
    opt = torch.optim.SGD(split_parameters(net), lr=0.1)
    nested = by_weight(net, opt)
    output, _ = nested.backward((torch.ones(2, 3), torch.ones(2, 5)), lambda o: o["sum"].sum())
    assert not output["sum"].requires_grad
    opt.step()


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_weights_may_lie_in_memory_as_they_like(layout: torch.memory_format) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3), nn.Flatten())
    twin = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3), nn.Flatten()).double()
    twin.load_state_dict(net.state_dict())
    for one in (net.double().to(memory_format=layout), twin):
        opt = DessiLBI(split_parameters(one, {"*": {"penalty": "lasso"}}), **OPTIONS)
        nested = by_weight(one, opt)
        for step in range(8):
            generator = torch.Generator().manual_seed(step)
            x = torch.randn(8, 3, 5, 5, dtype=torch.float64, generator=generator)
            opt.zero_grad()
            nested.backward(x, lambda output: output.square().mean())
            opt.step()
    for name, W in weights(net).items():
        torch.testing.assert_close(W, twin.get_parameter(name).detach(), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("widths", [False, True])
def test_a_compiled_network_may_be_given(widths: bool) -> None:
    """It is a wrapper that has no length, and so no truth value."""
    found = []
    for compiled in (False, True):
        net: nn.Module
        opt: torch.optim.Optimizer
        if widths:
            net, opt, nested = make_widths(Plain)
        else:
            net, opt = make()
            nested = by_weight(net, opt)  # type: ignore[assignment]
        wrapped = torch.compile(net, backend="eager") if compiled else net
        for step in range(4):
            x, y = batch(step)
            opt.zero_grad()
            nested.backward(x, partial(cross_entropy, target=y), net=wrapped)
            opt.step()
        found.append(weights(net))
    for name, W in found[0].items():
        torch.testing.assert_close(found[1][name], W)


# ---------------------------------------------------------------------- weights in place


def test_the_forward_pass_sees_zeros_outside_and_weights_come_back() -> None:
    net, opt = make()
    nested = by_weight(net, opt, schedule=NEVER_WHOLE)
    before = weights(net)
    with suppress(ArithmeticError), nested:
        mask = nested.mask(nested.budgets[0])
        for name in mask.names:
            p = net.get_parameter(name).detach()
            assert not p[~mask[name]].any()
            assert p[mask[name]].all()
        raise ArithmeticError
    assert all(torch.equal(p.detach(), before[n]) for n, p in net.named_parameters())
    x, y = batch(0)
    cross_entropy(net(x), y).backward()
    opt.step()  # a step without the context trains everything
    moved = net.out.weight.detach() != before["out.weight"] * (1 - 0.1 / 5.0)
    assert moved.all()


def test_contexts_do_not_nest_and_may_follow_each_other() -> None:
    """Several passes before a step accumulate gradients of one subnetwork."""
    net, opt = make()
    nested = by_weight(net, opt, schedule=NEVER_WHOLE)
    with nested, pytest.raises(RuntimeError, match="do not nest"):
        nested.__enter__()
    budgets = []
    for step in range(3):
        x, y = batch(step)
        with nested:
            cross_entropy(net(x), y).backward()
        budgets += nested.budgets
    opt.step()
    with nested:
        budgets += nested.budgets
    assert budgets[0] == budgets[1] == budgets[2] != budgets[3]


@pytest.mark.parametrize("full_fraction", [0.0, 1.0])
def test_a_step_within_the_context_is_refused(full_fraction: float) -> None:
    """It would be lost where a subnetwork is in place, so it is refused from the first on."""
    net, opt = make()
    nested = by_weight(net, opt, schedule={"full_fraction": full_fraction})
    before, (x, y) = weights(net), batch(0)
    with nested:
        cross_entropy(net(x), y).backward()
        with pytest.raises(RuntimeError, match="leave the `with` before"):
            opt.step()
    assert all(torch.equal(p.detach(), before[n]) for n, p in net.named_parameters())
    nested.close()
    with nested:
        opt.step()


@pytest.mark.parametrize("adam", [False, True])
def test_a_closure_may_open_and_close_the_context(adam: bool) -> None:
    found = []
    for by_closure in (True, False):
        net, opt = make()
        optimizer = torch.optim.Adam(split_parameters(net)) if adam else opt
        nested = by_weight(net, optimizer, 6, schedule={"full_fraction": 0.0})

        def closure(step: int, net: Net = net, opt: Any = optimizer, nested: Any = nested) -> float:
            x, y = batch(step)
            opt.zero_grad()
            with nested:
                loss = cross_entropy(net(x), y)
                loss.backward()
            return float(loss.detach())

        if by_closure:
            for step in range(6):
                optimizer.step(partial(closure, step))  # type: ignore[arg-type]
        else:
            train_in_place(net, optimizer, nested, 0, 6)
        found.append(weights(net))
    assert all(torch.equal(W, found[1][name]) for name, W in found[0].items())


@pytest.mark.parametrize("parts", [1, 2])
def test_passes_of_another_loop_are_those_of_backward(parts: int) -> None:
    """Gradients of a batch in parts add up, and each budget masks its own only."""
    found = []
    for by_loop in (False, True):
        net, opt = make()
        nested = by_weight(net, opt, 12, schedule={"full_fraction": 0.4})
        for step in range(12):
            x, y = batch(step)
            opt.zero_grad()
            for k in range(parts):
                part, labels = x[k::parts], y[k::parts]
                if not by_loop:
                    nested.backward(part, partial(cross_entropy, target=labels))
                    continue
                drawn = []
                for budget in nested.passes():
                    drawn.append(budget)
                    cross_entropy(net(part), labels).backward()
                assert tuple(reversed(drawn)) == nested.budgets
            opt.step()
        found.append(net.state_dict())
    for name, tensor in found[0].items():
        torch.testing.assert_close(found[1][name], tensor, rtol=1e-12, atol=1e-12, msg=name)


def test_passes_that_are_given_up_leave_everything_as_it_was() -> None:
    net, opt = make()
    nested = by_weight(net, opt)
    before = weights(net)
    x, y = batch(0)

    def step_within() -> None:
        for _ in nested.passes():
            cross_entropy(net(x), y).backward()
            opt.step()

    with pytest.raises(RuntimeError, match="leave the `with` before"):
        step_within()
    assert all(torch.equal(p, before[name]) for name, p in net.named_parameters())
    for _ in nested.passes():
        cross_entropy(net(x), y).backward()
    opt.step()
    assert not torch.equal(net.conv.weight, before["conv.weight"])


def test_autocast_sees_the_weights_that_are_in_place() -> None:
    """It keeps casts of weights by their identity, which a swap does not change."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    opt = torch.optim.SGD(split_parameters(net), lr=0.0)
    nested = by_weight(net, opt, schedule=NEVER_WHOLE)
    x = torch.randn(4, 8)
    with torch.autocast("cpu", torch.bfloat16):
        whole = net(x)
        with nested:
            masked = net(x)
        again = net(x)
    assert torch.equal(whole, again)
    assert not torch.equal(whole, masked)


@pytest.mark.parametrize("widths", [False, True])
def test_a_training_within_one_autocast_is_that_of_a_context_a_step(widths: bool) -> None:
    found = []
    for outer in (False, True):
        if widths:
            net, opt, nested = make_widths(Plain)
        else:
            net, opt = make(torch.float32)
            nested = by_weight(net, opt, schedule={"full_fraction": 1.0})
        net.float()
        with torch.autocast("cpu", torch.bfloat16, enabled=outer):
            for step in range(6):
                x, y = batch(step, torch.float32)
                opt.zero_grad()
                with torch.autocast("cpu", torch.bfloat16):
                    nested.backward(x, partial(cross_entropy, target=y))
                opt.step()
        found.append(weights(net))
    assert all(torch.equal(W, found[1][name]) for name, W in found[0].items())


# ---------------------------------------------------------------------- what came of it


def test_the_path_gives_the_trained_subnetworks(tmp_path: Path) -> None:
    net, opt = make()
    nested = by_weight(net, opt, 40, {"freeze_ranking_at": 0.5, "ramp_end": 0.2})
    recorder = PathRecorder(net, opt, nested=nested)
    assert nested.budget_ranks is None
    assert nested.dependents is None
    assert recorder.path.default_order == "magnitude"
    train(net, opt, nested, 0, 40)
    recorder.record(1)
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


def test_a_network_is_ready_to_be_used() -> None:
    net, opt = make()
    nested = by_weight(net, opt)
    train(net, opt, nested, 0, 30)
    images = [batch(step)[0] for step in range(22, 30)]
    before = {name: t.clone() for name, t in net.state_dict().items()}
    found = nested.network(0.2)
    given = nested.network(0.2, iter(images))
    mask = nested.mask(0.2)
    wanted = Net().double()
    wanted.load_state_dict(net.state_dict())
    with torch.no_grad():
        for name in mask.names:
            wanted.get_parameter(name).mul_(mask[name])
    recalibrate_batchnorm(wanted, images)
    wanted.eval()
    for one in (found, given):
        assert isinstance(one, Net)
        assert not one.training
        assert all(p.grad is None for p in one.parameters())
        assert torch.equal(one(images[0]), wanted(images[0])), "the last eight batches"
    assert all(torch.equal(t, before[name]) for name, t in net.state_dict().items())


def test_the_whole_network_is_given_statistics_of_its_last_weights() -> None:
    """Most steps do not train it: what its BatchNorm layers remember is of earlier ones."""
    net, opt = make()
    nested = by_weight(net, opt)
    train(net, opt, nested, 0, 30)
    images = [batch(step)[0] for step in range(22, 30)]
    whole = nested.network(1.0)
    wanted = Net().double()
    wanted.load_state_dict(net.state_dict())
    recalibrate_batchnorm(wanted, images)
    assert torch.equal(whole(images[0]), wanted.eval()(images[0]))
    assert not torch.equal(whole(images[0]), net.eval()(images[0]))


def test_a_network_with_batchnorm_needs_inputs() -> None:
    net, opt = make()
    nested = by_weight(net, opt)
    train_in_place(net, opt, nested, 0, 2)
    with pytest.raises(ValueError, match="recalibrate_on must be given"):
        nested.network(0.2)
    with pytest.raises(ValueError, match="recalibrate_on must be given"):
        nested.network(1.0)
    assert torch.equal(
        nested.network(0.2, batch(0)[0])(batch(1)[0]),
        nested.network(0.2, [batch(0)[0]])(batch(1)[0]),
    )


@pytest.mark.parametrize("stop", [3, 17, 29])
def test_a_resumed_run_goes_on_as_if_it_had_not_stopped(stop: int) -> None:
    schedule = {"ramp_start": 0.2, "ramp_end": 0.5}
    net, opt = make(torch.float32)
    nested = by_weight(net, opt, 30, schedule)
    train(net, opt, nested, 0, stop)
    other, its_opt = make(torch.float32)
    its_nested = by_weight(other, its_opt, 30, schedule)
    other.load_state_dict(net.state_dict())
    its_opt.load_state_dict(opt.state_dict())
    its_nested.load_state_dict({n: t.clone() for n, t in nested.state_dict().items()})
    train(net, opt, nested, stop, 30)
    train(other, its_opt, its_nested, stop, 30)
    assert all(torch.equal(p, q) for p, q in zip(net.parameters(), other.parameters(), strict=True))


def test_a_ranking_of_another_network_is_refused() -> None:
    net, opt = make()
    nested = by_weight(net, opt)
    train(net, opt, nested, 0, 2)
    state = nested.state_dict()
    state["ranks/out.weight"] = state["ranks/out.weight"][:-1]
    with pytest.raises(ValueError, match=r"does not fit layer 'out\.weight' with 80 groups"):
        nested.load_state_dict(state)


# ---------------------------------------------------------------------- multiply-adds


def by_element(**options: Any) -> tuple[Net, DessiLBI, NestedTraining]:
    torch.manual_seed(0)
    net = Net().double()
    opt = DessiLBI(split_parameters(net, {"*": {"penalty": "lasso"}}), **OPTIONS)
    return net, opt, by_weight(net, opt, 10, **options)


@pytest.mark.parametrize("exponent", [0.0, 0.25, 1.0])
def test_weights_are_compared_by_what_they_cost(exponent: float) -> None:
    macs = count_macs_per_weight(Net().double(), batch(0)[0])
    assert macs == {"conv.weight": 16, "hidden.weight": 1, "out.weight": 1}
    net, opt, nested = by_element(macs=macs, mac_exponent=exponent)
    before = weights(net)
    train(net, opt, nested, 0, 1)
    worth = torch.cat([(before[n].abs() / macs[n] ** exponent).flatten() for n in macs])
    for density in (0.1, 0.3, 0.6):
        mask = nested.mask(density)
        kept = torch.cat([mask[n].flatten() for n in macs])
        # Scores that differ by less than 0.4 % share a bin; and each layer keeps its best weight.
        assert worth[kept].sort().values[2] >= worth[~kept].max() * 0.99
        assert float(kept.double().mean()) == pytest.approx(density, rel=0.06)


# ---------------------------------------------------------------------- bad input


def test_bad_options() -> None:
    net, opt = make()
    for options, message in (
        ({"steps": 0}, "steps must be >= 1, got 0"),
        ({"min_groups": -1}, "min_groups must be >= 0, got -1"),
        ({"budgets_per_step": 0}, "budgets_per_step must be >= 1, got 0"),
        ({"mac_exponent": -1}, "mac_exponent must be >= 0, got -1"),
        ({"mac_exponent": 0.5}, "mac_exponent needs macs"),
        ({"mac_exponent": 0.5, "macs": {}}, "every layer keeps the same fraction"),
    ):
        with pytest.raises(ValueError, match=message):
            by_weight(net, opt, **options)  # type: ignore[arg-type]
    assert not opt._optimizer_step_post_hooks, "nothing is left behind"


def test_bad_use() -> None:
    net, opt = make()
    nested = NestedTraining(net, opt, 10)
    for use in (nested.mask, nested.network):
        with pytest.raises(RuntimeError, match="nothing is ranked yet"):
            use(0.5)
        with pytest.raises(ValueError, match="density must lie in"):
            use(0.0)
    with pytest.raises(ValueError, match="is not one of the model's"):
        NestedTraining(Net(), opt, 10)


def test_closed_it_leaves_the_optimizer_alone() -> None:
    net, opt = make()
    nested = by_weight(net, opt, schedule=NEVER_WHOLE)
    x, y = batch(0)
    nested.backward(x, partial(cross_entropy, target=y))
    nested.close()
    opt.step()
    assert net.out.weight.detach().ne(0).all()
    assert opt.state[net.out.weight]["momentum_buffer"].ne(0).any()


def test_filters_are_trained_two_budgets_a_step() -> None:
    net, opt = make()
    assert NestedTraining(net, opt, 10).budgets_per_step == 2
    elements = DessiLBI(split_parameters(net, {"*": {"penalty": "lasso"}}))
    assert NestedTraining(net, elements, 10).budgets_per_step == 3


# ---------------------------------------------------------------------- several processes


@pytest.fixture
def _two_processes() -> Iterator[None]:
    """As one of two that answers itself."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("_two_processes")
@pytest.mark.parametrize("widths", [False, True])
def test_ranks_that_would_drift_apart_are_refused(widths: bool) -> None:
    if widths:
        net, _, nested = make_widths(Plain)
    else:
        net, opt = make()
        nested = by_weight(net, opt)
    x, y = batch(0)
    with pytest.raises(ValueError, match="this is one of 2 processes, and the network is not wr"):
        nested.backward(x, partial(cross_entropy, target=y))
    assert all(p.grad is None for p in net.parameters())
    nested.backward(x, partial(cross_entropy, target=y), net=net)
    assert any(p.grad is not None for p in net.parameters())

"""Several budgets a step: gradients add up, by the kernels that skip weights and without them."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import pytest
import torch
from dessilbi.lean import program
from test_subnet_nested import EARLY, OPTIONS, Net, batch, make, weights
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy, linear

from compilers import needs_compiler
from dessilbi import DessiLBI, split_parameters
from dessilbi.nested import passes
from dessilbi.optim._reference import Reference
from dessilbi.subnet import NestedTraining

KERNELS = [pytest.param(True, marks=needs_compiler), False]
NESTED: dict[str, Any] = {"refresh": 4, "lowest": 0.02, "networks": 3, **EARLY}


@pytest.fixture(params=KERNELS, ids=["skipping", "masked"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    if not request.param:
        monkeypatch.setattr(program, "available", lambda _: False)
    return bool(request.param)


def train(net: nn.Module, opt: DessiLBI, nested: NestedTraining, start: int, stop: int) -> None:
    for step in range(start, stop):
        x, y = batch(step, next(net.parameters()).dtype)
        opt.zero_grad()
        nested.backward(x, partial(cross_entropy, target=y))
        opt.step()


class Counted(passes.SubnetPasses):
    """How many passes were made by the kernels, and how many of those skipped weights."""

    made = skipped = 0

    def by_program(self, level: int, run: passes.Run, *, remember: bool) -> tuple[Any, Tensor]:
        assert run.program is not None
        Counted.made += 1
        Counted.skipped += bool(self._lists(level, run.program))
        return super().by_program(level, run, remember=remember)


def test_gradients_of_all_networks_add_up(kernels: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against gradients of the masked weights and the literal reference, step by step."""
    monkeypatch.setattr("dessilbi.nested.weights.SubnetPasses", Counted)
    Counted.made = Counted.skipped = 0
    net, opt = make()
    # Else a filter that is not there is 0 before its ReLU but for rounding, which decides.
    nn.init.normal_(net.norm.bias)
    nested = NestedTraining(net, opt, 30, **NESTED)
    twins = dict(opt.twins())
    references = {}
    for name, p in net.named_parameters():
        kind = None
        if name in twins:
            kind = "group_lasso" if p.ndim == 4 else "lasso"
        references[name] = Reference(p.detach().clone(), penalty=kind, **OPTIONS)
    shadow = Net().double()
    drawn = []
    for step in range(30):
        x, y = batch(step)
        opt.zero_grad()
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
            wanted = cross_entropy(functional_call(shadow.train(), masked, (x,)), y)
            if number == 0:
                torch.testing.assert_close(loss, wanted.detach())
            grads = torch.autograd.grad(wanted, list(masked.values()))
            for name, grad in zip(masked, grads, strict=True):
                inside = grad * mask[name] if name in twins else grad
                total[name] = total.get(name, 0) + inside
        for name, reference in references.items():
            reference.step(total[name], masks[0][name] if name in twins else None)
            torch.testing.assert_close(net.get_parameter(name).detach(), reference.W)
    assert {len(budgets) for budgets in drawn} == {3, 4}
    assert Counted.made == (sum(map(len, drawn)) if kernels else 0)
    assert (Counted.skipped > 10) is kernels
    assert Counted.skipped < Counted.made or not kernels, "most of the weights are not skipped"


@pytest.mark.parametrize(("networks", "tilt"), [(2, 1.0), (3, 1.0), (3, 2.0), (5, 1.0)])
def test_each_network_has_a_part_of_the_budgets(networks: int, tilt: float) -> None:
    net, opt = make()
    nested = NestedTraining(
        net, opt, 400, lowest=0.01, highest=0.4, full=0.1, networks=networks, tilt=tilt
    )
    drawn = []
    for step in range(400):
        x, y = batch(step)
        opt.zero_grad()
        nested.backward(x, partial(cross_entropy, target=y))
        opt.step()
        drawn.append(nested.budgets)
    assert all(len(budgets) == 1 for budgets in drawn[:100]), "budgets are still falling"
    late = drawn[100:]
    whole = sum(budgets[0] == 1 for budgets in late) / len(late)
    assert 0.08 < whole < 0.12
    assert all(len(set(budgets)) == len(budgets) for budgets in late)
    part = (0.01 / 0.4) ** (1 / networks)
    parts = [[b for b in budgets if b < 1] for budgets in late]
    parts = [budgets for budgets in parts if len(budgets) == networks]
    assert len(parts) > 280, "but for two at one end of their parts"
    for k in range(networks):
        one = sorted(budgets[k] for budgets in parts)
        assert 0.4 * part ** (k + 1) / 1.02 < one[0]
        assert one[-1] < 0.4 * part**k * 1.02
        if tilt == 1:
            assert all(b / a < 1.1 for a, b in itertools.pairwise(one)), "no gap"
        else:
            assert one[len(one) // 2] > 0.4 * part ** (k + 0.4), "large ones more often"


def test_one_network_is_one_budget_a_step(kernels: bool) -> None:
    found = []
    for by_hand in (True, False):
        net, opt = make()
        nn.init.normal_(net.norm.bias)
        nested = NestedTraining(net, opt, 40, **(NESTED | {"networks": 1}))
        for step in range(40):
            x, y = batch(step)
            opt.zero_grad()
            if by_hand:
                with nested:
                    cross_entropy(net(x), y).backward()
            else:
                nested.backward(x, partial(cross_entropy, target=y))
            opt.step()
        found.append(weights(net))
    for name, W in found[0].items():
        torch.testing.assert_close(found[1][name], W)


class Smooth(nn.Module):
    """Two layers without BatchNorm, so that a batch may come in parts."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(36, 30), nn.Linear(30, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.two(self.one(x.flatten(1)).relu())


def test_a_batch_may_come_in_parts(kernels: bool) -> None:
    found = []
    for parts in (1, 2):
        torch.manual_seed(0)
        net = Smooth().double()
        opt = DessiLBI(split_parameters(net), **OPTIONS)
        nested = NestedTraining(net, opt, 30, **NESTED)
        for step in range(30):
            x, y = batch(step)
            opt.zero_grad()
            for some, labels in zip(x.chunk(parts), y.chunk(parts), strict=True):
                nested.backward(some, partial(cross_entropy, target=labels), weight=1 / parts)
            opt.step()
        found.append(weights(net))
    for name, W in found[0].items():
        torch.testing.assert_close(found[1][name], W)


class Tied(nn.Module):
    """Uses a weight once as a layer does and once in a way of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(36, 36), nn.Linear(36, 4)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.one(x.flatten(1)).relu()
        return self.two(linear(hidden, self.one.weight.t()))


class Scripted(nn.Module):
    """Calls functions that no mode sees."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.jit.script(Smooth())

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.inner(x)
        return y


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("kind", [Tied, Scripted])
def test_weights_that_no_kernel_can_skip(
    kind: type[nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for available in (True, False):
        if not available:
            monkeypatch.setattr(program, "available", lambda _: False)
        torch.manual_seed(0)
        net = kind().double()
        opt = DessiLBI(net.named_parameters(), **OPTIONS)
        nested = NestedTraining(net, opt, 30, **NESTED)
        train(net, opt, nested, 0, 30)
        found.append(weights(net))
    for name, W in found[0].items():
        assert torch.equal(found[1][name], W)


def test_statistics_follow_the_whole_network(kernels: bool) -> None:
    net, opt = make()
    nested = NestedTraining(net, opt, 40, **NESTED)
    for step in range(40):
        before = {name: b.clone() for name, b in net.norm.named_buffers()}
        train(net, opt, nested, step, step + 1)
        changed = any(not torch.equal(b, before[name]) for name, b in net.norm.named_buffers())
        assert changed is (nested.budget == 1)
        assert net.norm.momentum == 0.1


def test_a_frozen_weight_stays(kernels: bool) -> None:
    net, opt = make()
    net.hidden.weight.requires_grad_(requires_grad=False)
    before = net.hidden.weight.clone()
    train(net, opt, NestedTraining(net, opt, 12, **NESTED), 0, 12)
    assert torch.equal(net.hidden.weight, before)
    assert net.hidden.weight.grad is None


def test_a_pass_that_fails_leaves_the_weights(kernels: bool) -> None:
    net, opt = make()
    nested = NestedTraining(net, opt, 30, **(NESTED | {"full": 0.0}))
    x, y = batch(0)
    before = weights(net)

    def fail(output: Tensor) -> Tensor:
        raise ArithmeticError

    with pytest.raises(ArithmeticError):
        nested.backward(x, fail)
    for name, W in weights(net).items():
        assert torch.equal(W, before[name])
    assert net.norm.momentum == 0.1
    nested.backward(x, partial(cross_entropy, target=y))
    opt.step()


@pytest.mark.parametrize("stop", [3, 17, 29])
def test_a_resumed_run_goes_on_as_if_it_had_not_stopped(kernels: bool, stop: int) -> None:
    net, opt = make()
    nested = NestedTraining(net, opt, 40, **NESTED)
    train(net, opt, nested, 0, stop)
    saved = [{k: v.clone() for k, v in one.state_dict().items()} for one in (net, nested)]
    of_opt = opt.state_dict()
    other, its_opt = make()
    its_nested = NestedTraining(other, its_opt, 40, **NESTED)
    other.load_state_dict(saved[0])
    its_opt.load_state_dict(of_opt)
    its_nested.load_state_dict(saved[1])
    train(net, opt, nested, stop, 40)
    train(other, its_opt, its_nested, stop, 40)
    for name, W in weights(net).items():
        assert torch.equal(W, other.get_parameter(name))


def test_filters_are_trained_two_budgets_a_step() -> None:
    net, opt = make()
    assert NestedTraining(net, opt, 10).networks == 2
    by_weight = DessiLBI(split_parameters(net, {"*": {"penalty": "lasso"}}))
    assert NestedTraining(net, by_weight, 10).networks == 3


def test_bad_options() -> None:
    net, opt = make()
    with pytest.raises(ValueError, match="networks must be >= 1, got 0"):
        NestedTraining(net, opt, 10, networks=0)

"""SplitLBI around optimizers that others wrote, and inside of what others wrap optimizers in."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest
import torch
from contract_problems import assert_same, make_grads, make_params, set_grads, state_of
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.optim.lr_scheduler import OneCycleLR

from dessilbi import PathRecorder, SplitLBI, project, split_parameters

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from torch.optim import Optimizer

    Make = Callable[[Any], Optimizer]


def lion(groups: Any) -> Optimizer:
    return pytest.importorskip("lion_pytorch").Lion(groups, lr=0.05, weight_decay=0.1)


def schedule_free_adamw(groups: Any) -> Optimizer:
    made = pytest.importorskip("schedulefree").AdamWScheduleFree(
        groups, lr=0.05, warmup_steps=3, weight_decay=0.1
    )
    made.train()
    return made


def schedule_free_sgd(groups: Any) -> Optimizer:
    made = pytest.importorskip("schedulefree").SGDScheduleFree(groups, lr=0.1, weight_decay=0.1)
    made.train()
    return made


def adamw_8_bit(groups: Any) -> Optimizer:
    return pytest.importorskip("bitsandbytes").optim.AdamW8bit(groups, lr=0.05)


BASES = [lion, schedule_free_adamw, schedule_free_sgd, adamw_8_bit]
TWIN: dict[str, Any] = {"nu": 0.5, "lambd": 0.05, "kappa": 2.0}
every_base = pytest.mark.parametrize("make", BASES, ids=lambda make: make.__name__)


@every_base
def test_the_coupling_comes_before_a_step_of_the_base(make: Make) -> None:
    """And is all that is done to the weights beside it."""
    ours = make_params(torch.float32)
    theirs = {name: nn.Parameter(p.detach().clone()) for name, p in ours.items()}
    alone = make(list(theirs.items()))
    opt = SplitLBI(make(list(ours.items())), **TWIN)
    V = {name: torch.zeros_like(p) for name, p in theirs.items() if p.ndim > 1}
    for k in range(12):
        grads = make_grads(theirs.values(), k)
        with torch.no_grad():
            for name, p in theirs.items():
                if name in V:
                    Gamma = TWIN["kappa"] * opt.penalty(ours[name]).prox(V[name])
                    C = (p - Gamma) / TWIN["nu"]
                    rate = alone.param_groups[0]["lr"]
                    p.sub_(rate * C)
                    V[name] += rate / TWIN["kappa"] * C
        for p, grad in zip(theirs.values(), grads, strict=True):
            p.grad = grad
        set_grads(ours.values(), k)
        alone.step()
        opt.step()
    for name, p in ours.items():
        torch.testing.assert_close(p, theirs[name], rtol=1e-5, atol=1e-6)
        if name in V:
            torch.testing.assert_close(opt.dual(p), V[name], rtol=1e-5, atol=1e-6)
    assert 0 < opt.density() < 1


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 20), nn.Tanh(), nn.Linear(20, 3))


def train(
    net: nn.Module, opt: Any, steps: int, start: int = 0, backward: Any = Tensor.backward
) -> None:
    for k in range(start, start + steps):
        x = torch.randn(16, 6, generator=torch.Generator().manual_seed(k))
        opt.zero_grad()
        backward(mse_loss(net(x), x[:, :3].sin()))
        opt.step()


@every_base
def test_a_run_goes_on_from_its_state_dict(make: Make) -> None:
    net = network()
    opt = SplitLBI(make(split_parameters(net)), **TWIN)
    train(net, opt, 10)
    assert 0 < opt.density() < 1
    saved = copy.deepcopy((net.state_dict(), opt.state_dict()))
    train(net, opt, 5, start=10)
    again = network()
    resumed = SplitLBI(make(split_parameters(again)), **TWIN)
    again.load_state_dict(saved[0])
    resumed.load_state_dict(saved[1])
    train(again, resumed, 5, start=10)
    assert_same(dict(net.state_dict()), dict(again.state_dict()))
    for p, q in zip(net.parameters(), again.parameters(), strict=True):
        for key in set(opt.twin_keys) & opt.state[p].keys():
            assert torch.equal(opt.state[p][key], resumed.state[q][key])


def test_a_schedule_free_twin_is_trained_and_evaluated() -> None:
    """``train`` and ``eval`` are the base's: they exchange the weights, and V stays."""
    net = network()
    opt = SplitLBI(schedule_free_adamw(split_parameters(net)), **TWIN)
    recorder = PathRecorder(net, opt)
    train(net, opt, 15)
    training = state_of(opt)
    opt.eval()
    evaluated = state_of(opt)
    assert torch.equal(training["0.v"], evaluated["0.v"])
    assert not torch.equal(training["0.W"], evaluated["0.W"])
    recorder.record(1)
    with project(net, recorder.path.mask(epoch=1)):
        weight = net[0].weight.detach()
        assert torch.equal(weight != 0, opt.support(net[0].weight))
    opt.train()
    for key, tensor in state_of(opt).items():
        torch.testing.assert_close(tensor, training[key], msg=key)
    assert recorder.step == 15


# ---------------------------------------------------------------------- accelerate


def prepared(net: nn.Module, opt: Optimizer, *more: Any, **options: Any) -> tuple[Any, ...]:
    accelerate = pytest.importorskip("accelerate")
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerator = accelerate.Accelerator(cpu=True, **options)
    return accelerator, *accelerator.prepare(net, opt, *more)


def twin_of(net: nn.Module) -> SplitLBI:
    return SplitLBI(torch.optim.AdamW(split_parameters(net), lr=0.05), **TWIN)


def test_accelerate_trains_the_same(tmp_path: Path) -> None:
    plain, net = network(), network()
    alone, twin = twin_of(plain), twin_of(net)
    schedules = [OneCycleLR(opt, max_lr=0.05, total_steps=40) for opt in (alone, twin)]
    recorder = PathRecorder(net, twin)
    accelerator, model, opt, schedule = prepared(net, twin, schedules[1])
    for k in range(20):
        train(plain, alone, 1, start=k)
        schedules[0].step()
        train(model, opt, 1, start=k, backward=accelerator.backward)
        schedule.step()
    assert_same(state_of(twin), state_of(alone))
    assert 0 < twin.density() < 1
    assert recorder.step == 20

    accelerator.save_state(str(tmp_path))
    train(model, opt, 3, start=20, backward=accelerator.backward)
    after = state_of(twin)
    accelerator.load_state(str(tmp_path))
    assert_same(state_of(twin), state_of(alone))
    train(model, opt, 3, start=20, backward=accelerator.backward)
    assert_same(state_of(twin), after)


def test_accelerate_accumulates_gradients() -> None:
    """Between two steps nothing moves, neither W nor V."""
    net = network()
    twin = twin_of(net)
    accelerator, model, opt = prepared(net, twin, gradient_accumulation_steps=2)
    moved = []
    for k in range(6):
        before = state_of(twin)
        with accelerator.accumulate(model):
            train(model, opt, 1, start=k, backward=accelerator.backward)
        after = state_of(twin)
        moved.append(
            after.keys() != before.keys()
            or any(not torch.equal(after[key], before[key]) for key in after)
        )
    assert moved == [False, True] * 3


def test_the_recorder_follows_the_optimizer_inside() -> None:
    net = network()
    accelerator, model, opt = prepared(net, twin_of(net))
    recorder = PathRecorder(model, opt)
    train(model, opt, 3, backward=accelerator.backward)
    assert recorder.step == 3
    _, model, opt = prepared(network(), torch.optim.AdamW(network().parameters()))
    with pytest.raises(TypeError, match=r"must be a DessiLBI or SplitLBI optimizer, got AdamW"):
        PathRecorder(model, opt)

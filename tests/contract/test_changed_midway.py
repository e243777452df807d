"""Parameters and options that change between steps: handled, or refused before anything moves."""

from __future__ import annotations

import math
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import pytest
import torch
from contract_problems import (
    LIVELY,
    assert_same,
    make_params,
    needs_compiler,
    run,
    set_grads,
    state_of,
)
from torch import nn
from torch._dynamo.exc import InternalTorchDynamoError

from dessilbi.optim import DessiLBI

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.filterwarnings(
    "ignore:`torch.jit.script_method` is deprecated:DeprecationWarning"
)

LOOP, FOREACH, FUSED = {"foreach": False}, {"foreach": True}, {"fused": True}
WAYS = [
    pytest.param((LOOP, False), id="loop"),
    pytest.param((FOREACH, False), id="foreach"),
    pytest.param((FUSED, False), id="fused", marks=needs_compiler),
    pytest.param((LOOP, True), id="compiled"),
]
# torch.compile hands on what is raised in words, as an error of its own.
REFUSALS = (ValueError, InternalTorchDynamoError)
# A traced step looks at its parameters' shapes as torch.optim's do: see the test of them.
EAGER = WAYS[:-1]
Way = tuple[dict[str, Any], bool]


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Steps:
    """An optimizer on a convolution, a matrix and a bias, in two groups, and a way to step it."""

    def __init__(self, way: Way, **options: Any) -> None:
        implementation, compiled = way
        conv, linear, bias = make_params().items()
        groups = [{"params": [conv, linear]}, {"params": [bias]}]
        self.opt = DessiLBI(groups, **{**LIVELY, "momentum": 0.9, **implementation, **options})
        self.params = [p for group in self.opt.param_groups for p in group["params"]]
        self.step = torch.compile(self.opt.step, backend="eager") if compiled else self.opt.step

    def run(self, steps: int, start: int = 0) -> None:
        for k in range(start, start + steps):
            set_grads(self.params, k)
            self.step()

    def assert_refuses(self, message: str) -> None:
        """The next step is refused, and nothing has moved; state of zeros may have been made."""
        before = state_of(self.opt)
        with pytest.raises(REFUSALS, match=message):
            self.step()
        after = state_of(self.opt)
        assert_same({key: after[key] for key in before}, before)


@pytest.mark.parametrize("way", EAGER)
@pytest.mark.parametrize("shape", [(100000, 6), (1, 6), (5, 6, 1), (6, 5)], ids=str)
def test_a_parameter_of_another_shape_is_refused(way: Way, shape: tuple[int, ...]) -> None:
    steps = Steps(way)
    steps.run(2)
    steps.params[1].data = torch.randn(shape, dtype=torch.float64)
    steps.params[1].grad = torch.randn(shape, dtype=torch.float64)
    steps.assert_refuses(r"v of parameter 'linear' has shape \(5, 6\).*make a new optimizer")


@needs_compiler
@pytest.mark.parametrize("shape", [(100000, 6), (1, 6)], ids=str)
def test_a_traced_step_refuses_other_shapes_too(shape: tuple[int, ...]) -> None:
    p = nn.Parameter(torch.randn(5, 6))
    opt = DessiLBI([p], momentum=0.9, **LIVELY)
    step = torch.compile(opt.step)
    for data in (p.data, p.data, torch.randn(shape)):
        p.data, p.grad = data, torch.ones_like(data)
        if data.shape == (5, 6):
            step()
    with pytest.raises(AssertionError, match="expected size"):
        step()
    assert torch.equal(p, data)


@pytest.mark.parametrize("way", EAGER)
def test_a_momentum_buffer_alone_is_looked_at(way: Way) -> None:
    steps = Steps(way)
    steps.run(2)
    steps.params[2].data = torch.randn(100000, dtype=torch.float64)
    steps.params[2].grad = torch.randn(100000, dtype=torch.float64)
    steps.assert_refuses(r"momentum_buffer of parameter 'bias' has shape \(7,\)")


@pytest.mark.parametrize("way", EAGER)
@pytest.mark.parametrize("begun", [False, True])
def test_a_stale_gradient_is_refused(way: Way, begun: bool) -> None:
    steps = Steps(way)
    if begun:
        steps.run(2)
    set_grads(steps.params, 2)
    steps.params[1].data = torch.randn(100000, 6, dtype=torch.float64)
    steps.assert_refuses(r"the gradient of parameter 'linear' has shape \(5, 6\)")


@pytest.mark.parametrize("way", WAYS)
def test_a_stale_update_mask_is_refused(way: Way) -> None:
    steps = Steps(way)
    bias = steps.params[2]
    steps.opt.restrict({bias: torch.ones_like(bias, dtype=torch.bool)})
    bias.data = torch.randn(100000, dtype=torch.float64)
    set_grads(steps.params, 0)
    steps.assert_refuses(r"the update mask of parameter 'bias' has shape \(7,\)")


@pytest.mark.parametrize("way", WAYS)
def test_a_tied_group_is_looked_at_as_a_whole(way: Way) -> None:
    """A member that is not stepped is a part of the norms all the same."""
    implementation, compiled = way
    a, b = nn.Parameter(torch.ones(4, 3)), nn.Parameter(torch.ones(4, 2))
    opt = DessiLBI([a, b], penalty="group_lasso", tied=True, **LIVELY, **implementation)
    step = torch.compile(opt.step, backend="eager") if compiled else opt.step
    run(opt, 2)
    b.data, b.grad, a.grad = torch.ones(5, 2), None, torch.ones_like(a)
    with pytest.raises(REFUSALS, match=r"parameter group 0|shape \(4, 2\)"):
        step()


def test_questions_about_a_replaced_parameter_are_refused() -> None:
    steps = Steps((LOOP, False))
    steps.run(2)
    linear = steps.params[1]
    linear.data, linear.grad = torch.randn(1, 6, dtype=torch.float64), None
    for ask in (steps.opt.gamma, steps.opt.support, steps.opt.density):
        with pytest.raises(ValueError, match="v of parameter 'linear' has shape"):
            ask(linear)


@pytest.mark.parametrize("way", WAYS)
def test_the_same_shape_in_other_memory_goes_on(way: Way) -> None:
    """``p.data = ...`` with a tensor that fits is how some libraries load weights."""
    steps, copy = Steps(way), Steps((LOOP, False))
    steps.run(2)
    copy.run(2)
    conv = steps.params[0]
    conv.data = conv.data.clone(memory_format=torch.channels_last)
    steps.run(3, start=2)
    copy.run(3, start=2)
    for p, q in zip(steps.params, copy.params, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-12, atol=1e-12)


CHANGES = [
    ({"nu": 0}, r"nu must be > 0, got 0 \(parameter group 1\)"),
    ({"nu": -1.0}, r"nu must be > 0, got -1.0 \(parameter group 1\)"),
    ({"nu": math.nan}, r"nu must be > 0, got nan \(parameter group 1\)"),
    ({"lambd": math.nan}, r"lambd must be >= 0 and finite, got nan \(parameter group 1\)"),
    ({"lambd": torch.tensor(1.0)}, r"lambd must be a number, not a tensor"),
    ({"kappa": 0.0}, r"kappa must be > 0, got 0.0"),
    ({"lr": -0.1}, r"lr must be >= 0 and finite, got -0.1"),
    ({"lr": math.nan}, r"lr must be >= 0 and finite, got nan"),
    ({"lr": "0.1"}, r"lr must be >= 0 and finite, got '0.1'"),
    ({"lr": torch.tensor(-0.1)}, r"lr must be >= 0 and finite"),
    ({"lr": torch.ones(2)}, r"lr must be a number or a one-element tensor"),
    ({"momentum": math.inf}, r"momentum must be >= 0 and finite, got inf"),
    ({"weight_decay": -1.0}, r"weight_decay must be >= 0 and finite, got -1.0"),
    ({"momentum": 0, "nesterov": True}, r"nesterov=True needs momentum > 0"),
    ({"coupling": "loose"}, r"coupling must be 'direct' or 'momentum', got 'loose'"),
    ({"penalty": "l1"}, r"penalty must be 'auto'"),
    ({"lambd_scale": "norm"}, r"lambd_scale must be None"),
    ({"penalty": "group_lasso", "group_dim": 1}, r"group_dim must be in \[-1, 0\].*'bias'"),
    ({"foreach": True, "fused": True}, r"foreach and fused cannot both be True"),
]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("change", "message"), CHANGES, ids=str)
def test_options_are_checked_when_they_change(
    way: Way, change: dict[str, Any], message: str
) -> None:
    steps = Steps(way)
    steps.run(2)
    steps.opt.param_groups[1].update(change)
    set_grads(steps.params, 2)
    steps.assert_refuses(message)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("option", ["nu", "lambd", "lr", "momentum", "weight_decay", "kappa"])
def test_options_may_change(way: Way, option: str) -> None:
    """Each implementation follows a change, and a return to the values of before."""
    steps, truth = Steps(way), Steps((LOOP, False))
    for k in range(6):
        for one in (steps, truth):
            one.opt.param_groups[0][option] = [0.5, 0.7, 0.7, 0.5, 0.9, 0.5][k]
            one.run(1, start=k)
    for p, q in zip(steps.params, truth.params, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("way", WAYS)
def test_a_tensor_lr_is_looked_at(way: Way) -> None:
    if way[1]:
        pytest.skip("a traced step does not read its lr back from the device")
    lr = torch.tensor(0.1, dtype=torch.float64)
    steps = Steps(way, lr=lr)
    steps.run(2)
    lr.fill_(math.nan)
    set_grads(steps.params, 2)
    steps.assert_refuses(r"lr must be >= 0 and finite, got tensor\(nan")


@pytest.mark.parametrize("way", WAYS)
def test_thresholds_of_other_groups_are_refused(way: Way) -> None:
    """Square slices: kernel and loop would have read them in different ways."""
    implementation, compiled = way
    p = nn.Parameter(torch.randn(4, 4))
    opt = DessiLBI([p], penalty="group_lasso", lambd_scale="init", **LIVELY, **implementation)
    step = torch.compile(opt.step, backend="eager") if compiled else opt.step
    run(opt, 1)
    opt.param_groups[0]["group_dim"] = 1
    with pytest.raises(REFUSALS, match=r"thresholds of parameter 0 of its group.*group_dim=1"):
        step()


@pytest.mark.parametrize("way", WAYS)
def test_a_refused_option_can_be_put_right(way: Way) -> None:
    steps, truth = Steps(way), Steps((LOOP, False))
    steps.run(2)
    steps.opt.param_groups[0]["nu"] = 0
    set_grads(steps.params, 2)
    steps.assert_refuses("nu must be > 0")
    steps.opt.param_groups[0]["nu"] = LIVELY["nu"]
    steps.run(3, start=2)
    truth.run(5)
    for p, q in zip(steps.params, truth.params, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-12, atol=1e-12)


# ---------------------------------------------------------------- refused state dicts


def everything(opt: DessiLBI) -> Any:
    """All that an optimizer holds, as objects that would not survive being replaced or changed."""
    groups = [{k: v for k, v in g.items() if k != "params"} for g in opt.param_groups]
    state = {p: dict(s) for p, s in opt.state.items()}
    hooks = [dict(value) for key, value in vars(opt).items() if key.endswith("_hooks")]
    values = {(p, k): t.clone() for p, s in opt.state.items() for k, t in s.items()}
    return opt.state, opt.param_groups, groups, state, dict(opt.defaults), hooks, values


def assert_untouched(opt: DessiLBI, before: Any) -> None:
    state, param_groups, groups, by_parameter, defaults, hooks, values = before
    now = everything(opt)
    assert now[0] is state
    assert now[1] is param_groups
    assert now[2] == groups
    assert [list(s) for s in now[3].values()] == [list(s) for s in by_parameter.values()]
    for p, s in by_parameter.items():
        assert all(now[3][p][key] is tensor for key, tensor in s.items())
    assert now[4] == defaults
    assert now[5] == hooks
    assert all(torch.equal(now[6][key], value) for key, value in values.items())


def saved(**options: Any) -> dict[str, Any]:
    steps = Steps((LOOP, False), lambd_scale="init", **options)
    steps.run(3)
    return deepcopy(steps.opt.state_dict())


def spoilt_shape(state: dict[str, Any]) -> None:
    state["state"][1]["v"] = torch.zeros(6, 5)


def spoilt_threshold(state: dict[str, Any]) -> None:
    state["state"][0]["lambd_scale"] = torch.ones(4, 2, 1, 1)


def spoilt_option(state: dict[str, Any]) -> None:
    state["param_groups"][1]["nu"] = 0


def spoilt_group(state: dict[str, Any]) -> None:
    state["param_groups"].pop()


def spoilt_length(state: dict[str, Any]) -> None:
    state["param_groups"][0]["params"].pop()


def spoilt_tensor(state: dict[str, Any]) -> None:
    state["state"][0]["v"] = "not a tensor"


SPOILT = [
    (spoilt_shape, r"v of shape \(6, 5\) was saved for another parameter"),
    (spoilt_threshold, r"thresholds of parameter 'conv'"),
    (spoilt_option, r"nu must be > 0, got 0 \(parameter group 1\)"),
    (spoilt_group, "different number of parameter groups"),
    (spoilt_length, "doesn't match the size"),
    (spoilt_tensor, "v of parameter 'conv' must be a tensor, got str"),
]


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize(("spoil", "message"), SPOILT)
def test_a_refused_state_dict_leaves_the_optimizer_as_it_was(
    spoil: Any, message: str, begun: bool
) -> None:
    steps = Steps((LOOP, False), lambd_scale="init", nu=7.0)
    if begun:
        steps.run(2)
    state = saved()
    spoil(state)
    before = everything(steps.opt)
    with pytest.raises(ValueError, match=message):
        steps.opt.load_state_dict(state)
    assert_untouched(steps.opt, before)
    steps.run(2)  # and it goes on


@pytest.mark.parametrize("prepend", [False, True])
def test_a_hook_that_fails_refuses_the_state_dict(prepend: bool) -> None:
    steps = Steps((LOOP, False), nu=7.0, lambd_scale="init")
    steps.run(2)

    def fail(_: Any) -> None:
        raise RuntimeError("no")

    steps.opt.register_load_state_dict_post_hook(fail, prepend=prepend)
    before = everything(steps.opt)
    with pytest.raises(RuntimeError, match="no"):
        steps.opt.load_state_dict(saved())
    assert_untouched(steps.opt, before)

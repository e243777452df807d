"""The CPU-runnable cases of torch's own optimizer tests, re-created for DessiLBI."""

from __future__ import annotations

import inspect
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import pytest
import torch
from contract_problems import IMPLEMENTATIONS, LIVELY, VARIANTS, make_params, run, set_grads
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau, StepLR
from torch.testing._internal.common_optimizers import (
    ErrorOptimizerInput,
    OptimizerErrorEnum,
    OptimizerInfo,
    OptimizerInput,
    get_error_inputs_for_all_optims,
)

from dessilbi.optim import DessiLBI

if TYPE_CHECKING:
    from collections.abc import Callable


def _inputs(device: str, dtype: torch.dtype | None = None) -> list[OptimizerInput]:
    """The table of options, as torch's tests want it: without implementation flags."""
    table = {
        **VARIANTS,
        "lr": {"lr": 0.01},
        "tensor_lr": {"lr": torch.tensor(0.05)},
        "one_element_lr": {"lr": torch.tensor([0.05], dtype=torch.float64)},
    }
    return [OptimizerInput(params=None, kwargs=o, desc=name) for name, o in table.items()]


def _error_inputs(device: str, dtype: torch.dtype) -> list[ErrorOptimizerInput]:
    own = []
    for kwargs, message in [
        ({"lr": -0.1}, r"lr must be >= 0 and finite, got -0\.1"),
        ({"lr": float("nan")}, "lr must be >= 0 and finite, got nan"),
        ({"lr": torch.tensor(-1.0)}, "lr must be >= 0 and finite"),
        ({"kappa": 0.0}, r"kappa must be > 0, got 0\.0"),
        ({"kappa": float("inf")}, "kappa must be finite, got inf"),
        ({"nu": -1.0}, r"nu must be > 0, got -1\.0"),
        ({"lambd": -1.0}, r"lambd must be >= 0 and finite, got -1\.0"),
        ({"momentum": -0.5}, r"momentum must be >= 0 and finite, got -0\.5"),
        ({"weight_decay": -1}, "weight_decay must be >= 0 and finite, got -1"),
        ({"momentum": "0.9"}, r"momentum must be >= 0 and finite, got '0\.9'"),
        ({"nesterov": True}, r"nesterov=True needs momentum > 0, got momentum=0\.0.*; set"),
        ({"penalty": "l2"}, "penalty must be 'auto', 'lasso', 'group_lasso', None or .* got 'l2'"),
        ({"coupling": "both"}, "coupling must be 'direct' or 'momentum', got 'both'"),
        ({"lambd_scale": "big"}, "lambd_scale must be None, 'size' or 'init', got 'big'"),
        ({"group_dim": 0.5}, r"group_dim must be an integer .*, got 0\.5"),
        ({"foreach": True, "fused": True}, "foreach and fused cannot both be True.*; choose one"),
    ]:
        inputs = OptimizerInput(params=None, kwargs=kwargs, desc=str(kwargs))
        own.append(ErrorOptimizerInput(inputs, error_type=ValueError, error_regex=message))
    return [*_torch_error_inputs(device, dtype), *own]


# Where DessiLBI words torch's errors in its own way, and refuses what torch only warns of.
OWN_WORDS = {
    "Tensor lr must be 1-element": r"lr must be a number or a one-element tensor, got shape \(2,\)",
    ".*a parameter group with duplicate parameters.*": "the same parameter appears twice in param",
}


def _torch_error_inputs(device: str, dtype: torch.dtype) -> list[ErrorOptimizerInput]:
    inputs = get_error_inputs_for_all_optims(device, dtype)
    for e in inputs:
        if e.error_regex in OWN_WORDS:
            e.error_type, e.error_regex = ValueError, OWN_WORDS[e.error_regex]
    return inputs


INFO = OptimizerInfo(
    DessiLBI,
    optim_inputs_func=_inputs,
    optim_error_inputs_func=_error_inputs,
    supported_impls=("foreach", "fused"),
    not_og_supported_flags=("foreach", "fused", "maximize"),
    supports_complex=False,
    supports_fused_on=("cpu", "cuda"),
)
INPUTS = [pytest.param(o.kwargs, id=o.desc) for o in INFO.optim_inputs_func("cpu")]
ERRORS = [
    pytest.param(e, id=e.optimizer_error_input.desc)
    for e in INFO.optim_error_inputs_func("cpu", torch.float32)
]
# torch's own defaults for such an info: StepLR together with ReduceLROnPlateau.
Schedulers = list["Callable[[DessiLBI], LRScheduler | ReduceLROnPlateau]"]
SCHEDULERS: list[Schedulers] = [[], *INFO.scheduler_inputs]


def test_info_does_not_name_implementations() -> None:
    """As for torch's infos: the flags of an implementation belong to the test, not to the table."""
    for option in INFO.optim_inputs_func("cpu"):
        assert not {"foreach", "fused", "differentiable"} & option.kwargs.keys()


@pytest.mark.parametrize("error", ERRORS)
def test_errors(error: ErrorOptimizerInput) -> None:
    assert error.error_on is OptimizerErrorEnum.CONSTRUCTION_ERROR
    given = error.optimizer_error_input
    params = [nn.Parameter(torch.randn(2, 3))] if given.params is None else given.params
    with pytest.raises(error.error_type, match=error.error_regex):
        DessiLBI(params, **given.kwargs)


def _losses(
    weight: Tensor,
    bias: Tensor,
    options: dict[str, Any],
    maximize: bool,
    schedulers: Schedulers,
    steps: int = 20,
) -> tuple[float, float]:
    """Before and after some steps."""
    weight, bias = nn.Parameter(weight), nn.Parameter(bias)
    x = torch.randn(5, generator=torch.Generator().manual_seed(2))
    opt = DessiLBI([weight, bias], **{"lr": 1e-3, "nu": 1000.0, **options, "maximize": maximize})
    schedules = [make(opt) for make in schedulers]

    def closure() -> Tensor:
        opt.zero_grad()
        loss = (weight.mv(x) + bias).square().sum()
        if maximize:
            assert torch.isfinite(loss)
        loss.backward()
        return loss

    initial = closure().item()
    for _ in range(steps):
        loss = opt.step(closure).item()
        for schedule in schedules:
            if isinstance(schedule, ReduceLROnPlateau):
                schedule.step(loss)
            else:
                schedule.step()
    return initial, closure().item()


@pytest.mark.parametrize("schedulers", SCHEDULERS, ids=["fixed", "scheduled"])
@pytest.mark.parametrize("contiguous", [True, False])
@pytest.mark.parametrize("maximize", [True, False])
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_goes_right_direction(
    implementation: dict[str, Any], maximize: bool, contiguous: bool, schedulers: Schedulers
) -> None:
    for option in INFO.optim_inputs_func("cpu"):
        kwargs = {**option.kwargs, **implementation, "weight_decay": 0.0}
        if "lr" in kwargs:
            kwargs["lr"] = kwargs["lr"] * 0.1
        if contiguous:
            weight, bias = torch.randn(10, 5), torch.randn(10)
        else:
            weight, bias = torch.randn(10, 5, 2)[..., 0], torch.randn(10, 2)[..., 0]
        initial, final = _losses(weight, bias, kwargs, maximize, schedulers)
        assert final > initial if maximize else final < initial


def test_param_groups_lr() -> None:
    """A group with lr 0 stays, the others use their own or the default lr."""
    for default_lr, own_lr in [(0.1, 0.0), (0.0, 0.1), (0.1, 0.02)]:
        weight, bias = nn.Parameter(torch.randn(3, 4)), nn.Parameter(torch.randn(3))
        w0, b0 = weight.detach().clone(), bias.detach().clone()
        opt = DessiLBI(
            [{"params": [weight]}, {"params": [bias], "lr": own_lr}],
            lr=default_lr,
            weight_decay=0.1,
            decoupled_weight_decay=True,
        )
        run(opt, 3)
        assert torch.equal(weight, w0) == (default_lr == 0)
        assert torch.equal(bias, b0) == (own_lr == 0)
        assert [g["lr"] for g in opt.param_groups] == [default_lr, own_lr]


def test_param_groups_weight_decay() -> None:
    weight, bias = nn.Parameter(torch.randn(3, 4)), nn.Parameter(torch.randn(3))
    groups = [{"params": [weight], "weight_decay": 0.5}, {"params": [bias]}]
    opt = DessiLBI(groups, lr=0.1, penalty=None)
    before = weight.detach().clone(), bias.detach().clone()
    for p in (weight, bias):
        p.grad = torch.zeros_like(p)
    opt.step()
    torch.testing.assert_close(weight.detach(), before[0] * 0.95)
    assert torch.equal(bias, before[1])


@pytest.mark.parametrize("options", INPUTS)
@pytest.mark.parametrize("fast", [p for p in IMPLEMENTATIONS if p.id != "loop"])
@pytest.mark.parametrize("dtypes", ["float32", "mixed"])
def test_fast_matches_forloop(fast: dict[str, Any], options: dict[str, Any], dtypes: str) -> None:
    """Ten steps on nine tensors; 'mixed' has three dtypes and a large tensor in one group."""
    chosen = [torch.float32] * 3 if dtypes == "float32" else [torch.float64, torch.float32]
    if dtypes == "mixed":
        chosen.append(torch.bfloat16)

    def make(flags: dict[str, Any]) -> tuple[DessiLBI, list[nn.Parameter]]:
        params = [p for i, d in enumerate(chosen) for p in make_params(d, seed=i).values()]
        if dtypes == "mixed":
            g = torch.Generator().manual_seed(9)
            params.append(nn.Parameter(torch.randn(300, 301, generator=g)))
        kwargs = deepcopy({**LIVELY, **options, **flags})
        return DessiLBI(params, **kwargs), params

    (slow, expected), (quick, got) = make({"foreach": False}), make(fast)
    run(slow, 10)
    run(quick, 10)
    for p, q in zip(expected, got, strict=True):
        # A bf16 weight may round the other way in a different order of sums.
        tolerance = {"rtol": 5e-2, "atol": 5e-2} if p.dtype is torch.bfloat16 else {}
        torch.testing.assert_close(q, p, **tolerance)
        assert slow.state[p].keys() == quick.state[q].keys()
        for key, value in slow.state[p].items():
            torch.testing.assert_close(quick.state[q][key], value, **tolerance)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_step_without_any_gradient(implementation: dict[str, Any]) -> None:
    """A step on a group without any gradient does nothing, in every implementation."""
    opt = DessiLBI(make_params().values(), **LIVELY, **implementation)
    opt.step()
    assert not opt.state


@pytest.mark.parametrize("options", INPUTS)
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_step_is_noop_when_params_have_no_grad(
    implementation: dict[str, Any], options: dict[str, Any]
) -> None:
    params = list(make_params().values())
    before = [p.detach().clone() for p in params]
    opt = DessiLBI(params, **options, **implementation)
    loss = opt.step(lambda: 1.0)
    assert loss == 1.0
    assert not opt.state
    for p, old in zip(params, before, strict=True):
        assert torch.equal(p, old)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_zero_grads_move_only_by_coupling_and_decay(implementation: dict[str, Any]) -> None:
    """Where torch's optimizers rest, DessiLBI still pulls W to Gamma, and V to W."""
    params = make_params()
    old = {name: p.detach().clone() for name, p in params.items()}
    opt = DessiLBI(params.values(), lr=0.1, nu=2.0, **implementation)
    for p in params.values():
        p.grad = torch.zeros_like(p)
    opt.step()
    assert torch.equal(params["bias"], old["bias"])
    for name in ("conv", "linear"):
        p = params[name]
        torch.testing.assert_close(p.detach(), old[name] * (1 - 0.1 / 2))
        torch.testing.assert_close(opt.state[p]["v"], old[name] * (0.1 / 2))


@pytest.mark.parametrize("options", INPUTS)
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_grads_are_never_inplaced_into(
    implementation: dict[str, Any], options: dict[str, Any]
) -> None:
    """Neither values nor versions nor storage of the gradients change."""
    params = list(make_params(torch.float32).values())
    opt = DessiLBI(params, **{**LIVELY, **options, **implementation})
    for k in range(3):
        set_grads(params, k)
        grads = [p.grad for p in params]
        copies = [g.clone() for g in grads if g is not None]
        versions = [g._version for g in grads if g is not None]
        opt.step()
        for p, grad, copy, version in zip(params, grads, copies, versions, strict=True):
            assert p.grad is grad
            assert torch.equal(grad, copy)
            assert grad._version == version


@pytest.mark.parametrize("options", INPUTS)
def test_optimizer_can_be_printed(options: dict[str, Any]) -> None:
    opt = DessiLBI(make_params().items(), **options)
    text = repr(opt)
    assert text.startswith("DessiLBI (")
    for name in inspect.signature(DessiLBI).parameters:
        if name not in ("params", "steps", "c"):  # those two become nu and lambd
            assert f"    {name}: " in text
    opt_unnamed = DessiLBI(make_params().values(), **options)
    assert "conv" not in repr(opt_unnamed)


def test_scheduler_inputs_are_torchs_defaults() -> None:
    opt = DessiLBI(make_params().values())
    kinds = [type(make(opt)) for make in INFO.scheduler_inputs[0]]
    assert kinds == [StepLR, ReduceLROnPlateau]

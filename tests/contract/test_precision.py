"""Half, single and double precision: V is never rounded to the weights' dtype; GradScaler."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from contract_problems import (
    IMPLEMENTATIONS,
    LIVELY,
    assert_same,
    make_grads,
    make_params,
    make_reference,
    run,
    set_grads,
    state_of,
)
from torch import Tensor, nn
from torch.amp import GradScaler

from dessilbi.optim import DessiLBI

HALVES = [torch.bfloat16, torch.float16]
OPTIONS = {**LIVELY, "momentum": 0.9, "weight_decay": 1e-3}


@pytest.mark.parametrize("dtype", [*HALVES, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_dtypes_of_the_state(dtype: torch.dtype, implementation: dict[str, Any]) -> None:
    opt = DessiLBI(make_params(dtype).values(), **OPTIONS, **implementation, lambd_scale="init")
    run(opt, 3)
    dual = torch.float64 if dtype is torch.float64 else torch.float32
    for p in opt.param_groups[0]["params"]:
        assert p.dtype is dtype
        assert opt.state[p]["momentum_buffer"].dtype is dtype
        if p.ndim > 1:
            assert opt.state[p]["v"].dtype is dual
            assert opt.state[p]["lambd_scale"].dtype is dual
            assert opt.gamma(p).dtype is dual
            assert torch.isfinite(opt.state[p]["v"]).all()


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES], ids=str)
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_low_precision_follows_float64(dtype: torch.dtype, implementation: dict[str, Any]) -> None:
    """V of low precision weights is as exact as the weights let it be."""
    params = list(make_params(dtype).values())
    truths = [make_reference(p.detach().double(), OPTIONS) for p in params]
    opt = DessiLBI(params, **OPTIONS, **implementation)
    for k in range(10):
        for p, truth, grad in zip(params, truths, make_grads(params, k), strict=True):
            p.grad = grad
            truth.step(grad.double())
        opt.step()
    rel = {torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 8e-2}[dtype]
    for p, truth in zip(params, truths, strict=True):
        torch.testing.assert_close(p.detach().double(), truth.W, rtol=rel, atol=rel)
        if truth.penalty is not None:
            torch.testing.assert_close(opt.state[p]["v"].double(), truth.V, rtol=rel, atol=rel)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_small_steps_add_up_in_v(dtype: torch.dtype, implementation: dict[str, Any]) -> None:
    """A thousand steps of 1e-4 on V = 1: each is lost in bf16 and fp16, their sum is not."""
    W = nn.Parameter(torch.ones(3, 4, dtype=dtype))
    opt = DessiLBI([W], lr=1e-3, nu=10.0, lambd=100.0, **implementation)
    W.grad = torch.zeros_like(W)
    opt.step()
    opt.state[W]["v"].fill_(1.0)
    assert torch.tensor(1.0, dtype=dtype) + 1e-4 == 1.0
    for _ in range(1000):
        with torch.no_grad():
            W.fill_(1.0)
        opt.step()
    torch.testing.assert_close(opt.state[W]["v"], torch.full((3, 4), 1.1), rtol=1e-4, atol=0)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("copies", ["load", "deepcopy", "file"])
def test_v_survives_load_state_dict(dtype: torch.dtype, copies: str, tmp_path: Any) -> None:
    """Values that the weights' dtype cannot hold come back bit by bit, and training goes on."""
    opt = DessiLBI(make_params(dtype).values(), **OPTIONS, lambd_scale="init")
    run(opt, 5)
    v = opt.state[opt.param_groups[0]["params"][0]]["v"]
    assert not torch.equal(v, v.to(dtype).float()), "the test needs values that rounding changes"
    state = opt.state_dict()
    if copies == "deepcopy":
        state = deepcopy(state)
    elif copies == "file":
        torch.save(state, tmp_path / "opt.pt")
        state = torch.load(tmp_path / "opt.pt", weights_only=True)
    clones = [nn.Parameter(p.detach().clone()) for p in opt.param_groups[0]["params"]]
    other = DessiLBI(clones)
    other.load_state_dict(state)
    assert_same(state_of(opt), state_of(other))
    run(opt, 5, start=5)
    run(other, 5, start=5)
    assert_same(state_of(opt), state_of(other))


@pytest.mark.parametrize(
    ("saved", "loaded"),
    [
        (torch.float32, torch.float64),
        (torch.float64, torch.float32),
        (torch.bfloat16, torch.float64),
        (torch.float32, torch.bfloat16),
        (torch.bfloat16, torch.float16),
    ],
    ids=str,
)
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_checkpoint_of_another_dtype(
    saved: torch.dtype, loaded: torch.dtype, implementation: dict[str, Any]
) -> None:
    """V takes the dtype of the new weights, float32 at least; nothing more is rounded."""
    opt = DessiLBI(make_params(saved).values(), **OPTIONS, **implementation, lambd_scale="init")
    run(opt, 3)
    other = DessiLBI([nn.Parameter(p.detach().to(loaded)) for p in opt.param_groups[0]["params"]])
    other.load_state_dict(opt.state_dict())
    dual = torch.promote_types(loaded, torch.float32)
    params = zip(opt.param_groups[0]["params"], other.param_groups[0]["params"], strict=True)
    for p, q in params:
        for key, value in opt.state[p].items():
            dtype = loaded if key == "momentum_buffer" else dual
            torch.testing.assert_close(other.state[q][key], value.to(dtype), rtol=0, atol=0)
    run(other, 3, start=3)
    assert all(torch.isfinite(t).all() for t in state_of(other).values())


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_layouts_do_not_matter(implementation: dict[str, Any]) -> None:
    """channels_last weights, transposed weights and gradients with holes or no strides at all."""
    plain = make_params()
    odd = make_params()
    odd["conv"].data = odd["conv"].data.contiguous(memory_format=torch.channels_last)
    odd["linear"].data = odd["linear"].data.t().contiguous().t()
    opt = DessiLBI(plain.values(), **OPTIONS)
    other = DessiLBI(odd.values(), **OPTIONS, **implementation)
    for k in range(6):
        grads = make_grads(plain.values(), k)
        if k == 3:
            grads = [torch.ones((), dtype=g.dtype).expand(g.shape) for g in grads]
        for p, q, g in zip(plain.values(), odd.values(), grads, strict=True):
            p.grad = g.contiguous()
            q.grad = g if k == 3 else _with_holes(g)
        opt.step()
        other.step()
    assert odd["conv"].is_contiguous(memory_format=torch.channels_last)
    for name in plain:
        torch.testing.assert_close(odd[name], plain[name], rtol=1e-12, atol=1e-12)
        for key, value in opt.state[plain[name]].items():
            got = other.state[odd[name]][key]
            torch.testing.assert_close(got, value, rtol=1e-12, atol=1e-12)


def _with_holes(t: Tensor) -> Tensor:
    return torch.stack([t, torch.full_like(t, torch.nan)], dim=-1)[..., 0]


@pytest.mark.parametrize("bad", [float("inf"), float("-inf"), float("nan")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_grad_scaler_skips_bad_gradients(
    bad: float, dtype: torch.dtype, implementation: dict[str, Any]
) -> None:
    """A bad step changes nothing at all; the next good ones equal a run without scaling."""
    options = {**OPTIONS, **implementation, "lambd_scale": "init", "lambd": 0.1}
    scaled = DessiLBI(make_params(dtype).values(), **options)
    plain = DessiLBI(make_params(dtype).values(), **options)
    scaler = GradScaler("cpu", init_scale=2.0**4)

    def scaled_step(k: int, spoil: float | None = None) -> None:
        params = scaled.param_groups[0]["params"]
        scaler.scale(torch.zeros(()))  # the scaler makes its scale tensor on first use
        set_grads(params, k)
        for p in params:
            p.grad.mul_(scaler.get_scale())
        if spoil is not None:
            params[1].grad[0, 0] = spoil
        scaler.step(scaled)
        scaler.update()

    scaled_step(99, spoil=bad)
    assert not scaled.state, "a skipped first step must not make state"
    for k in range(4):
        scaled_step(k)
    run(plain, 4)
    assert_same(state_of(scaled), state_of(plain))
    scaled_step(98, spoil=bad)
    assert_same(state_of(scaled), state_of(plain))
    scaled_step(4)
    run(plain, 1, start=4)
    assert_same(state_of(scaled), state_of(plain))
    assert scaler.get_scale() == 4.0


def test_autocast_training_keeps_v_in_float32() -> None:
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.Flatten(), nn.Linear(3 * 9, 2))
    opt = DessiLBI(model.named_parameters(), **LIVELY)
    for _ in range(3):
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(torch.randn(4, 1, 5, 5)).float().square().mean()
        loss.backward()
        opt.step()
    assert all(s["v"].dtype is torch.float32 for s in opt.state.values() if "v" in s)

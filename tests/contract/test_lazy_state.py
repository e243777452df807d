"""State is made for a parameter's first gradient, and holds no more than the step needs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from contract_problems import IMPLEMENTATIONS, LIVELY, make_params, run, set_grads, state_of
from torch import nn

from dessilbi.optim import DessiLBI


def test_state_is_made_lazily() -> None:
    """None before the first step, then only for parameters that had a gradient."""
    named = make_params()
    opt = DessiLBI(named.values(), momentum=0.9, lambd_scale="init")
    assert not opt.state
    for p in named.values():
        if p.ndim > 1:
            opt.gamma(p), opt.support(p), opt.penalty(p)
    opt.density()
    opt.state_dict()
    assert not opt.state, "looking must not make state"
    named["linear"].grad = torch.ones_like(named["linear"])
    opt.step()
    assert set(opt.state) == {named["linear"]}
    assert opt.state[named["linear"]].keys() == {"v", "momentum_buffer", "lambd_scale"}
    named["bias"].grad = torch.ones_like(named["bias"])
    opt.step()
    assert opt.state[named["bias"]].keys() == {"momentum_buffer"}
    assert named["conv"] not in opt.state


def test_state_holds_what_is_needed_and_no_more() -> None:
    opt = DessiLBI(make_params().items(), lambd=1.0)
    run(opt, 2)
    conv, linear, bias = opt.param_groups[0]["params"]
    assert opt.state[conv].keys() == opt.state[linear].keys() == {"v"}
    assert not opt.state.get(bias)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_grad_none_skips_the_parameter_for_that_step(implementation: dict[str, Any]) -> None:
    """Neither W nor V nor the buffer of a parameter without gradient moves."""
    named = make_params()
    opt = DessiLBI(named.values(), **LIVELY, momentum=0.9, weight_decay=0.1, **implementation)
    run(opt, 2)
    before = state_of(opt)
    set_grads(named.values(), 2)
    named["conv"].grad = None
    opt.step()
    after = state_of(opt)
    still = {key for key in before if torch.equal(before[key], after[key])}
    assert still == {"0.W", "0.v", "0.momentum_buffer"}


def test_zero_grad() -> None:
    params = list(make_params().values())
    opt = DessiLBI(params)
    set_grads(params, 0)
    opt.zero_grad(set_to_none=False)
    assert all(p.grad is not None and not p.grad.any() for p in params)
    opt.zero_grad()
    assert all(p.grad is None for p in params)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_frozen_parameters_rest(implementation: dict[str, Any]) -> None:
    named = make_params()
    named["linear"].requires_grad_(False)
    kept = named["linear"].clone()
    opt = DessiLBI(named.values(), **LIVELY, **implementation)
    for _ in range(2):
        opt.zero_grad()
        sum(p.square().sum() for p in named.values()).backward()
        opt.step()
    assert torch.equal(named["linear"], kept)
    assert named["linear"] not in opt.state
    assert not opt.support(named["linear"]).any()


def test_lazy_modules_get_their_twin_when_they_have_a_shape() -> None:
    """As with torch's optimizers, parameters may be given before they are materialised."""
    layer = nn.LazyLinear(3)
    opt = DessiLBI(layer.parameters(), **LIVELY)
    layer(torch.randn(2, 4)).sum().backward()
    opt.step()
    assert opt.state[layer.weight]["v"].shape == (3, 4)


@pytest.mark.parametrize("scale", [None, "size", "init"])
@pytest.mark.parametrize("penalty", ["auto", "lasso", "group_lasso", None])
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_empty_and_scalar_parameters(
    implementation: dict[str, Any], penalty: str | None, scale: str | None
) -> None:
    shapes: list[tuple[int, ...]] = [(0,), (0, 3), (3, 0), (0, 2, 3, 3), (2, 0, 1, 1), (1, 1), (3,)]
    if penalty != "group_lasso":
        shapes.append(())
    params = [nn.Parameter(torch.full(shape, 2.0)) for shape in shapes]
    options = {**LIVELY, "penalty": penalty, "lambd_scale": scale, "momentum": 0.9}
    opt = DessiLBI(params, **options, **implementation)
    run(opt, 5)
    for p in params:
        assert torch.isfinite(p).all()
    for _, p in opt.twins():
        assert opt.gamma(p).shape == p.shape
        assert opt.support(p).shape == p.shape
        assert torch.isfinite(opt.gamma(p)).all()
        assert 0.0 <= opt.density(p) <= 1.0
    assert 0.0 <= opt.density() <= 1.0

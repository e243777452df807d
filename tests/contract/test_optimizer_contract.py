"""What torch promises for every optimizer: names, closures, lazy state, copies, refusals."""

from __future__ import annotations

import pickle
from copy import deepcopy
from typing import Any

import pytest
import torch
from contract_problems import (
    IMPLEMENTATIONS,
    LIVELY,
    VARIANTS,
    assert_same,
    make_grads,
    make_params,
    make_reference,
    run,
    state_of,
)
from torch import Tensor, nn

from dessilbi.optim import DessiLBI, split_parameters

ALL_VARIANTS = [pytest.param(options, id=name) for name, options in VARIANTS.items()]


@pytest.mark.parametrize("options", ALL_VARIANTS)
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_equals_the_literal_iteration(
    implementation: dict[str, Any], options: dict[str, Any]
) -> None:
    """The contract would be worth little for another algorithm."""
    options = {**LIVELY, **options}
    params = list(make_params().values())
    truths = [make_reference(p, options) for p in params]
    opt = DessiLBI(params, **options, **implementation)
    for k in range(12):
        for truth, grad in zip(truths, make_grads(params, k), strict=True):
            truth.step(grad)
        run(opt, 1, start=k)
    for p, truth in zip(params, truths, strict=True):
        torch.testing.assert_close(p.detach(), truth.W, rtol=1e-11, atol=1e-11)
        if truth.penalty is not None:
            assert truth.Gamma.any(), "a test on an empty Gamma shows little"
            torch.testing.assert_close(opt.gamma(p), truth.Gamma, rtol=1e-11, atol=1e-11)
            assert torch.equal(opt.support(p), truth.Gamma != 0)


# ---------------------------------------------------------------------- parameters and groups


@pytest.mark.parametrize("how", ["parameters", "named", "groups", "named_groups", "generator"])
def test_ways_to_give_parameters(how: str) -> None:
    named = make_params()
    given: Any = {
        "parameters": list(named.values()),
        "named": list(named.items()),
        "groups": [{"params": [p]} for p in named.values()],
        "named_groups": [{"params": [(n, p)]} for n, p in named.items()],
        "generator": (p for p in named.values()),
    }[how]
    opt = DessiLBI(given, **LIVELY)
    run(opt, 3)
    names = [name for name, _ in opt.twins()]
    if "named" in how:
        assert names == ["conv", "linear"]
        assert [n for g in opt.param_groups for n in g["param_names"]] == list(named)
    else:
        assert names == (["0.0", "1.0"] if how == "groups" else ["0.0", "0.1"])
    expected = DessiLBI(make_params().values(), **LIVELY)
    run(expected, 3)
    assert_same(state_of(opt), state_of(expected))


def test_names_survive_a_state_dict() -> None:
    opt = DessiLBI(make_params().items())
    run(opt, 1)
    assert opt.state_dict()["param_groups"][0]["param_names"] == ["conv", "linear", "bias"]
    other = DessiLBI(make_params().items())
    other.load_state_dict(opt.state_dict())
    assert [name for name, _ in other.twins()] == ["conv", "linear"]


def test_options_differ_by_group() -> None:
    """Each group steps with its own numbers, in one optimizer."""
    named = make_params()
    own: dict[str, dict[str, Any]] = {
        "conv": {"lr": 0.05, "kappa": 2.0, "penalty": "group_lasso", "group_dim": 1},
        "linear": {"nu": 1.0, "lambd": 0.2, "momentum": 0.9, "nesterov": True},
        "bias": {"penalty": "lasso", "weight_decay": 0.1, "decoupled_weight_decay": True},
    }
    shared = {"lr": 0.1, "nu": 3.0, "lambd": 0.1}
    truths = {n: make_reference(p, {**shared, **own[n]}) for n, p in named.items()}
    opt = DessiLBI([{"params": [(n, p)], **own[n]} for n, p in named.items()], **shared)
    for k in range(8):
        for truth, grad in zip(truths.values(), make_grads(named.values(), k), strict=True):
            truth.step(grad)
        run(opt, 1, start=k)
    for n, p in named.items():
        torch.testing.assert_close(p.detach(), truths[n].W, rtol=1e-12, atol=1e-12)


def test_add_param_group_later() -> None:
    named = make_params()
    opt = DessiLBI([named["conv"]], **LIVELY, momentum=0.9)
    run(opt, 3)
    opt.add_param_group({"params": [named["linear"]], "lr": 0.01, "penalty": None})
    assert named["linear"] not in opt.state
    assert opt.param_groups[1]["momentum"] == 0.9
    run(opt, 2, start=3)
    assert opt.state[named["linear"]].keys() == {"momentum_buffer"}
    assert [p is named["conv"] for _, p in opt.twins()] == [True]


@pytest.mark.parametrize(
    ("group", "message"),
    [
        ({"lambd": -1.0}, r"lambd must be >= 0 and finite, got -1\.0 \(parameter group 1\)"),
        ({"lamda": 1.0}, r"unknown option 'lamda' \(parameter group 1\); did you mean 'lambd'\?"),
        ({"nesterov": True}, r"nesterov=True needs momentum > 0.*\(parameter group 1\)"),
        (
            {"penalty": "group_lasso", "group_dim": 2},
            r"group_dim must be in \[-2, 1\] for parameter 0 of shape \(5, 6\), got 2",
        ),
        ({"params": []}, "parameter group 1 is empty; leave it out or give it parameters"),
    ],
)
def test_bad_group_is_refused_and_not_kept(group: dict[str, Any], message: str) -> None:
    named = make_params()
    opt = DessiLBI([named["conv"]])
    with pytest.raises(ValueError, match=message):
        opt.add_param_group({"params": [named["linear"]], **group})
    assert len(opt.param_groups) == 1
    run(opt, 1)


# ---------------------------------------------------------------------- refusals


def test_sparse_gradients_are_refused() -> None:
    layer = nn.Embedding(5, 3, sparse=True)
    opt = DessiLBI(layer.named_parameters(), penalty="lasso")
    layer(torch.tensor([0, 1])).sum().backward()
    before = layer.weight.detach().clone()
    with pytest.raises(RuntimeError, match=r"sparse gradients \(parameter 'weight'\).*SparseAdam"):
        opt.step()
    assert torch.equal(layer.weight, before)
    assert not opt.state
    unnamed = DessiLBI(layer.parameters())
    with pytest.raises(RuntimeError, match=r"parameter 0 of its group, shape \(5, 3\)"):
        unnamed.step()


def test_complex_parameters_are_refused() -> None:
    p = nn.Parameter(torch.zeros(2, 3, dtype=torch.complex64))
    with pytest.raises(ValueError, match=r"complex parameters \(parameter 'a'.*view_as_real"):
        DessiLBI([("a", p)])


def test_a_stranger_is_named() -> None:
    opt = DessiLBI(make_params().values())
    with pytest.raises(ValueError, match=r"does not hold the given tensor of shape \(2, 2\)"):
        opt.gamma(torch.zeros(2, 2))
    bias = opt.param_groups[0]["params"][2]
    with pytest.raises(ValueError, match=r"no twin: its penalty is 'auto'.*use penalty="):
        opt.gamma(bias)


# ---------------------------------------------------------------------- closures and copies


def test_closure_is_called_once_with_gradients_on() -> None:
    p = nn.Parameter(torch.ones(2, 2))
    opt = DessiLBI([p], lr=0.5, penalty=None)
    calls = []

    def closure() -> Tensor:
        assert torch.is_grad_enabled()
        opt.zero_grad()
        loss = p.square().sum()
        loss.backward()
        calls.append(loss.item())
        return loss

    with torch.no_grad():
        loss = opt.step(closure)
    assert calls == [4.0]
    assert isinstance(loss, Tensor)
    assert loss.item() == 4.0
    assert not p.detach().any()
    assert opt.step() is None


@pytest.mark.parametrize("options", ALL_VARIANTS)
@pytest.mark.parametrize("how", ["deepcopy", "pickle"])
def test_copies_continue_identically(how: str, options: dict[str, Any]) -> None:
    opt = DessiLBI(split_groups(), **{**LIVELY, **options})
    run(opt, 4)
    kept = state_of(opt)
    other = deepcopy(opt) if how == "deepcopy" else pickle.loads(pickle.dumps(opt))
    run(other, 4, start=4)
    assert_same(state_of(opt), kept)
    run(opt, 4, start=4)
    assert_same(state_of(opt), state_of(other))
    assert [n for n, _ in opt.twins()] == [n for n, _ in other.twins()]
    public = [{k for k in vars(o) if not k.startswith("_")} for o in (opt, other)]
    assert public[0] == public[1]


def split_groups() -> list[dict[str, Any]]:
    """Groups without a penalty of their own, so that a variant's options reach them."""
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(12, 4)).double()
    groups = split_parameters(model)
    return [{"name": g["name"], "params": g["params"]} for g in groups if g["penalty"]]


def test_copy_taken_with_its_model_stays_tied_to_it() -> None:
    model = nn.Linear(3, 2)
    opt = DessiLBI(model.named_parameters(), **LIVELY)
    run(opt, 1)
    model2, opt2 = deepcopy((model, opt))
    assert opt2.param_groups[0]["params"][0] is model2.weight
    run(opt2, 1)
    assert not torch.equal(model2.weight, model.weight)

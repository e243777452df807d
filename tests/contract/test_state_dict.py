"""State dicts as torch's own tests check them: deterministic, safe to load, old ones filled in."""

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
    make_params,
    run,
    state_of,
)
from torch import Tensor, nn

from dessilbi.optim import DessiLBI

INPUTS = [
    pytest.param(o, id=name)
    for name, o in {**VARIANTS, "tensor_lr": {"lr": torch.tensor(0.05)}}.items()
]


def _make(options: dict[str, Any], **more: Any) -> DessiLBI:
    return DessiLBI(make_params(torch.float32).items(), **deepcopy({**LIVELY, **options, **more}))


def _twin_of(opt: DessiLBI, **changes: Any) -> DessiLBI:
    """A new optimizer on clones of the weights, to load a state dict into."""
    names = [n for g in opt.param_groups for n in g["param_names"]]
    params = [p for g in opt.param_groups for p in g["params"]]
    clones = [nn.Parameter(p.detach().clone()) for p in params]
    return DessiLBI(list(zip(names, clones, strict=True)), **changes)


@pytest.mark.parametrize("options", INPUTS)
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_state_dict_deterministic(implementation: dict[str, Any], options: dict[str, Any]) -> None:
    """A loaded optimizer continues bit by bit; the loaded dict is not changed or shared."""
    opt = _make(options, **implementation)
    run(opt, 5)
    state = deepcopy(opt.state_dict())
    handed = deepcopy(state)
    other = _twin_of(opt)
    other.load_state_dict(handed)
    run(opt, 5, start=5)
    run(other, 5, start=5)
    assert_same(state_of(opt), state_of(other))
    _assert_equal_dicts(handed, state)
    _assert_equal_dicts(other.state_dict(), opt.state_dict())


@pytest.mark.parametrize("options", INPUTS)
def test_save_load_equality_with_weights_only(
    options: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    opt = _make(options)
    run(opt, 3)
    file = tmp_path_factory.mktemp("state") / "opt.pt"
    torch.save(opt.state_dict(), file)
    loaded = torch.load(file, weights_only=True)
    _assert_equal_dicts(loaded, opt.state_dict())
    other = _twin_of(opt)
    other.load_state_dict(loaded)
    run(opt, 3, start=3)
    run(other, 3, start=3)
    assert_same(state_of(opt), state_of(other))


@pytest.mark.parametrize("options", INPUTS)
def test_only_plain_types_in_param_groups(options: dict[str, Any]) -> None:
    opt = _make(options)
    run(opt, 2)
    for group in opt.state_dict()["param_groups"]:
        for key, value in group.items():
            plain = value is None or type(value) in (int, float, bool, str)
            lr = key == "lr" and isinstance(value, Tensor)
            of_plain = key in ("params", "param_names") and {type(v) for v in value} <= {int, str}
            assert plain or lr or of_plain, f"{key}: {value!r}"
    for state in opt.state_dict()["state"].values():
        assert all(type(value) is Tensor for value in state.values())


@pytest.mark.parametrize(
    "missing",
    ["maximize", "foreach", "fused", "lambd_scale", "coupling", "decoupled_weight_decay", "all"],
)
def test_can_load_older_state_dict(missing: str) -> None:
    """Options that an old checkpoint does not know are what they were before there was a choice."""
    opt = _make({"momentum": 0.9})
    run(opt, 3)
    old = deepcopy(opt.state_dict())
    dropped = [k for k in opt.defaults if missing in (k, "all") and k != "lr"]
    for group in old["param_groups"]:
        for key in dropped:
            del group[key]
    other = _twin_of(opt)
    other.load_state_dict(old)
    for key in dropped:
        absolute = DessiLBI(make_params().values(), nu=100.0, lambd=1.0)
        assert other.param_groups[0][key] == absolute.defaults[key]
    run(other, 2)
    if missing != "all":
        run(opt, 2)
        assert_same(state_of(opt), state_of(other))


def test_can_load_older_pickle() -> None:
    """``__setstate__`` fills options in a pickled optimizer of an older version too."""
    opt = _make({})
    run(opt, 2)
    for group in opt.param_groups:
        del group["lambd_scale"], group["coupling"]
    other = pickle.loads(pickle.dumps(opt))
    assert other.param_groups[0]["lambd_scale"] is None
    assert other.param_groups[0]["coupling"] == "direct"
    run(other, 2)


def test_state_dict_before_any_step() -> None:
    opt = _make({"momentum": 0.9})
    assert opt.state_dict()["state"] == {}
    other = _make({"momentum": 0.5})
    other.load_state_dict(opt.state_dict())
    assert other.param_groups[0]["momentum"] == 0.9
    run(opt, 3)
    run(other, 3)
    assert_same(state_of(opt), state_of(other))


def test_load_drops_state_that_the_checkpoint_lacks() -> None:
    empty = _make({"momentum": 0.9}).state_dict()
    opt = _make({"momentum": 0.9})
    run(opt, 3)
    opt.load_state_dict(empty)
    assert not any(opt.state.values())


def test_load_rejects_other_groups() -> None:
    opt = _make({})
    run(opt, 2)
    before = state_of(opt)
    fewer = DessiLBI(list(make_params().values())[:2])
    with pytest.raises(ValueError, match="doesn't match the size"):
        opt.load_state_dict(fewer.state_dict())
    two = DessiLBI([{"params": [p]} for p in make_params().values()])
    with pytest.raises(ValueError, match="different number of parameter groups"):
        opt.load_state_dict(two.state_dict())
    assert_same(state_of(opt), before)


def test_load_leaves_no_hooks_behind() -> None:
    opt = _make({})
    run(opt, 2)
    opt.load_state_dict(opt.state_dict())
    with pytest.raises(ValueError, match="different number of parameter groups"):
        opt.load_state_dict({"state": {}, "param_groups": []})
    assert not opt._optimizer_load_state_dict_pre_hooks
    assert not opt._optimizer_load_state_dict_post_hooks


def test_loaded_state_is_not_shared_with_the_checkpoint() -> None:
    opt = _make({"momentum": 0.9})
    run(opt, 2)
    checkpoint = opt.state_dict()
    other = _twin_of(opt)
    other.load_state_dict(checkpoint)
    kept = state_of(opt)
    run(other, 2, start=2)
    assert_same(state_of(opt), kept)


def test_state_moves_to_the_parameters_strides() -> None:
    """A contiguous checkpoint loads into channels_last weights, and steps on with fused kernels."""
    opt = _make({"momentum": 0.9})
    run(opt, 3)
    other = _twin_of(opt)
    conv = other.param_groups[0]["params"][0]
    conv.data = conv.data.contiguous(memory_format=torch.channels_last)
    other.load_state_dict(opt.state_dict())
    for value in other.state[conv].values():
        assert value.stride() == conv.stride()
    run(opt, 3, start=3)
    run(other, 3, start=3)
    for key, value in state_of(opt).items():
        torch.testing.assert_close(state_of(other)[key], value)


def _assert_equal_dicts(a: dict[str, Any], b: dict[str, Any]) -> None:
    assert a["state"].keys() == b["state"].keys()
    for i in a["state"]:
        assert_same(a["state"][i], b["state"][i])
    assert a["param_groups"] == b["param_groups"]

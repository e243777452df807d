"""Step, state_dict and load_state_dict hooks: called, in order, with the right arguments."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from contract_problems import LIVELY, make_params, run, set_grads
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from dessilbi.optim import DessiLBI


@pytest.fixture
def opt() -> DessiLBI:
    return DessiLBI(make_params(torch.bfloat16).values(), **LIVELY, momentum=0.9)


def test_step_hooks(opt: DessiLBI) -> None:
    """Pre before post; removed hooks are silent; a post-step hook sees the new state."""
    calls: list[str] = []
    p = opt.param_groups[0]["params"][0]

    def pre(o: DessiLBI, args: Any, kwargs: Any) -> None:
        assert o is opt
        calls.append(f"pre {len(o.state)}")

    def post(o: DessiLBI, args: Any, kwargs: Any) -> None:
        calls.append(f"post {'v' in o.state[p]}")

    first, second = opt.register_step_pre_hook(pre), opt.register_step_post_hook(post)
    run(opt, 1)
    assert calls == ["pre 0", "post True"]
    first.remove()
    run(opt, 1)
    assert calls == ["pre 0", "post True", "post True"]
    second.remove()
    run(opt, 1)
    assert len(calls) == 3


def test_pre_hook_may_replace_the_closure(opt: DessiLBI) -> None:
    opt.register_step_pre_hook(lambda o, args, kwargs: (args, {"closure": lambda: 2.0}))
    assert opt.step(closure=lambda: 1.0) == 2.0


def test_all_hooks_in_order(opt: DessiLBI) -> None:
    calls: list[int] = []
    handles = [
        register_optimizer_step_pre_hook(lambda *_: calls.append(1)),
        opt.register_step_pre_hook(lambda *_: calls.append(2)),
        opt.register_step_post_hook(lambda *_: calls.append(3)),
        register_optimizer_step_post_hook(lambda *_: calls.append(4)),
    ]
    try:
        run(opt, 2)
    finally:
        for handle in handles:
            handle.remove()
    run(opt, 1)
    assert calls == [1, 2, 3, 4] * 2


def test_hooks_during_step_see_unchanged_gradients(opt: DessiLBI) -> None:
    params = opt.param_groups[0]["params"]
    set_grads(params, 0)
    expected = [p.grad.clone() for p in params]
    seen: list[bool] = []
    opt.register_step_post_hook(
        lambda *_: seen.extend(
            torch.equal(p.grad, g) for p, g in zip(params, expected, strict=True)
        )
    )
    opt.step()
    assert seen == [True] * len(params)


def test_state_dict_hooks(opt: DessiLBI) -> None:
    calls: list[str] = []

    def post(o: DessiLBI, state: dict[str, Any]) -> dict[str, Any]:
        calls.append("post")
        return {**state, "extra": 1}

    opt.register_state_dict_pre_hook(lambda o: calls.append("pre"))
    opt.register_state_dict_pre_hook(lambda o: calls.append("first"), prepend=True)
    opt.register_state_dict_post_hook(post)
    assert opt.state_dict()["extra"] == 1
    assert calls == ["first", "pre", "post"]


def test_load_state_dict_pre_hook_changes_what_is_loaded(opt: DessiLBI) -> None:
    """Also V: our restoring of precision takes what the user's hooks made of the checkpoint."""
    run(opt, 2)
    calls: list[str] = []

    def double_v(o: DessiLBI, state: dict[str, Any]) -> dict[str, Any]:
        calls.append("double")
        state = deepcopy(state)
        for s in state["state"].values():
            if "v" in s:
                s["v"] = 2 * s["v"]
        state["param_groups"][0]["lambd"] = 7.0
        return state

    opt.register_load_state_dict_pre_hook(double_v)
    opt.register_load_state_dict_pre_hook(lambda o, s: calls.append("first"), prepend=True)
    saved = deepcopy(opt.state_dict())
    opt.load_state_dict(saved)
    assert calls == ["first", "double"]
    assert opt.param_groups[0]["lambd"] == 7.0
    p = opt.param_groups[0]["params"][0]
    assert torch.equal(opt.state[p]["v"], 2 * saved["state"][0]["v"])
    assert opt.state[p]["v"].dtype is torch.float32


def test_load_state_dict_post_hooks_see_restored_precision(opt: DessiLBI) -> None:
    """User's post hooks, prepended ones included, run after V is float32 again, in order."""
    run(opt, 2)
    calls: list[str] = []
    p = opt.param_groups[0]["params"][0]

    def hook(name: str) -> Any:
        def post(o: DessiLBI) -> None:
            assert o.state[p]["v"].dtype is torch.float32
            calls.append(name)

        return post

    opt.register_load_state_dict_post_hook(hook("last"))
    opt.register_load_state_dict_post_hook(hook("first"), prepend=True)
    opt.load_state_dict(deepcopy(opt.state_dict()))
    opt.load_state_dict(deepcopy(opt.state_dict()))
    assert calls == ["first", "last"] * 2

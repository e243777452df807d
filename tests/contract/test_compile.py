"""torch.compile: a compiled step equals the eager one, and a changed lr does not recompile."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from contract_problems import (
    LIVELY,
    make_grads,
    make_params,
    make_reference,
    needs_compiler,
    set_grads,
    state_of,
)
from torch._dynamo.testing import CompileCounterWithBackend

from dessilbi.optim import DessiLBI, SplitLBI
from dessilbi.optim._fused import compiled
from dessilbi.optim._step import Item, Options, Twin
from dessilbi.optim.prox import GroupLasso, Lasso

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    needs_compiler,
    # Raised inside torch when dynamo loads its own modules.
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning"),
]

VARIANTS: dict[str, dict[str, Any]] = {
    "momentum": {"momentum": 0.9, "weight_decay": 0.01},
    "nesterov": {"momentum": 0.9, "nesterov": True, "coupling": "momentum", "maximize": True},
    "decoupled": {"weight_decay": 0.01, "decoupled_weight_decay": True, "lambd_scale": "init"},
    "foreach": {"foreach": True, "momentum": 0.9, "kappa": 2.0},
    "fused": {"fused": True, "momentum": 0.9, "lambd_scale": "size"},
}


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def _compare(
    backend: Any,
    options: dict[str, Any],
    lr_dtype: torch.dtype = torch.float64,
    lr_shape: tuple[int, ...] = (),
) -> None:
    """Tensor lr, changed before every step; conv, linear and bias: group lasso, lasso, none."""
    options = {**LIVELY, **options}
    params, copies = list(make_params().values()), list(make_params().values())
    lr = torch.full(lr_shape, 0.1, dtype=lr_dtype)
    opt = DessiLBI(params, **{**options, "lr": lr})
    eager = DessiLBI(copies, **options)
    step = torch.compile(opt.step, backend=backend)
    for k in range(6):
        lr.fill_(0.1 / (k + 1))
        eager.param_groups[0]["lr"] = lr.item()
        for p, q, grad in zip(params, copies, make_grads(params, k), strict=True):
            p.grad, q.grad = grad, grad.clone()
        step()
        eager.step()
        for p, q in zip(params, copies, strict=True):
            torch.testing.assert_close(p, q, rtol=1e-12, atol=1e-12)
            assert opt.state[p].keys() == eager.state[q].keys()
            for key, value in eager.state[q].items():
                torch.testing.assert_close(opt.state[p][key], value, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("options", [pytest.param(o, id=n) for n, o in VARIANTS.items()])
def test_traced_step_equals_eager_and_is_traced_once(options: dict[str, Any]) -> None:
    """One graph, no break, for all values of a tensor lr."""
    counter = CompileCounterWithBackend("eager")
    _compare(counter, options)
    assert counter.frame_count == 1


def test_float32_lr_does_not_round_float64_weights() -> None:
    """``torch.tensor(0.1)`` is float32; only its value may be, not the arithmetic."""
    options = {"weight_decay": 0.01, "decoupled_weight_decay": True, "nu": 3.0, "kappa": 1.7}
    _compare("eager", options, lr_dtype=torch.float32)


def test_one_element_lr() -> None:
    _compare("eager", {}, lr_shape=(1,))


def test_inductor_step_equals_eager() -> None:
    with torch._dynamo.config.patch(error_on_recompile=True):
        _compare("inductor", {"momentum": 0.9, "weight_decay": 0.01})


def test_float_lr_is_also_right_when_compiled() -> None:
    """A float lr is a constant of the graph: it may recompile, it must not go stale."""
    params, copies = list(make_params().values()), list(make_params().values())
    opt, eager = DessiLBI(params, **LIVELY), DessiLBI(copies, **LIVELY)
    step = torch.compile(opt.step, backend="eager")
    for k in range(4):
        opt.param_groups[0]["lr"] = eager.param_groups[0]["lr"] = 0.1 / (k + 1)
        for p, q, grad in zip(params, copies, make_grads(params, k), strict=True):
            p.grad, q.grad = grad, grad.clone()
        step()
        eager.step()
    for p, q in zip(params, copies, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("fused", [None, True])
@pytest.mark.parametrize("base", ["sgd", "adamw"])
def test_a_twin_around_a_compiled_base(base: str, fused: bool | None) -> None:
    """The base's step is compiled; the coupling is not, and keeps its state."""
    found = []
    for compiles in (True, False):
        torch._dynamo.reset()
        params = make_params()
        if base == "sgd":
            inner: torch.optim.Optimizer = torch.optim.SGD(
                params.items(), lr=0.1, momentum=0.9, weight_decay=0.1
            )
        else:
            inner = torch.optim.AdamW(params.items(), lr=0.1, foreach=False)
        opt = SplitLBI(inner, nu=2.0, lambd=0.3, fused=fused)
        counter = CompileCounterWithBackend("eager")
        step = torch.compile(opt.step, backend=counter) if compiles else opt.step
        for k in range(5):
            set_grads(params.values(), k)
            step()
        assert (counter.frame_count > 0) == compiles
        found.append({key: t for key, t in state_of(opt).items() if not key.endswith("step")})
    assert {"0.v", "1.v"} <= found[0].keys() == found[1].keys()
    for key, tensor in found[1].items():
        torch.testing.assert_close(found[0][key], tensor, rtol=1e-5, atol=1e-5, msg=key)


def test_compiled_fused_path_equals_the_reference() -> None:
    """What fused=True does on a GPU, run on CPU; the lr changes without a recompile."""
    options = {"lr": 0.1, "nu": 2.0, "momentum": 0.9, "weight_decay": 0.01, "lambd": 0.3}
    params = list(make_params().values())
    truths = [make_reference(p, options) for p in params]
    penalties = [GroupLasso(0.3), Lasso(0.3), None]
    weights = [p.detach() for p in params]
    duals = [torch.zeros_like(W) for W in weights]
    buffers = [torch.zeros_like(W) for W in weights]
    with torch._dynamo.config.patch(error_on_recompile=True):
        for k in range(6):
            lr = 0.1 / (k + 1)
            o = Options(
                lr=lr,
                kappa=1.0,
                nu=2.0,
                momentum=0.9,
                nesterov=False,
                weight_decay=0.01,
                decoupled_weight_decay=False,
                coupling="direct",
                maximize=False,
            )
            grads = make_grads(weights, k)
            items = [
                Item(W, g, None if penalty is None else Twin(V, penalty), b)
                for W, g, V, penalty, b in zip(
                    weights, grads, duals, penalties, buffers, strict=True
                )
            ]
            compiled(items, o)
            for truth, grad in zip(truths, grads, strict=True):
                truth.lr = lr
                truth.step(grad)
    for W, V, truth in zip(weights, duals, truths, strict=True):
        torch.testing.assert_close(W, truth.W, rtol=1e-12, atol=1e-12)
        if truth.penalty is not None:
            torch.testing.assert_close(V, truth.V, rtol=1e-12, atol=1e-12)

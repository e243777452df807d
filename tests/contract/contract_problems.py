"""Small problems that the contract tests share: tensors, a net, option tables, the truth."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn

from dessilbi.optim import DessiLBI, SplitLBI, TwinOptimizer, split_parameters
from dessilbi.optim._reference import Reference
from dessilbi.optim.native import KernelBuildError, library
from dessilbi.optim.prox import resolve_penalty

if TYPE_CHECKING:
    from collections.abc import Iterable

SHAPES: dict[str, tuple[int, ...]] = {
    "conv": (4, 2, 3, 3),
    "linear": (5, 6),
    "bias": (7,),
}

# Strong coupling and low thresholds: groups and elements enter Gamma within a few steps.
LIVELY: dict[str, Any] = {"lr": 0.1, "nu": 2.0, "lambd": 0.3}

VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "momentum": {"momentum": 0.9},
    "nesterov": {"momentum": 0.9, "nesterov": True},
    "weight_decay": {"weight_decay": 0.1},
    "decoupled": {"weight_decay": 0.01, "decoupled_weight_decay": True, "momentum": 0.5},
    "maximize": {"maximize": True, "momentum": 0.9, "weight_decay": 0.1},
    "kappa": {"kappa": 3.0},
    "coupling": {"coupling": "momentum", "momentum": 0.9},
    "coupling_nesterov": {"coupling": "momentum", "momentum": 0.9, "nesterov": True},
    "lasso": {"penalty": "lasso"},
    "group_lasso": {"penalty": "group_lasso"},
    "last_dim": {"penalty": "group_lasso", "group_dim": -1, "momentum": 0.9},
    "size": {"lambd_scale": "size"},
    "init": {"lambd_scale": "init", "lambd": 0.1},
    "no_twin": {"penalty": None, "momentum": 0.9},
}


def has_compiler() -> bool:
    """Whether the fused kernel can be built here."""
    try:
        library()
    except KernelBuildError:
        return False
    return True


needs_compiler = pytest.mark.skipif(not has_compiler(), reason="fused=True needs a C++ compiler")

IMPLEMENTATIONS = [
    pytest.param({"foreach": False, "fused": False}, id="loop"),
    pytest.param({"foreach": True}, id="foreach"),
    pytest.param({"fused": True}, id="fused", marks=needs_compiler),
]


def make_params(
    dtype: torch.dtype = torch.float64, seed: int = 0, shapes: dict[str, tuple[int, ...]] = SHAPES
) -> dict[str, nn.Parameter]:
    """Named random parameters."""
    g = torch.Generator().manual_seed(seed)
    return {
        name: nn.Parameter(torch.randn(shape, generator=g, dtype=torch.float64).to(dtype))
        for name, shape in shapes.items()
    }


def make_grads(params: Iterable[Tensor], step: int) -> list[Tensor]:
    """Random gradients that depend on the step and the shapes alone."""
    g = torch.Generator().manual_seed(1000 + step)
    return [torch.randn(p.shape, generator=g, dtype=torch.float64).to(p.dtype) for p in params]


def set_grads(params: Iterable[Tensor], step: int) -> None:
    """Give each parameter its gradient for this step."""
    params = list(params)
    for p, grad in zip(params, make_grads(params, step), strict=True):
        p.grad = grad


def run(opt: DessiLBI, steps: int, start: int = 0) -> None:
    """Step an optimizer on made gradients."""
    params = [p for group in opt.param_groups for p in group["params"]]
    for k in range(start, start + steps):
        set_grads(params, k)
        opt.step()


def make_reference(p: Tensor, options: dict[str, Any]) -> Reference:
    """The literal iteration for one float64 tensor under the options of DessiLBI."""
    options = {"penalty": "auto", **options}
    kind = resolve_penalty(options.pop("penalty"), p.ndim)
    scale = options.pop("lambd_scale", None)
    W = p.detach().clone()
    dim = options.get("group_dim", 0)
    if kind == "group_lasso":
        norms = W.movedim(dim, 0).reshape(W.shape[dim], -1).norm(dim=1)
        shape = [-1 if d == dim % W.ndim else 1 for d in range(W.ndim)]
        factor = {
            None: 1.0,
            "size": (W.numel() / W.shape[dim]) ** 0.5,
            "init": norms.reshape(shape),
        }
    else:
        factor = {None: 1.0, "size": 1.0, "init": W.square().mean().sqrt().item()}
    options["lambd"] = options.get("lambd", 1.0) * factor[scale]
    options["lr"] = float(options.get("lr", 0.1))
    return Reference(W=W, penalty=kind, **options)


def state_of(opt: DessiLBI) -> dict[str, Tensor]:
    """All tensors an optimizer holds, W included, cloned, by parameter's place and key."""
    found: dict[str, Tensor] = {}
    params = [p for group in opt.param_groups for p in group["params"]]
    for i, p in enumerate(params):
        found[f"{i}.W"] = p.detach().clone()
        for key, value in opt.state.get(p, {}).items():
            found[f"{i}.{key}"] = value.clone()
    return found


def assert_same(a: dict[str, Tensor], b: dict[str, Tensor]) -> None:
    """Bit for bit."""
    assert a.keys() == b.keys()
    for key in a:
        torch.testing.assert_close(a[key], b[key], rtol=0, atol=0, msg=lambda m, k=key: f"{k}: {m}")


class SmallNet(nn.Module):
    """Convolutions with 5 filters and with a single one, and a linear layer of odd size."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(2, 5, 3, dtype=torch.float64)
        self.conv2 = nn.Conv2d(5, 1, 2, dtype=torch.float64)
        self.fc = nn.Linear(4, 3, dtype=torch.float64)
        g = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for p in self.parameters():
                p.copy_(torch.randn(p.shape, generator=g, dtype=torch.float64) / 2)
            sizes = torch.linspace(0.2, 1.5, 5, dtype=torch.float64)
            self.conv1.weight.mul_(sizes.reshape(5, 1, 1, 1))  # some filters enter, some do not

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.conv1(x))
        return self.fc(torch.tanh(self.conv2(x)).flatten(1))


def split_net(net: SmallNet, options: dict[str, Any]) -> TwinOptimizer:
    """An optimizer whose Gamma is neither empty nor full after a few steps.

    ``base="adamw"`` among the options is a twin around AdamW.
    """
    groups = split_parameters(net, {"fc": {"lambd": 0.1}})
    given = {**LIVELY, **options}
    if given.pop("base", "sgd") == "adamw":
        adamw = torch.optim.AdamW(groups, lr=given.pop("lr"), weight_decay=0.1)
        return SplitLBI(adamw, **given)
    return DessiLBI(groups, **given)


def make_batch(step: int) -> tuple[Tensor, Tensor]:
    """Four inputs and targets of SmallNet."""
    g = torch.Generator().manual_seed(500 + step)
    x = torch.randn(4, 2, 5, 5, generator=g, dtype=torch.float64)
    return x, torch.randn(4, 3, generator=g, dtype=torch.float64)


def train(
    model: nn.Module, opt: DessiLBI, steps: int, start: int = 0, part: slice = slice(None)
) -> None:
    """Least squares on SmallNet's batches, or on a part of each."""
    for k in range(start, start + steps):
        x, y = make_batch(k)
        opt.zero_grad()
        nn.functional.mse_loss(model(x[part]), y[part]).backward()
        opt.step()

"""The penalties of docs/penalties.md, as written there, against brute force."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dessilbi import DessiLBI, SplitLBI, compact, project
from dessilbi.optim.prox import Penalty

PAGE = Path(__file__).parents[2] / "docs" / "penalties.md"


def blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


@pytest.fixture
def named() -> dict[str, Any]:
    found: dict[str, Any] = {"__name__": "penalties"}
    exec(blocks()[0], found)
    return found


@pytest.mark.parametrize("v", [-3.1, -0.9, -0.2, 0.0, 0.35, 0.8, 2.0, 2.6])
def test_mcp_has_the_least_objective_of_a_grid(named: dict[str, Any], v: float) -> None:
    penalty = named["MCP"](lambd=0.7)
    V = torch.tensor([v], dtype=torch.float64)
    grid = torch.cat([torch.linspace(-4, 4, 8001, dtype=torch.float64), torch.zeros(1)])
    every = torch.stack([0.5 * (g - v) ** 2 + penalty.value(g[None]) for g in grid])
    G = penalty.prox(V)
    assert float(0.5 * (G - V).square().sum() + penalty.value(G)) <= float(every.min()) + 1e-12
    assert bool(penalty.support(V)) == (float(G) != 0)


@pytest.mark.parametrize("seed", range(6))
def test_the_sparse_group_lasso_has_the_least_objective_of_a_grid(
    named: dict[str, Any], seed: int
) -> None:
    penalty = named["SparseGroupLasso"](l1=0.3, l2=0.5)
    generator = torch.Generator().manual_seed(seed)
    V = torch.randn(1, 2, dtype=torch.float64, generator=generator)
    axis = torch.cat([torch.linspace(-3, 3, 241, dtype=torch.float64), torch.zeros(1)])
    grid = torch.cartesian_prod(axis, axis)
    omega = 0.3 * grid.abs().sum(1) + 0.5 * grid.norm(dim=1)
    least = (0.5 * (grid - V).square().sum(1) + omega).min()
    G = penalty.prox(V)
    assert float(0.5 * (G - V).square().sum() + penalty.value(G)) <= float(least) + 1e-12
    assert torch.equal(penalty.support(V), G != 0)


def literal(W: Tensor, penalty: Penalty, grads: list[Tensor], lr: float, nu: float) -> Tensor:
    """The iteration by its equations; returns Gamma."""
    V = torch.zeros_like(W)
    for grad in grads:
        C = (W - penalty.prox(V)) / nu
        W, V = W - lr * (grad + C), V + lr * C
    return penalty.prox(V)


@pytest.mark.parametrize("name", ["SparseGroupLasso", "MCP"])
@pytest.mark.parametrize("wrapped", [False, True])
def test_gamma_follows_a_penalty_of_ones_own(
    named: dict[str, Any], name: str, wrapped: bool
) -> None:
    penalty = {"SparseGroupLasso": (0.05, 0.1), "MCP": (0.2,)}[name]
    made: Penalty = named[name](*penalty)
    generator = torch.Generator().manual_seed(3)
    start = torch.randn(6, 5, dtype=torch.float64, generator=generator)
    grads = [
        torch.randn(6, 5, dtype=torch.float64, generator=generator).mul(0.1) for _ in range(12)
    ]
    p = nn.Parameter(start.clone())
    group = {"params": [p], "penalty": made, "nu": 2.0}
    opt: DessiLBI | SplitLBI = (
        SplitLBI(torch.optim.SGD([group], lr=0.1)) if wrapped else DessiLBI([group], lr=0.1)
    )
    for grad in grads:
        p.grad = grad.clone()
        opt.step()
    gamma = literal(start, made, grads, 0.1, 2.0)
    assert 0 < int(gamma.count_nonzero()) < gamma.numel()
    torch.testing.assert_close(opt.gamma(p), gamma, rtol=0, atol=1e-12)
    assert torch.equal(opt.support(p), gamma != 0)


def test_the_page_trains_and_its_support_is_made_small(named: dict[str, Any]) -> None:
    torch.manual_seed(0)
    body = nn.Sequential()
    body.add_module("fc1", nn.Linear(8, 16))
    body.add_module("act", nn.ReLU())
    body.add_module("fc2", nn.Linear(16, 3))
    model = nn.Sequential(body)
    named |= {"model": model, "steps": 40}
    exec(blocks()[1], named)
    opt: SplitLBI = named["opt"]
    x, y = torch.randn(64, 8), torch.randint(3, (64,))
    for _ in range(40):
        opt.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        opt.step()
    mask = opt.mask()
    rows = mask["0.fc1.weight"].any(1)
    assert 0 < int(rows.sum()) < 16
    small = compact(model, mask, x)
    assert small.model.state_dict()["0.fc1.weight"].shape[0] < 16
    with project(model, mask):
        torch.testing.assert_close(small.model(x), model(x))

"""What the equations imply, whatever the gradients are."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from dessilbi import DessiLBI

positive = st.floats(0.05, 20)
seeds = st.integers(0, 2**31)


def run(
    W0: Tensor, grads: list[Tensor], penalty: str, **options: Any
) -> tuple[nn.Parameter, DessiLBI]:
    p = nn.Parameter(W0.clone())
    opt = DessiLBI([p], penalty=penalty, **options)
    for grad in grads:
        p.grad = grad
        opt.step()
    return p, opt


def problem(seed: int, steps: int = 30) -> tuple[Tensor, list[Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    draws = torch.randn(steps + 1, 5, 4, dtype=torch.float64, generator=generator)
    return draws[0], list(draws[1:])


@settings(max_examples=40, deadline=None)
@given(
    seed=seeds,
    kappa=positive,
    nu=positive,
    lambd=st.floats(0, 3),
    lr=st.floats(1e-3, 0.2),
    penalty=st.sampled_from(["lasso", "group_lasso"]),
)
def test_weights_and_dual_share_the_path_of_the_gradients(
    seed: int, kappa: float, nu: float, lambd: float, lr: float, penalty: str
) -> None:
    """``W_k + kappa V_k + lr * sum(grad) = W_0`` without momentum and decay."""
    lr = min(lr, nu / 2)  # beyond this the coupling itself diverges
    W0, grads = problem(seed)
    p, opt = run(W0, grads, penalty, kappa=kappa, nu=nu, lambd=lambd, lr=lr)
    total = p.detach() + kappa * opt.state[p]["v"] + lr * torch.stack(grads).sum(0)
    torch.testing.assert_close(total, W0, rtol=0, atol=1e-11)


@settings(max_examples=40, deadline=None)
@given(
    seed=seeds,
    kappa=positive,
    lambd=st.floats(0.01, 1),
    penalty=st.sampled_from(["lasso", "group_lasso"]),
    momentum=st.sampled_from([0.0, 0.9]),
)
def test_kappa_and_lambd_act_through_their_product(
    seed: int, kappa: float, lambd: float, penalty: str, momentum: float
) -> None:
    W0, grads = problem(seed)
    common: dict[str, Any] = {"penalty": penalty, "nu": 2.0, "momentum": momentum}
    p, opt = run(W0, grads, kappa=kappa, lambd=lambd, **common)
    q, one = run(W0, grads, kappa=1.0, lambd=kappa * lambd, **common)
    torch.testing.assert_close(p.detach(), q.detach(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(opt.gamma(p), one.gamma(q), rtol=1e-11, atol=1e-12)
    clear = (one.state[q]["v"].abs() - kappa * lambd).abs() > 1e-9  # not on the edge
    if penalty == "lasso":
        assert torch.equal(opt.support(p)[clear], one.support(q)[clear])


@pytest.mark.parametrize("nu", [1e30, float("inf")])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"momentum": 0.9},
        {"momentum": 0.9, "nesterov": True},
        {"momentum": 0.9, "weight_decay": 0.1},
        {"weight_decay": 0.1, "maximize": True},
    ],
    ids=str,
)
def test_without_coupling_it_is_sgd(options: dict[str, Any], nu: float) -> None:
    W0, grads = problem(0)
    p, opt = run(W0, grads, "lasso", nu=nu, lr=0.1, **options)
    q = nn.Parameter(W0.clone())
    sgd = torch.optim.SGD([q], lr=0.1, **options)
    for grad in grads:
        q.grad = grad
        sgd.step()
    torch.testing.assert_close(p.detach(), q.detach(), rtol=1e-13, atol=1e-14)
    assert opt.density() == 0


@pytest.mark.parametrize("penalty", ["lasso", "group_lasso"])
@pytest.mark.parametrize("fused", [None, True])
def test_all_zero_weights_give_no_nan(penalty: str, fused: bool | None) -> None:
    zeros = torch.zeros(3, 2, dtype=torch.float64)
    p, opt = run(zeros, [zeros, zeros], penalty, lambd=0.0, fused=fused)
    assert torch.equal(p.detach(), zeros)
    assert torch.equal(opt.gamma(p), zeros)
    assert opt.density() == 0


def test_important_weights_enter_first() -> None:
    """On a quadratic the twin finds the large coordinates in order of their size."""
    target = torch.tensor([[3.0, 0.0, -2.0, 1.0, 0.05]], dtype=torch.float64)
    p = nn.Parameter(torch.zeros_like(target))
    opt = DessiLBI([p], lr=0.1, nu=1.0, lambd=1.0)
    entry: dict[int, int] = {}
    for k in range(200):
        p.grad = p.detach() - target
        opt.step()
        for i in opt.support(p)[0].nonzero().flatten().tolist():
            entry.setdefault(i, k)
    assert sorted(entry, key=lambda i: entry[i])[:3] == [0, 2, 3]
    assert entry.keys() == {0, 2, 3}


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_a_support_is_a_tensor_of_its_own(layout: torch.memory_format) -> None:
    p = nn.Parameter(torch.ones(4, 3, 2, 2).to(memory_format=layout))
    opt = DessiLBI([p], lr=1.0, nu=1.0, lambd=0.1)
    p.grad = torch.zeros_like(p)
    opt.step()
    support = opt.support(p)
    assert support.all()
    assert support.stride() == p.stride()
    support[0, 0, 0, 0] = False
    assert support.sum() == p.numel() - 1

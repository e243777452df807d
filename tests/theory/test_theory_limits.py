"""The two ends of nu: gradient descent, and mirror descent with a sparse mirror."""

from __future__ import annotations

import math

import pytest
import torch
from theory_problems import DECAY, problem, step
from torch import Tensor, nn

from dessilbi import DessiLBI


@pytest.mark.parametrize("penalty", ["lasso", "group_lasso"])
def test_without_coupling_it_is_gradient_descent(penalty: str) -> None:
    made, plain = problem(), problem()
    opt = made.optimizer(penalty, lr=0.3, nu=math.inf)
    sgd = torch.optim.SGD(plain.net.parameters(), lr=0.3, weight_decay=DECAY)
    for _ in range(100):
        step(opt, made)
        sgd.zero_grad()
        plain.loss().backward()
        sgd.step()
    for p, q in zip(made.net.parameters(), plain.net.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=0, atol=1e-14)
    assert opt.density() == 0


def test_weak_coupling_approaches_gradient_descent_like_one_over_nu() -> None:
    far = []
    for nu in (1e3, 1e4, 1e5):
        made, plain = problem(), problem()
        opt = made.optimizer("lasso", lr=0.3, nu=nu, lambd=0.01)
        sgd = torch.optim.SGD(plain.net.parameters(), lr=0.3, weight_decay=DECAY)
        for _ in range(50):
            step(opt, made)
            sgd.zero_grad()
            plain.loss().backward()
            sgd.step()
        pairs = zip(made.net.parameters(), plain.net.parameters(), strict=True)
        far.append(max(float((p - q).detach().abs().max()) for p, q in pairs))
    assert far[0] / far[1] == pytest.approx(10, rel=0.1)
    assert far[1] / far[2] == pytest.approx(10, rel=0.1)


# ---------------------------------------------------------------------- nu -> 0

KAPPA, LAMBD, TIME = 2.0, 0.3, 2.0
W0 = torch.tensor([[0.3, -0.2, 0.1], [0.02, 0.4, -0.6], [0.02, 0.01, -0.03]], dtype=torch.float64)
TARGET = torch.tensor([[1.0, 0.1, -0.3], [-0.2, 0.3, 0.2], [0.1, -0.05, 0.02]], dtype=torch.float64)
MIX = torch.tensor([[1.0, 0.3, 0.0], [0.3, 0.8, 0.2], [0.0, 0.2, 0.6]], dtype=torch.float64)


def gradient(W: Tensor) -> Tensor:
    """Of a smooth, not convex loss."""
    return (W - TARGET) @ MIX + 0.3 * torch.sin(3 * W)


def prox(V: Tensor, penalty: str) -> Tensor:
    if penalty == "lasso":
        return V.sign() * (V.abs() - LAMBD).clamp(min=0)
    norm = V.norm(dim=1, keepdim=True)
    return V * (1 - LAMBD / norm.clamp(min=1e-30)).clamp(min=0)


def mirror_descent(penalty: str, alpha: float, steps: int) -> Tensor:
    """``U <- U - alpha grad L(Gamma)``, ``Gamma = kappa/2 prox(U)``, from ``U = W_0 / kappa``."""
    U = W0 / KAPPA
    for _ in range(steps):
        U = U - alpha * gradient(KAPPA / 2 * prox(U, penalty))
    return KAPPA / 2 * prox(U, penalty)


def coupled(penalty: str, nu: float) -> tuple[Tensor, Tensor]:
    """W and Gamma after the time TIME, with lr = nu / 4."""
    W = nn.Parameter(W0.clone())
    lr = nu / 4
    opt = DessiLBI([W], penalty=penalty, lr=lr, kappa=KAPPA, nu=nu, lambd=LAMBD)
    for _ in range(round(TIME * KAPPA / lr)):
        W.grad = gradient(W.detach())
        opt.step()
    return W.detach(), opt.gamma(W)


@pytest.mark.parametrize("penalty", ["lasso", "group_lasso"])
def test_strong_coupling_is_sparse_mirror_descent_with_half_the_damping(penalty: str) -> None:
    """V + W/kappa obeys mirror descent exactly; as nu -> 0 the mirror is kappa/2 prox."""
    limit = mirror_descent(penalty, alpha=1e-3, steps=round(TIME / 1e-3))
    assert 0 < int((limit == 0).sum()) < limit.numel()  # sparse, and not nothing
    wrong = []
    for nu in (0.08, 0.04, 0.02):
        W, Gamma = coupled(penalty, nu)
        wrong.append(float((Gamma - limit).norm() / limit.norm()))
        assert float((W - Gamma).norm()) < 3 * nu
    assert wrong[2] < 0.02
    assert wrong[1] / wrong[2] == pytest.approx(2, rel=0.25)  # first order in nu
    assert wrong[0] / wrong[1] == pytest.approx(2, rel=0.25)


def test_with_the_damping_of_the_paper_it_is_not_the_limit() -> None:
    """With kappa in place of kappa/2 the distance stays, however strong the coupling."""
    limit = mirror_descent("lasso", alpha=1e-3, steps=round(TIME / 1e-3))
    _, Gamma = coupled("lasso", 0.02)
    U = W0 / KAPPA
    for _ in range(round(TIME / 1e-3)):
        U = U - 1e-3 * gradient(KAPPA * prox(U, "lasso"))
    full = KAPPA * prox(U, "lasso")
    assert float((Gamma - full).norm()) > 5 * float((Gamma - limit).norm())

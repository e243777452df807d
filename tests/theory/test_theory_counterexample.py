"""Where the paper's statements fail: its step bound, and its descent in Q."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from theory_problems import CASES, problem, step
from torch import nn

from dessilbi import DessiLBI
from dessilbi.theory import LyapunovMonitor, max_lr

NU = 0.2


# ---------------------------------------------------------------------- the step bound


@pytest.mark.parametrize(("activation", "penalty", "kappa"), CASES)
def test_strong_coupling_diverges_at_the_papers_bound_and_not_at_the_safe_one(
    activation: str, penalty: str, kappa: float
) -> None:
    lip = problem(activation).track()().lip
    bounds = max_lr(lip, NU)

    made = problem(activation)
    opt = made.optimizer(penalty, lr=0.98 * bounds.paper, kappa=kappa, nu=NU, lambd=0.02)
    losses = []
    with LyapunovMonitor(opt, made.loss) as monitor:
        while len(losses) < 500 and (not losses or losses[-1] < 1e9):
            losses.append(step(opt, made))
    assert losses[-1] > 1e9
    assert monitor.history.F[-1] > 1e6 * monitor.history.F[0]

    made = problem(activation)
    opt = made.optimizer(penalty, lr=0.9 * bounds.safe, kappa=kappa, nu=NU, lambd=0.02)
    start = made.full_gradient()
    losses = [step(opt, made) for _ in range(1000)]
    assert made.full_gradient() < 1e-3 * start
    assert losses[-1] < losses[0]


def quadratic(curvature: float, lr: float, *, kappa: float = 1.0, lambd: float = 0.1) -> float:
    """Distance from the minimum of ``curvature/2 ||W - 1||^2`` after 1000 steps; nu = 0.2."""
    W = nn.Parameter(torch.tensor([3.0, -2.0], dtype=torch.float64))
    opt = DessiLBI([W], penalty="lasso", lr=lr, kappa=kappa, nu=NU, lambd=lambd)
    for _ in range(1000):
        W.grad = curvature * (W.detach() - 1)
        opt.step()
        if not float(W.detach().abs().max()) < 1e9:
            return math.inf
    return float((W.detach() - 1).norm())


@pytest.mark.parametrize("curvature", [0.0, 0.5, 1.0, 4.0, 20.0])
@pytest.mark.parametrize("kappa", [1.0, 5.0])
def test_the_sharp_bound_is_sharp_on_a_quadratic(curvature: float, kappa: float) -> None:
    """W and Gamma on the support do plain gradient descent on Lbar: stable up to 2 / lambda_max."""
    bounds = max_lr(curvature, NU)
    hessian = np.array([[curvature + 1 / NU, -1 / NU], [-1 / NU, 1 / NU]])
    assert bounds.sharp == pytest.approx(2 / np.linalg.eigvalsh(hessian)[-1])
    assert quadratic(curvature, 1.05 * bounds.sharp, kappa=kappa, lambd=0.0) == math.inf
    if curvature:
        # The dead zone of the threshold may catch a small overshoot: a cycle, not a limit.
        assert quadratic(curvature, 1.05 * bounds.sharp, kappa=kappa) > 0.01
        assert quadratic(curvature, 0.99 * bounds.sharp, kappa=kappa) < 1e-6
        assert quadratic(curvature, 0.9 * bounds.safe, kappa=kappa) < 1e-6


def test_the_numbers_in_the_docs() -> None:
    """docs/theory.md quotes this case: curvature 1, nu 0.2."""
    bounds = max_lr(1.0, NU)
    assert (bounds.safe, bounds.sharp, bounds.paper) == pytest.approx(
        (0.18182, 0.19002, 0.33333), abs=5e-6
    )
    assert quadratic(1.0, 0.98 * bounds.paper) == math.inf
    assert quadratic(1.0, 0.9 * bounds.safe) < 1e-6


def test_without_any_loss_the_paper_allows_steps_that_diverge() -> None:
    """Lip < 1/nu: the paper's bound exceeds nu, beyond which the coupling alone diverges."""
    assert max_lr(0.0, NU).safe == max_lr(0.0, NU).sharp == NU
    assert max_lr(0.0, NU).paper == 2 * NU
    assert quadratic(0.0, 1.05 * NU, lambd=0.0) == math.inf
    assert quadratic(0.0, 0.98 * max_lr(0.0, NU).paper) == math.inf
    assert quadratic(0.0, 0.9 * NU) < 10


# ---------------------------------------------------------------------- the descent lemma


def test_descent_is_not_bounded_by_the_change_of_q() -> None:
    """While Gamma is still zero g moves and P hardly does: only the bound with P can hold."""
    W = nn.Parameter(torch.tensor([1.0, -0.5], dtype=torch.float64))
    opt = DessiLBI([W], penalty="lasso", lr=0.1, nu=1.0, lambd=100.0)

    def loss() -> torch.Tensor:
        return (W - 1).square().sum() / 2

    with LyapunovMonitor(opt, loss) as monitor:
        for _ in range(200):
            opt.zero_grad()
            loss().backward()
            opt.step()
    history = monitor.history
    assert opt.density() == 0
    assert history.check(lip=1.0).holds
    late = slice(150, None)
    paper = history.rho(1.0) * history.moved_with_g
    assert (history.descent[late] < 1e-6 * paper[late]).all()
    assert (paper[late] > 1e-4).all()

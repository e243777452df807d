"""F and its companions against a literal computation from the paper's appendix, in numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from dessilbi import DessiLBI
from dessilbi.theory import LyapunovMonitor

ALPHA, KAPPA, NU, LAMBD, DECAY = 0.02, 3.0, 0.7, 0.05, 0.1
A = np.array([[2.0, 0.3, 0.1], [0.3, 1.0, -0.2], [0.1, -0.2, 0.5]])
B = np.array([[1.0, -0.4, 0.05], [-0.3, 0.02, 0.6]])
START, BIAS = np.array([[0.5, -0.6, 0.2], [0.1, 0.8, -0.3]]), np.array([0.4, -0.7])


def loss(W: Any, b: Any) -> Any:
    """Not convex; works for numpy and for torch."""
    xp: Any = torch if isinstance(W, torch.Tensor) else np
    rest = xp.sin(2 * W).sum() * 0.2 + ((b - W[:, 0]) ** 2).sum() / 2
    return ((W - xp.as_tensor(B) if xp is torch else W - B) @ like(A, W)).sum() ** 2 / 20 + rest


def like(values: np.ndarray, W: Any) -> Any:
    return torch.as_tensor(values) if isinstance(W, torch.Tensor) else values


def gradients(W: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """By central differences, so that nothing of torch is used; weight decay included."""
    eps, found = 1e-6, []
    for which in range(2):
        x = (W, b)[which]
        grad = np.zeros_like(x)
        for i in np.ndindex(x.shape):
            up, down = x.copy(), x.copy()
            up[i] += eps
            down[i] -= eps
            pair = [(up, b), (down, b)] if which == 0 else [(W, up), (W, down)]
            grad[i] = (loss(*pair[0]) - loss(*pair[1])) / (2 * eps)
        found.append(grad + DECAY * x)
    return found[0], found[1]


def groups(G: np.ndarray, penalty: str) -> np.ndarray:
    return np.abs(G) if penalty == "lasso" else np.sqrt((G**2).sum(1, keepdims=True))


def omega(G: np.ndarray, penalty: str) -> float:
    return float(LAMBD * groups(G, penalty).sum())


def prox(X: np.ndarray, t: float, penalty: str) -> np.ndarray:
    """Of ``t * Omega``."""
    size = groups(X, penalty)
    return np.where(size > t * LAMBD, 1 - t * LAMBD / np.maximum(size, 1e-300), 0.0) * X


def literal(penalty: str, steps: int) -> list[dict[str, float]]:
    """Eq. (SLBI-reform-iter1) to (-iter3), which know g and no V, and the appendix's F."""
    W, b, Gamma, g = START, BIAS, np.zeros_like(START), np.zeros_like(START)
    earlier_Gamma, earlier_g = Gamma, g
    rows = []

    def lbar(W: np.ndarray, b: np.ndarray, Gamma: np.ndarray) -> float:
        decay = DECAY / 2 * ((W**2).sum() + (b**2).sum())
        return float(loss(W, b) + decay + ((W - Gamma) ** 2).sum() / (2 * NU))

    def lyapunov(
        W: np.ndarray, b: np.ndarray, Gamma: np.ndarray, before: np.ndarray, g: np.ndarray
    ) -> float:
        bregman = omega(Gamma, penalty) - omega(before, penalty) - (g * (Gamma - before)).sum()
        return float(ALPHA * lbar(W, b, Gamma) + bregman)

    for _ in range(steps):
        in_W, in_b = gradients(W, b)
        pull = (W - Gamma) / NU
        W1, b1 = W - KAPPA * ALPHA * (in_W + pull), b - KAPPA * ALPHA * in_b
        Gamma1 = prox(Gamma + KAPPA * (g + ALPHA * pull), KAPPA, penalty)
        g1 = g - (Gamma1 - Gamma - KAPPA * ALPHA * pull) / KAPPA
        at_W, at_b = gradients(W1, b1)
        pull1 = (W1 - Gamma1) / NU
        H = [ALPHA * (at_W + pull1), ALPHA * at_b, -ALPHA * pull1 + g1 - g, Gamma - Gamma1]
        moved = sum(((x - y) ** 2).sum() for x, y in ((W1, W), (b1, b), (Gamma1, Gamma)))
        rows.append(
            {
                "F_before": lyapunov(W, b, Gamma, earlier_Gamma, earlier_g),
                "F": lyapunov(W1, b1, Gamma1, Gamma, g),
                "augmented": lbar(W1, b1, Gamma1),
                "moved": moved,
                "moved_with_g": moved + ((g - earlier_g) ** 2).sum(),
                "grad": np.sqrt(((at_W + pull1) ** 2).sum() + (at_b**2).sum() + (pull1**2).sum()),
                "grad_loss": np.sqrt((at_W**2).sum() + (at_b**2).sum()),
                "gap": np.sqrt(((W1 - Gamma1) ** 2).sum()),
                "subgrad": np.sqrt(sum((part**2).sum() for part in H)),
            }
        )
        earlier_Gamma, earlier_g = Gamma, g
        W, b, Gamma, g = W1, b1, Gamma1, g1
    return rows


@pytest.mark.parametrize("penalty", ["lasso", "group_lasso"])
@pytest.mark.parametrize("decoupled", [False, True])
def test_the_monitor_records_what_the_appendix_defines(penalty: str, decoupled: bool) -> None:
    W, b = nn.Parameter(torch.tensor(START)), nn.Parameter(torch.tensor(BIAS))
    lr = KAPPA * ALPHA
    opt = DessiLBI(
        [{"params": [b], "penalty": None}, {"params": [W], "penalty": penalty}],
        lr=lr,
        kappa=KAPPA,
        nu=NU,
        lambd=LAMBD,
        # The paper's decay is an L2 term of strength weight_decay / lr.
        weight_decay=DECAY * lr if decoupled else DECAY,
        decoupled_weight_decay=decoupled,
    )
    with LyapunovMonitor(opt, lambda: loss(W, b)) as monitor:
        for _ in range(60):
            opt.zero_grad()
            torch.autograd.backward(loss(W, b))
            opt.step()
    history = monitor.history
    expected = literal(penalty, 60)
    assert 0 < opt.density() <= 1
    for name in expected[0]:
        wanted = np.array([row[name] for row in expected])
        np.testing.assert_allclose(getattr(history, name), wanted, rtol=1e-6, atol=1e-9)
    assert (history.bregman > 1e-6).any()
    np.testing.assert_array_equal(history.step, np.arange(1, 61))

"""Small nets with a full-batch loss in float64, and runs of DessiLBI on them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from dessilbi import DessiLBI, split_parameters
from dessilbi.theory import LipschitzTrack, LyapunovMonitor, max_lr

if TYPE_CHECKING:
    from dessilbi.theory import LyapunovHistory

DECAY = 0.3
"""Weight decay: with it L has bounded level sets, as the theorem asks."""
CASES = [
    (activation, penalty, kappa)
    for activation in ("tanh", "softplus")
    for penalty in ("lasso", "group_lasso")
    for kappa in (1.0, 5.0)
]
# A little above the curvature that these runs meet: a first guess, which each run must confirm.
_MET = {"tanh": 3.35, "softplus": 4.4}
_ACTIVATIONS = {"tanh": nn.Tanh, "softplus": nn.Softplus, "relu": nn.ReLU}


@dataclass
class Problem:
    """A net and its data."""

    net: nn.Sequential
    x: Tensor
    y: Tensor

    def loss(self) -> Tensor:
        return mse_loss(self.net(self.x), self.y)

    def full_gradient(self) -> float:
        """||grad L(W)|| with weight decay."""
        params = list(self.net.parameters())
        grads = torch.autograd.grad(self.loss(), params)
        square = sum(
            float((g + DECAY * p.detach()).square().sum())
            for g, p in zip(grads, params, strict=True)
        )
        return math.sqrt(square)

    def track(self) -> LipschitzTrack:
        return LipschitzTrack(
            self.net, mse_loss, [(self.x, self.y)], weight_decay=DECAY, margin=math.inf
        )

    def optimizer(self, penalty: str, *, lr: float, **options: float) -> DessiLBI:
        """Matrices have a twin, biases have none."""
        groups = split_parameters(self.net, {"*": {"penalty": penalty}})
        return DessiLBI(groups, lr=lr, weight_decay=DECAY, **options)


def problem(activation: str = "tanh", seed: int = 4) -> Problem:
    g = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    net = nn.Sequential(nn.Linear(3, 2), _ACTIVATIONS[activation](), nn.Linear(2, 2)).double()
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(0.5 * draw(*p.shape))
    x = 0.7 * draw(16, 3)
    return Problem(net, x, 1.5 * x @ draw(3, 2))


def step(opt: DessiLBI, made: Problem) -> float:
    opt.zero_grad()
    loss = made.loss()
    loss.backward()
    opt.step()
    return loss.item()


@dataclass
class Run:
    """What became of a run."""

    made: Problem
    opt: DessiLBI
    lip: float
    """What the step was chosen for,"""
    met: float
    """and the largest curvature along the run itself, not above it."""
    history: LyapunovHistory


def settled_run(
    activation: str, penalty: str, kappa: float, *, nu: float, lambd: float, steps: int
) -> Run:
    """Run at 0.9 of the safe bound of the largest curvature that the run itself meets.

    The curvature along a run is known after it; the run is repeated until it met none larger than
    the one its step was chosen for.
    """
    lip = _MET[activation]
    for _ in range(10):
        made = problem(activation)
        opt = made.optimizer(
            penalty, lr=0.9 * max_lr(lip, nu).safe, kappa=kappa, nu=nu, lambd=lambd
        )
        track = made.track()
        with LyapunovMonitor(opt, made.loss) as monitor:
            for k in range(steps):
                if k % 50 == 0:
                    track()
                step(opt, made)
            track()
        if track.estimate.value <= lip:
            return Run(made, opt, lip, track.estimate.value, monitor.history)
        lip = 1.02 * track.estimate.value
    raise AssertionError("the curvature grew with every smaller step")

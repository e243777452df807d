"""At 0.9 of the safe bound: F never grows, and the run ends in a critical point of the loss."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from theory_problems import CASES, problem, settled_run, step

from dessilbi import DessiLBI
from dessilbi.theory import LyapunovMonitor, max_lr


@pytest.mark.parametrize(("activation", "penalty", "kappa"), CASES)
def test_a_thousand_steps_obey_the_theorem(activation: str, penalty: str, kappa: float) -> None:
    run = settled_run(activation, penalty, kappa, nu=2.0, lambd=0.05, steps=1000)
    history = run.history
    check = history.check(run.lip)
    assert len(history) == 1000
    assert 0.9 * run.lip < run.met <= run.lip
    assert run.opt.param_groups[0]["lr"] < max_lr(run.met, 2.0).safe

    # F never grows: 1e-14 is rounding, at the end of the runs, where F stands still.
    assert check.increases == 0
    assert (np.diff(history.F) <= 1e-14).all()
    assert (np.diff(history.F)[:200] < 0).all()
    np.testing.assert_allclose(history.F_before[1:], history.F[:-1], rtol=1e-14)
    # It falls at least as fast as the lemma says, and the other bounds hold as well.
    assert check.rho > 0
    assert check.short_descents == check.large_subgradients == check.average_above == 0
    assert check.holds
    # Something was tested: the twin entered, and bounds are not empty.
    assert 0 < run.opt.density() <= 1
    assert (history.descent_bound(run.lip)[:100] > 0).all()

    # grad Lbar -> 0, W - Gamma -> 0, and W -> a critical point of L itself.
    assert history.grad[-1] < 1e-6 * history.grad[0]
    assert history.gap[-1] < 1e-6
    assert history.grad_loss[-1] < 1e-6
    assert run.made.full_gradient() == pytest.approx(history.grad_loss[-1], rel=1e-6, abs=1e-14)


def test_below_the_sharp_bound_it_still_descends() -> None:
    """The sharp bound lies above the safe one, and the descent lemma holds up to it."""
    made, nu = problem("tanh"), 0.5
    lip = 1.1 * settled_run("tanh", "lasso", 1.0, nu=nu, lambd=0.05, steps=200).lip
    bounds = max_lr(lip, nu)
    assert bounds.safe < bounds.sharp < bounds.paper
    opt = made.optimizer("lasso", lr=0.999 * bounds.sharp, nu=nu, lambd=0.05)
    track = made.track()
    with LyapunovMonitor(opt, made.loss) as monitor:
        for k in range(200):
            if k % 10 == 0:
                track()
            step(opt, made)
    assert track.estimate.value <= lip
    assert monitor.history.check(lip).increases == 0


def test_any_schedule_below_the_bound_descends() -> None:
    """Each step is judged with its own alpha, so the rate may change from step to step."""
    made, nu = problem("softplus"), 2.0
    lip = 1.05 * settled_run("softplus", "group_lasso", 1.0, nu=nu, lambd=0.05, steps=200).lip
    opt = made.optimizer("group_lasso", lr=0.1, nu=nu, lambd=0.05)
    with LyapunovMonitor(opt, made.loss) as monitor:
        for k in range(200):
            for group in opt.param_groups:
                group["lr"] = (0.9, 0.1, 0.5)[k % 3] * max_lr(lip, nu).safe
            step(opt, made)
    check = monitor.history.check(lip)
    assert len(set(monitor.history.alpha.round(12))) == 3
    assert check.increases == check.short_descents == check.large_subgradients == 0
    assert check.average_above == 0


def test_warming_up_is_a_schedule_too() -> None:
    """F is alpha times the loss, and so grows with alpha between two steps."""
    W = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    opt = DessiLBI([{"params": [W], "penalty": "lasso"}], nu=2.0)
    with LyapunovMonitor(opt, lambda: (W - 1).square().sum() / 2) as monitor:
        for k in range(23):
            opt.param_groups[0]["lr"] = (0.001, 0.01, 0.1)[k] if k < 3 else 0.5
            opt.zero_grad()
            ((W - 1).square().sum() / 2).backward()
            opt.step()
    assert monitor.history.check(lip=1.0).holds, str(monitor.history.check(lip=1.0))

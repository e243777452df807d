"""The monitor as a user meets it: hooks, demand, files, pictures, and what it refuses."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from theory_problems import DECAY, Problem, problem, step
from torch import nn

from dessilbi import DessiLBI, SplitLBI, split_parameters
from dessilbi.theory import LyapunovHistory, LyapunovMonitor, draw

if TYPE_CHECKING:
    from pathlib import Path

    from dessilbi.optim import TwinOptimizer


def watched(made: Problem, opt: TwinOptimizer, steps: int = 20, every: int = 1) -> LyapunovHistory:
    with LyapunovMonitor(opt, made.loss, every=every) as monitor:
        for _ in range(steps):
            step(opt, made)
    return monitor.history


def test_training_is_not_changed() -> None:
    made, plain = problem(), problem()
    opt, alone = (p.optimizer("lasso", lr=0.1, nu=2.0, lambd=0.05) for p in (made, plain))
    watched(made, opt)
    for _ in range(20):
        step(alone, plain)
    for p, q in zip(made.net.parameters(), plain.net.parameters(), strict=True):
        assert torch.equal(p, q)
        assert torch.equal(p.grad, q.grad)


def test_single_steps_are_the_same_on_demand() -> None:
    made, asked = problem(), problem()
    every = watched(made, made.optimizer("lasso", lr=0.1, nu=2.0, lambd=0.05))
    opt = asked.optimizer("lasso", lr=0.1, nu=2.0, lambd=0.05)
    with LyapunovMonitor(opt, asked.loss, every=0) as monitor:
        for k in range(20):
            if k in (7, 12):
                monitor.watch()
            step(opt, asked)
    found = monitor.history
    assert list(found.step) == [8, 13]
    np.testing.assert_allclose(found.F, every.F[[7, 12]], rtol=1e-14)
    np.testing.assert_allclose(found.moved, every.moved[[7, 12]], rtol=1e-12)
    # g_{k-1} is not known then: the series starts anew, where the Bregman distance is zero.
    assert (found.F_before <= every.F_before[[7, 12]]).all()
    assert found.check(lip=3.5).increases == 0


def test_every_nth_step() -> None:
    made = problem()
    found = watched(made, made.optimizer("lasso", lr=0.1, nu=2.0), steps=10, every=4)
    assert list(found.step) == [1, 5, 9]


def test_a_closed_monitor_watches_no_more() -> None:
    made = problem()
    opt = made.optimizer("lasso", lr=0.1, nu=2.0)
    with LyapunovMonitor(opt, made.loss) as monitor:
        step(opt, made)
    step(opt, made)
    assert len(monitor.history) == 1


def test_a_rate_of_zero_is_no_step() -> None:
    made = problem()
    opt = made.optimizer("lasso", lr=0.0, nu=2.0)
    assert len(watched(made, opt, steps=3)) == 0
    with pytest.raises(ValueError, match="no step was recorded"):
        watched(made, opt, steps=1).check(lip=1.0)


def test_other_constants_begin_another_series() -> None:
    """F with another nu is another function; its jump is no ascent."""
    made = problem()
    opt = made.optimizer("lasso", lr=0.05, nu=2.0, lambd=0.01)
    with LyapunovMonitor(opt, made.loss) as monitor:
        for k in range(20):
            if k == 10:
                for group in opt.param_groups:
                    group["nu"] = 0.5
            step(opt, made)
    found = monitor.history
    assert found.F_before[10] > 1.1 * found.F[9]
    assert found.check(lip=4.0).increases == 0


def test_weights_that_are_loaded_begin_another_series() -> None:
    made = problem()
    opt = made.optimizer("lasso", lr=0.1, nu=2.0, lambd=0.05)
    weights = {name: value.clone() for name, value in made.net.state_dict().items()}
    start = opt.state_dict()
    with LyapunovMonitor(opt, made.loss) as monitor:
        for k in range(20):
            if k == 10:
                made.net.load_state_dict(weights)
                opt.load_state_dict(start)
            step(opt, made)
    found = monitor.history
    # What the first ten steps did, the next ten do again.
    np.testing.assert_allclose(found.F[10:], found.F[:10], rtol=1e-12)
    np.testing.assert_allclose(found.moved[10:], found.moved[:10], rtol=1e-9)
    assert found.check(lip=3.5).holds


def test_decoupled_decay_and_a_falling_rate() -> None:
    # The decay that the theorem sees is weight_decay / lr: another loss from then on.
    made = problem()
    params = made.net.parameters()
    opt = DessiLBI(params, nu=2.0, lambd=0.05, weight_decay=0.01, decoupled_weight_decay=True)
    with LyapunovMonitor(opt, made.loss) as monitor:
        for k in range(20):
            opt.param_groups[0]["lr"] = 0.1 if k < 10 else 0.02
            step(opt, made)
    assert monitor.history.check(lip=4.0).increases == 0


def test_momentum_is_outside_the_theorem_and_said_to_be() -> None:
    made = problem()
    found = watched(made, made.optimizer("lasso", lr=0.01, nu=2.0, momentum=0.9))
    check = found.check(lip=4.0)
    assert not check.holds
    assert "outside the theorem: momentum 0.9 (the theorem has none)" in str(check)


def test_a_step_above_the_bound_is_said_to_be() -> None:
    made = problem()
    check = watched(made, made.optimizer("lasso", lr=1.5, nu=0.5)).check(lip=4.0)
    assert check.rho < 0
    assert not check.holds
    assert "the theorem promises nothing" in str(check)
    assert check.increases > 0


def test_single_precision_is_judged_by_its_rounding() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2))
    x, y = torch.randn(20, 5), torch.randn(20, 2)
    made = Problem(net, x, y)
    opt = made.optimizer("lasso", lr=0.2, nu=2.0, lambd=0.05)
    found = watched(made, opt, steps=300)
    assert found.precision == torch.finfo(torch.float32).eps
    assert found.check(lip=made.track()().lip).increases == 0


def test_a_run_without_twin_is_gradient_descent() -> None:
    made = problem()
    opt = DessiLBI(made.net.parameters(), penalty=None, lr=0.1)
    found = watched(made, opt)
    assert (found.gap == 0).all()
    assert np.isinf(found.nu).all()
    np.testing.assert_allclose(found.F, 0.1 * found.loss)
    assert found.check(lip=4.0).holds


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_the_picture(tmp_path: Path, ending: str) -> None:
    pytest.importorskip("matplotlib")
    made = problem()
    found = watched(made, made.optimizer("lasso", lr=0.1, nu=2.0, lambd=0.05))
    file = tmp_path / f"run.{ending}"
    figure = draw(found, lip=3.5, path=file)
    assert len(figure.axes) == 4
    assert file.stat().st_size > 10_000
    assert "F grew in 0 of 20 steps" in figure.get_suptitle()


def test_mistakes_are_named() -> None:
    made = problem()
    opt = made.optimizer("lasso", lr=0.1)
    with pytest.raises(TypeError, match=r"opt must be a DessiLBI optimizer, .* got SGD"):
        LyapunovMonitor(torch.optim.SGD(made.net.parameters()), made.loss)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="every must be >= 0, got -1"):
        LyapunovMonitor(opt, made.loss, every=-1)
    first, second = (list(layer.parameters()) for layer in (made.net[0], made.net[2]))
    split = DessiLBI([{"params": first}, {"params": second, "lr": 0.2}], lr=0.1)
    with pytest.raises(ValueError, match=r"lr must be the same .* got \[0.1, 0.2\]"):
        LyapunovMonitor(split, made.loss)
    split = DessiLBI([{"params": first}, {"params": second, "kappa": 2.0}], lr=0.1)
    with pytest.raises(ValueError, match="kappa must be the same"):
        LyapunovMonitor(split, made.loss)
    with (
        LyapunovMonitor(opt, lambda: made.loss().detach()),
        pytest.raises(ValueError, match="closure must return the loss as a tensor"),
    ):
        step(opt, made)
    with pytest.raises(ValueError, match="lip must be >= 0 and finite, got inf"):
        watched(made, opt, steps=1).check(lip=math.inf)


def test_a_twin_around_sgd_is_watched_as_dessilbi() -> None:
    """The theorem is about steps along the gradient, and there it is the same iteration."""
    options = {"nu": 2.0, "lambd": 0.05}
    one, other = problem(), problem()
    first = watched(one, one.optimizer("lasso", lr=0.1, **options))
    groups = split_parameters(other.net, {"*": {"penalty": "lasso"}})
    sgd = torch.optim.SGD(groups, lr=0.1, weight_decay=DECAY)
    second = watched(other, SplitLBI(sgd, **options))
    for column in ("F", "F_before", "moved", "subgrad", "augmented"):
        np.testing.assert_allclose(getattr(second, column), getattr(first, column), rtol=1e-9)
    assert second.check(lip=3.5).increases == 0
    assert second.outside == ()


def test_a_twin_around_another_base_is_refused() -> None:
    net = nn.Linear(2, 2)
    opt = SplitLBI(torch.optim.AdamW(net.parameters()))
    with pytest.raises(TypeError, match="steps along the gradient; got SplitLBI around AdamW"):
        LyapunovMonitor(opt, lambda: net(torch.ones(1, 2)).sum())

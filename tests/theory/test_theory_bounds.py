"""The bounds on the step, and the words about them."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from theory_problems import problem
from torch.nn.functional import mse_loss

from dessilbi.theory import judge_step, lipschitz, max_lr


@given(lip=st.floats(1e-3, 1e4), nu=st.floats(1e-2, 1e4))
def test_the_bounds_are_ordered_and_the_sharp_one_is_the_hessians(lip: float, nu: float) -> None:
    bounds = max_lr(lip, nu)
    assert bounds.safe == pytest.approx(2 / (lip + 2 / nu))
    assert bounds.paper == pytest.approx(2 / (lip + 1 / nu))
    coupled = np.array([[lip + 1 / nu, -1 / nu], [-1 / nu, 1 / nu]])
    assert bounds.sharp == pytest.approx(2 / np.linalg.eigvalsh(coupled)[-1], rel=1e-6)
    assert bounds.safe <= bounds.sharp * (1 + 1e-12)
    assert bounds.sharp <= bounds.paper * (1 + 1e-12)
    assert bounds.safe < nu  # which the relative-error bound needs, and the paper's does not give


def test_the_ends() -> None:
    assert max_lr(4.0, math.inf).safe == max_lr(4.0, math.inf).paper == 0.5
    assert max_lr(0.0, math.inf).safe == math.inf
    with pytest.raises(ValueError, match="lip must be >= 0, got -1"):
        max_lr(-1, 1.0)
    with pytest.raises(ValueError, match="lip must be >= 0, got nan"):
        max_lr(math.nan, 1.0)
    with pytest.raises(ValueError, match="nu must be > 0, got 0"):
        max_lr(1.0, 0)


def test_a_verdict_claims_what_is_known() -> None:
    made = problem("tanh")
    estimate = lipschitz(made.net, mse_loss, [(made.x, made.y)])
    # With a known value: Lip 1, surely at most 1.5.
    point = replace(estimate.points[0], largest=1.0, smallest=-0.1, upper=1.5)
    estimate = replace(estimate, points=(point,))
    found = {lr: judge_step(lr, 0.2, estimate) for lr in (0.17, 0.18, 0.185, 0.3, 0.4)}
    assert [verdict.status for verdict in found.values()] == [
        "safe", "likely safe", "unproved", "too large", "too large",
    ]  # fmt: skip
    assert "below the safe bound 0.1739, which holds with probability 0.99" in str(found[0.17])
    assert "not below 0.1739, the one sure to 99%" in str(found[0.18])
    assert "although the paper's bound, 0.3333, allows it" in str(found[0.3])
    assert "allows it" not in str(found[0.4])


def test_what_the_theorem_does_not_cover_is_said() -> None:
    made = problem("relu")
    estimate = lipschitz(made.net, mse_loss, [(made.x, made.y)])
    verdict = judge_step(0.01, 1.0, estimate, ("momentum 0.9 (the theorem has none)",))
    assert verdict.status == "safe"
    lines = str(verdict).splitlines()
    assert lines[1] == "outside the theorem: momentum 0.9 (the theorem has none)"
    assert lines[2].startswith("outside the theorem: not smooth: relu (")

"""How large a step may be: the safe bound, the sharp one, and the paper's beside them.

    M = Lip + 2 / nu,   lr = kappa * alpha < 2 / M
    rho  = 1 / kappa - alpha * M / 2          F(Q_k) - F(Q_{k+1}) >= rho ||P_{k+1} - P_k||^2
    rho1 = 2 / kappa + 1 + alpha * M          ||H_{k+1}||         <= rho1 ||P_{k+1} - P_k||

The paper has ``Lip + 1 / nu`` in place of M; ``docs/theory.md`` says why that is too small.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class StepBounds:
    """Upper bounds on ``lr = kappa * alpha``; a step must stay strictly below."""

    safe: float
    """``2 / (Lip + 2/nu)``: F descends. The one to use."""
    sharp: float
    """``4 / (Lip + 2/nu + sqrt(Lip^2 + 4/nu^2))``: F still descends; beyond it a quadratic with
    curvature Lip diverges."""
    paper: float
    """``2 / (Lip + 1/nu)``: the paper's, which is above the sharp one."""


def max_lr(lip: float, nu: float) -> StepBounds:
    """The largest steps for a loss whose gradient has Lipschitz constant ``lip``.

    They bound ``lr = kappa * alpha``, the step of W, so kappa does not appear.

    Args:
        lip: Lipschitz constant of the gradient of L; see :func:`~dessilbi.theory.lipschitz`.
        nu: the coupling; infinite for plain gradient descent.

    Example:
        >>> max_lr(1.0, nu=0.2)
        StepBounds(safe=0.18181818181818182, sharp=0.19002..., paper=0.3333333333333333)
    """
    if not lip >= 0:
        raise ValueError(f"lip must be >= 0, got {lip!r}")
    if not nu > 0:
        raise ValueError(f"nu must be > 0, got {nu!r}")
    return StepBounds(
        safe=_over(2, lip + 2 / nu),
        sharp=_over(4, lip + 2 / nu + math.hypot(lip, 2 / nu)),
        paper=_over(2, lip + 1 / nu),
    )


def _over(top: float, bottom: float) -> float:
    return math.inf if bottom == 0 else top / bottom

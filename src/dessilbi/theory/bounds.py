"""How large a step may be: the safe bound, the sharp one and the paper's, and a verdict.

    M = Lip + 2 / nu,   lr = kappa * alpha < 2 / M
    rho  = 1 / kappa - alpha * M / 2          F(Q_k) - F(Q_{k+1}) >= rho ||P_{k+1} - P_k||^2
    rho1 = 2 / kappa + 1 + alpha * M          ||H_{k+1}||         <= rho1 ||P_{k+1} - P_k||

The paper has ``Lip + 1 / nu`` in place of M; ``docs/theory.md`` says why that is too small.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from .lipschitz import LipschitzEstimate


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


Status = Literal["safe", "likely safe", "unproved", "too large"]


@dataclass(frozen=True)
class StepVerdict:
    """Where a learning rate lies between the bounds."""

    lr: float
    nu: float
    bounds: StepBounds
    """For the curvature that was found."""
    cautious: StepBounds
    """For the curvature that is not exceeded, at the estimate's confidence."""
    confidence: float
    outside: tuple[str, ...]
    """Why the theorem does not apply to this run, whatever the step."""

    @property
    def status(self) -> Status:
        """The step's place among the bounds."""
        if self.lr < self.cautious.safe:
            return "safe"
        if self.lr < self.bounds.safe:
            return "likely safe"
        return "unproved" if self.lr < self.bounds.sharp else "too large"

    def __str__(self) -> str:
        lr, bounds = f"lr {self.lr:.4g}", self.bounds
        said = {
            "safe": f"{lr} is below the safe bound {self.cautious.safe:.4g}, which holds with "
            f"probability {self.confidence:g}",
            "likely safe": f"{lr} is below the safe bound {bounds.safe:.4g} of the curvature that "
            f"was found, not below {self.cautious.safe:.4g}, the one sure to {self.confidence:.0%}",
            "unproved": f"{lr} is above the safe bound {bounds.safe:.4g}, though below the sharp "
            f"one, {bounds.sharp:.4g}",
            "too large": f"{lr} is above the safe bound {bounds.safe:.4g} and the sharp one, "
            f"{bounds.sharp:.4g}: full gradient steps can diverge",
        }[self.status]
        if self.status == "too large" and self.lr < bounds.paper:
            said += f", although the paper's bound, {bounds.paper:.4g}, allows it"
        return "\n".join([said, *(f"outside the theorem: {reason}" for reason in self.outside)])


def judge_step(
    lr: float, nu: float, estimate: LipschitzEstimate, outside: tuple[str, ...] = ()
) -> StepVerdict:
    """Compare a learning rate with the bounds that an estimate gives.

    Args:
        lr: ``kappa * alpha``.
        nu: the coupling.
        estimate: the curvature along the run.
        outside: further reasons why the theorem does not apply; see :func:`~.scope.outside`.
    """
    reasons = list(outside)
    if estimate.nonsmooth:
        parts = ", ".join(estimate.nonsmooth)
        reasons.append(f"not smooth: {parts} (Lip is the curvature between the kinks)")
    return StepVerdict(
        lr=lr,
        nu=nu,
        bounds=max_lr(estimate.value, nu),
        cautious=max_lr(estimate.upper, nu),
        confidence=estimate.confidence,
        outside=tuple(reasons),
    )

"""A step against its bounds, in words that claim no more than is known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from .bounds import StepBounds, max_lr

if TYPE_CHECKING:
    from .lipschitz import LipschitzEstimate

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

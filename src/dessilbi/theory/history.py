"""What a Lyapunov monitor recorded, and whether it is what the theorem promises.

    P_k = (W_k, Gamma_k),   Q_k = (P_k, g_{k-1}),   g = V - Gamma / kappa
    F(Q_k) = alpha * Lbar(P_k) + Omega(Gamma_k) - <g_{k-1}, Gamma_k>

A row is one step, from Q_k to Q_{k+1}.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class LyapunovHistory:
    """One entry a recorded step; the state is that after the step unless said otherwise."""

    step: NDArray[np.int64]
    """Number of the step, from 1."""
    alpha: Array
    kappa: Array
    nu: Array
    """The tightest coupling of any group; infinite without a twin."""
    loss: Array
    """L(W), weight decay included."""
    augmented: Array
    """Lbar(W, Gamma) = L(W) + ||W - Gamma||^2 / (2 nu)."""
    bregman: Array
    """Bregman distance of Gamma from its predecessor."""
    F_before: Array
    """F(Q_k), with this step's alpha."""
    F: Array
    """F(Q_{k+1})."""
    moved: Array
    """||P_{k+1} - P_k||^2."""
    moved_with_g: Array
    """||Q_{k+1} - Q_k||^2; the paper states the descent with this one (docs/theory.md)."""
    grad: Array
    """||grad Lbar||, in W and Gamma together."""
    grad_loss: Array
    """||grad L(W)||."""
    gap: Array
    """||W - Gamma||, over the parameters with a twin."""
    subgrad: Array
    """||H_{k+1}||, the subgradient of F that the relative-error bound is about."""
    precision: float
    """Relative rounding error of the loss."""
    outside: tuple[str, ...] = ()
    """What puts the run outside the theorem."""

    def __len__(self) -> int:
        return len(self.step)

    @property
    def descent(self) -> Array:
        """F(Q_k) - F(Q_{k+1}), both with the step's alpha; negative where F grew."""
        return self.F_before - self.F

    def rho(self, lip: float) -> Array:
        """``1/kappa - alpha (Lip + 2/nu) / 2``."""
        return 1 / self.kappa - self.alpha * (lip + 2 / self.nu) / 2

    def descent_bound(self, lip: float) -> Array:
        """``rho ||P_{k+1} - P_k||^2``: the descent is at least this."""
        return self.rho(lip) * self.moved

    def error_bound(self, lip: float) -> Array:
        """``rho1 ||P_{k+1} - P_k||``: the subgradient is at most this."""
        rho1 = 2 / self.kappa + 1 + self.alpha * (lip + 2 / self.nu)
        return rho1 * np.sqrt(self.moved)

    @property
    def average(self) -> Array:
        """Mean of ``||P_{k+1} - P_k||^2`` over the steps so far."""
        mean: Array = np.cumsum(self.moved) / np.arange(1, len(self) + 1)
        return mean

    def average_bound(self, lip: float) -> Array:
        """``F(Q_0) / (rho K)``: what the mean over K steps stays below, if L >= 0 and rho > 0.

        What F rises by from one recorded step to the next, since alpha grew or the weights were
        loaded anew, can fall once more and is added to F(Q_0).
        """
        rho = self.rho(lip)
        rises = np.maximum(self.F_before[1:] - self.F[:-1], 0)
        above = self.F_before[0] + np.cumsum(np.concatenate([[0.0], rises]))
        with np.errstate(divide="ignore"):
            smallest = np.minimum.accumulate(np.where(rho > 0, rho, 0.0))
            bound: Array = above / (smallest * np.arange(1, len(self) + 1))
        return bound

    def check(self, lip: float) -> LyapunovCheck:
        """Compare every step with what the theorem says for this Lipschitz constant.

        Args:
            lip: largest curvature along the run; see :class:`~dessilbi.theory.LipschitzTrack`.
        """
        if not len(self):
            raise ValueError("no step was recorded; take a step while the monitor is open")
        if not 0 <= lip < math.inf:
            raise ValueError(f"lip must be >= 0 and finite, got {lip!r}")
        finite = np.isfinite(self.F) & np.isfinite(self.moved)
        slack = 64 * self.precision * np.maximum(np.abs(self.F_before), np.abs(self.F))
        grew = ~(self.descent >= -slack) | ~finite
        rho = self.rho(lip)
        short = ~(self.descent >= self.descent_bound(lip) - slack) | ~finite
        # Terms of the size of the gradients cancel in H.
        tiny = 64 * self.precision * (1 + self.alpha) * (self.grad + self.grad_loss)
        far = ~(self.subgrad <= self.error_bound(lip) + tiny) | ~finite
        above = ~(self.average <= self.average_bound(lip) * (1 + 1e-9)) | ~finite
        return LyapunovCheck(
            steps=len(self),
            lip=lip,
            rho=float(rho.min()),
            increases=int(grew.sum()),
            worst_increase=float(np.nanmax(np.where(finite, -self.descent, np.inf))),
            short_descents=int(short.sum()),
            large_subgradients=int(far.sum()),
            average_above=int(above.sum()),
            grad_first=float(self.grad[0]),
            grad_last=float(self.grad[-1]),
            gap_last=float(self.gap[-1]),
            outside=self.outside,
        )


@dataclass(frozen=True)
class LyapunovCheck:
    """How many of the recorded steps did what the theorem says."""

    steps: int
    lip: float
    rho: float
    """The smallest; not positive when the step is above the safe bound."""
    increases: int
    """Steps in which F grew by more than rounding."""
    worst_increase: float
    """Largest growth of F in a step; negative if it always fell."""
    short_descents: int
    """Steps in which F fell by less than rho ||P_{k+1} - P_k||^2."""
    large_subgradients: int
    """Steps in which ||H|| exceeded its bound."""
    average_above: int
    """Steps after which the mean of ||P_{k+1} - P_k||^2 lay above its O(1/K) bound."""
    grad_first: float
    grad_last: float
    gap_last: float
    outside: tuple[str, ...]

    @property
    def holds(self) -> bool:
        """Whether the theorem applies and every step obeyed it."""
        counts = (
            self.increases, self.short_descents, self.large_subgradients, self.average_above
        )  # fmt: skip
        return self.rho > 0 and not self.outside and not any(counts)

    def __str__(self) -> str:
        lines = [
            f"F grew in {self.increases} of {self.steps} steps; ||grad Lbar|| "
            f"{self.grad_first:.3g} -> {self.grad_last:.3g}, ||W - Gamma|| {self.gap_last:.3g} "
            f"(Lip = {self.lip:.4g}, rho = {self.rho:.4g})"
        ]
        if self.rho > 0:
            lines.append(
                f"bounds missed: descent of F {self.short_descents}, subgradient "
                f"{self.large_subgradients}, O(1/K) mean {self.average_above} times"
            )
        else:
            lines.append("lr is not below the safe bound: the theorem promises nothing")
        lines += [f"outside the theorem: {reason}" for reason in self.outside]
        return "\n".join(lines)

"""Both ends of the spectrum of a symmetric matrix that is known by its products with vectors."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Ends:
    """Largest and smallest Ritz value of a Krylov space.

    Both lie inside the spectrum, whatever happens: the largest eigenvalue is at least ``largest``.
    Within ``residual`` of each there is an eigenvalue.
    """

    largest: float
    smallest: float
    largest_residual: float
    smallest_residual: float
    iterations: int
    exact: bool
    """The Krylov space is invariant: up to rounding nothing is left to find."""

    @property
    def lip(self) -> float:
        """Largest absolute value of the two."""
        return max(abs(self.largest), abs(self.smallest))

    @property
    def residual(self) -> float:
        """Of the end that gives :attr:`lip`."""
        upper = abs(self.largest) >= abs(self.smallest)
        return self.largest_residual if upper else self.smallest_residual


def lanczos(
    product: Callable[[Tensor], Tensor],
    start: Tensor,
    *,
    max_iter: int,
    enough: Callable[[Ends], bool],
) -> Ends:
    """Lanczos iteration with full re-orthogonalisation.

    Holds one vector an iteration.

    Args:
        product: ``v -> A v`` for a symmetric A.
        start: a vector; its direction must be random for :func:`upper_bound` to mean something.
        max_iter: most products.
        enough: whether to stop before that.
    """
    n = start.numel()
    steps = min(max_iter, n)
    basis = torch.empty(steps, n, dtype=start.dtype, device=start.device)
    q = start / start.norm()
    diagonal: list[float] = []
    beside: list[float] = []
    for k in range(steps):
        basis[k] = q
        w = product(q)
        diagonal.append(float(q @ w))
        if not math.isfinite(diagonal[-1]):
            raise ValueError(
                "the second derivatives of the loss are not finite here; the weights or the data "
                "are out of range"
            )
        done = basis[: k + 1]
        for _ in range(2):  # the second pass removes what rounding left of the first
            w = w - done.T @ (done @ w)
        beta = float(w.norm())
        ends = _ends(diagonal, beside, beta)
        scale = max(ends.lip, beta)
        if k + 1 == n or beta <= 8 * torch.finfo(start.dtype).eps * scale:
            return _ends(diagonal, beside, 0.0, exact=True)
        if enough(ends):
            return ends
        beside.append(beta)
        q = w / beta
    return ends


def _ends(diagonal: list[float], beside: list[float], beta: float, *, exact: bool = False) -> Ends:
    T = torch.diag(torch.tensor(diagonal, dtype=torch.float64))
    if beside:
        off = torch.tensor(beside, dtype=torch.float64)
        T = T + torch.diag(off, 1) + torch.diag(off, -1)
    theta, s = torch.linalg.eigh(T)
    last = s[-1].abs() * beta  # ||A y - theta y|| for each Ritz pair
    return Ends(
        largest=float(theta[-1]),
        smallest=float(theta[0]),
        largest_residual=float(last[-1]),
        smallest_residual=float(last[0]),
        iterations=len(diagonal),
        exact=exact,
    )


def upper_bound(ends: Ends, n: int, failure: float) -> float:
    r"""A number that all eigenvalues stay below in absolute value, but for a small probability.

    Let :math:`s` be the width of the spectrum. With a start uniform on the sphere, k steps miss an
    end by more than :math:`\varepsilon s` only if the start's component b along that end's
    eigenvector obeys :math:`|b| \le 1 / \sinh((2k-1)\,\mathrm{artanh}\sqrt\varepsilon)`, which has
    probability at most :math:`\sqrt{2n/\pi}` times the right-hand side (``docs/theory.md`` has the
    proof; Kuczynski and Wozniakowski, 1992, for the idea). Half of ``failure`` goes to each end.

    Args:
        ends: what :func:`lanczos` found.
        n: size of the matrix.
        failure: probability that the bound is wrong, over the random start.
    """
    if ends.exact:
        return ends.lip
    rare = math.sqrt(2 * n / math.pi) / (failure / 2)
    missed = math.tanh(math.asinh(rare) / (2 * ends.iterations - 1)) ** 2
    if missed >= 0.5:
        return math.inf
    return ends.lip + missed / (1 - 2 * missed) * (ends.largest - ends.smallest)

"""Sparsity penalties Omega: value, proximal map and support, for one tensor.

The proximal map is the paper's Prox: ``argmin_G 1/2 ||G - V||^2 + Omega(G)``. Each penalty owns
its threshold ``lambd``: a number, or a tensor with one threshold a group.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

import torch

from ._norms import group_norms

if TYPE_CHECKING:
    from torch import Tensor

PenaltyKind = Literal["lasso", "group_lasso"]
LambdScale = Literal["size", "init"]


@dataclass(frozen=True)
class Lasso:
    """``Omega(G) = lambd * sum |G_i|``: every element is a group of its own."""

    lambd: float | Tensor

    def value(self, G: Tensor) -> Tensor:
        """Omega(G)."""
        return (self.lambd * G.abs()).sum()

    def prox(self, V: Tensor) -> Tensor:
        """Soft thresholding at lambd: V minus its projection on the box, exactly 0 inside."""
        bound: Any = self.lambd
        return V - V.clamp(-bound, bound)

    def gap(self, W: Tensor, V: Tensor, kappa: float) -> Tensor:
        """``W - Gamma`` with ``Gamma = kappa * prox(V)``."""
        return torch.sub(W, self.prox(V), alpha=kappa)

    def support(self, V: Tensor) -> Tensor:
        """Boolean mask, shaped as V, of where prox(V) is not zero."""
        return V.abs() > self.lambd

    def active(self, V: Tensor) -> Tensor:
        """Support by group; here a group is an element."""
        return self.support(V)


@dataclass(frozen=True)
class GroupLasso:
    """``Omega(G) = sum_g lambd_g ||G_g||_2`` over the slices of G along dimension ``dim``."""

    lambd: float | Tensor
    dim: int = 0

    def value(self, G: Tensor) -> Tensor:
        """Omega(G)."""
        return (self.lambd * group_norms(G, self.dim)).sum()

    def shrinkage(self, V: Tensor) -> Tensor:
        """``max(0, 1 - lambd / ||V_g||)``, kept broadcastable against V; 0 where V_g = 0."""
        norms = group_norms(V, self.dim)
        if isinstance(self.lambd, torch.Tensor) or self.lambd == 0:  # 0 / 0 is possible
            return torch.where(norms > self.lambd, 1 - self.lambd / norms, 0)
        return (1 - self.lambd / norms).relu()  # one small kernel less; lambd / 0 is infinite

    def prox(self, V: Tensor) -> Tensor:
        """``max(0, 1 - lambd / ||V_g||) V_g`` for each group."""
        return self.shrinkage(V) * V

    def gap(self, W: Tensor, V: Tensor, kappa: float) -> Tensor:
        """``W - Gamma`` with ``Gamma = kappa * prox(V)``, in one pass over W and V."""
        return torch.addcmul(W, self.shrinkage(V), V, value=-kappa)

    def support(self, V: Tensor) -> Tensor:
        """Boolean mask, shaped as V: whole groups are in or out."""
        return (group_norms(V, self.dim) > self.lambd).expand_as(V)

    def active(self, V: Tensor) -> Tensor:
        """Support by group: a boolean vector, one entry a slice along ``dim``."""
        return (group_norms(V, self.dim) > self.lambd).flatten()


Penalty = Lasso | GroupLasso


def resolve_penalty(penalty: str | None, ndim: int) -> PenaltyKind | None:
    """The penalty of a tensor with ``ndim`` dimensions: ``"auto"`` is the paper's choice.

    Convolutions by filter, matrices by element, nothing for vectors and scalars.
    """
    if penalty == "auto":
        return None if ndim < 2 else "lasso" if ndim == 2 else "group_lasso"
    if penalty in (None, "lasso", "group_lasso"):
        return cast("PenaltyKind | None", penalty)
    raise ValueError(f"penalty must be 'auto', 'lasso', 'group_lasso' or None, got {penalty!r}")


def make_penalty(
    kind: PenaltyKind, shape: torch.Size, group_dim: int, lambd: float, scale: float | Tensor | None
) -> Penalty:
    """The penalty of one tensor, its threshold ``lambd`` times ``scale`` (``None``: times 1)."""
    threshold = lambd if scale is None else lambd * scale
    return Lasso(threshold) if kind == "lasso" else GroupLasso(threshold, group_dim % len(shape))


def size_scale(kind: PenaltyKind, shape: torch.Size, group_dim: int) -> float:
    """``sqrt(group size)``: the threshold that treats groups of different sizes alike."""
    if kind == "lasso":
        return 1.0
    groups = max(shape[group_dim], 1)
    return float((shape.numel() / groups) ** 0.5)


def init_scale(kind: PenaltyKind, W0: Tensor, group_dim: int) -> Tensor:
    """``||W_0,g||`` for each group: thresholds relative to where the weights started.

    For the elementwise penalty one number a tensor, the root mean square of ``W_0``: a threshold an
    element would double the state, and the few near-zero initial weights would enter at once. A
    group that starts at exactly zero takes the root mean square of the tensor's group norms.
    """
    W0 = W0.detach()
    if kind == "lasso":
        return W0.square().mean().sqrt()
    norms = group_norms(W0, group_dim)
    typical = norms.square().mean().sqrt()
    return torch.where(norms > 0, norms, typical)

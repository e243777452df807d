"""Sparsity penalties Omega: value, proximal map and support, for one tensor.

The proximal map is the paper's Prox: ``argmin_G 1/2 ||G - V||^2 + Omega(G)``. Each penalty owns
its threshold ``lambd``: a number, or a tensor with one threshold a group.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, cast

import torch

from ._norms import group_norms

if TYPE_CHECKING:
    from collections.abc import Sequence

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

    def norms(self, V: Tensor) -> Tensor:
        """What is compared with lambd: ``||V_g||`` for each group, broadcastable against V."""
        return group_norms(V, self.dim)

    def shrinkage(self, V: Tensor) -> Tensor:
        """``max(0, 1 - lambd / ||V_g||)``, kept broadcastable against V; 0 where V_g = 0."""
        norms = self.norms(V)
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
        return (self.norms(V) > self.lambd).expand_as(V)

    def active(self, V: Tensor) -> Tensor:
        """Support by group: a boolean vector, one entry a slice along ``dim``."""
        return (self.norms(V) > self.lambd).flatten()


@dataclass(frozen=True)
class TiedGroupLasso(GroupLasso):
    """The group Lasso on one of several tensors whose slices of equal number are one group.

    ``||V_g||`` runs over all of them and is not a function of one: it is taken of their V at one
    moment, once for all, so that no rounding lets a group enter in one tensor and not in the other.
    """

    joint: Tensor = field(kw_only=True)
    """``||V_g||`` over all tensors, one number a group."""
    own: Tensor = field(kw_only=True)
    """``||V_g||`` over this one."""

    def norms(self, V: Tensor) -> Tensor:
        """The joint norms, whatever V."""
        return along(self.joint, V.ndim, self.dim)

    def value(self, G: Tensor) -> Tensor:
        """This tensor's part of ``sum_g lambd_g ||G_g||``, where G_g is a multiple of V_g.

        Gamma is. The parts of all tensors add up to Omega.
        """
        part = torch.where(self.joint > 0, self.own / self.joint, 0)
        return (self.lambd * along(part, G.ndim, self.dim) * group_norms(G, self.dim)).sum()


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


def tie(
    penalties: Sequence[GroupLasso], duals: Sequence[Tensor], others: Sequence[Tensor], dim: int
) -> list[TiedGroupLasso]:
    """The penalties of tensors whose slices of equal number are one group, at their V of now.

    Args:
        penalties: of the tensors, as if each stood alone.
        duals: their V.
        others: V of those that are part of the norms only.
        dim: whose slices are the groups, of all tensors.
    """
    owns = [group_norms(V, dim).flatten() for V in duals]
    joint = joint_norms([*owns, *(group_norms(V, dim).flatten() for V in others)])
    return [
        TiedGroupLasso(penalty.lambd, penalty.dim, joint=joint, own=own)
        for penalty, own in zip(penalties, owns, strict=True)
    ]


def joint_norms(norms: Sequence[Tensor]) -> Tensor:
    """The norms of what is put together from parts, given the norms of the parts."""
    joint, *rest = norms
    for part in rest:
        joint = torch.hypot(joint, part)  # exact for a part that is zero
    return joint


def along(x: Tensor, ndim: int, dim: int) -> Tensor:
    """A vector laid along dimension ``dim`` of ``ndim``."""
    return x.view([-1 if d == dim % ndim else 1 for d in range(ndim)])


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
    return _never_zero(group_norms(W0, group_dim))


def scale_shape(kind: PenaltyKind, shape: torch.Size, group_dim: int) -> tuple[int, ...]:
    """The shape of what :func:`init_scale` returns."""
    if kind == "lasso":
        return ()
    return tuple(n if d == group_dim % len(shape) else 1 for d, n in enumerate(shape))


def joint_init_scale(W0: Sequence[Tensor], group_dim: int) -> Tensor:
    """The same for tied tensors: the joint initial norms, one number a group."""
    return _never_zero(joint_norms([group_norms(W.detach(), group_dim).flatten() for W in W0]))


def _never_zero(norms: Tensor) -> Tensor:
    typical = norms.square().mean().sqrt()
    return torch.where(norms > 0, norms, typical)

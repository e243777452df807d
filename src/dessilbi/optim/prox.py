"""Sparsity penalties Omega: value, proximal map and support, for one tensor.

The proximal map is the paper's Prox: ``argmin_G 1/2 ||G - V||^2 + Omega(G)``. The Lasso and the
group Lasso own a threshold ``lambd``: a number, or a tensor with one threshold a group. Any other
object with ``value``, ``prox`` and ``support`` is a penalty as well.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast, runtime_checkable

import torch

from ._norms import group_norms

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

PenaltyKind = Literal["lasso", "group_lasso"]
LambdScale = Literal["size", "init"]


@runtime_checkable
class Penalty(Protocol):
    """A sparsity penalty Omega on one tensor."""

    def value(self, G: Tensor) -> Tensor:
        """Omega(G)."""

    def prox(self, V: Tensor) -> Tensor:
        """``argmin_G 1/2 ||G - V||^2 + Omega(G)``, exactly 0 outside of the support."""

    def support(self, V: Tensor) -> Tensor:
        """Boolean mask, shaped as V, of where prox(V) is not zero."""


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


def gap(penalty: Penalty, W: Tensor, V: Tensor, kappa: float) -> Tensor:
    """``W - Gamma`` with ``Gamma = kappa * prox(V)``."""
    in_one_pass = getattr(penalty, "gap", None)
    if in_one_pass is None:
        return torch.sub(W, penalty.prox(V), alpha=kappa)
    return cast("Tensor", in_one_pass(W, V, kappa))


def active(penalty: Penalty, V: Tensor) -> Tensor:
    """The support by group; of a penalty of the user's own by element."""
    if isinstance(penalty, Lasso | GroupLasso):
        return penalty.active(V)
    return penalty.support(V)


def resolve_penalty(
    penalty: str | Penalty | None, ndim: int
) -> Literal["lasso", "group_lasso"] | Penalty | None:
    """The penalty of a tensor with ``ndim`` dimensions: ``"auto"`` is the paper's choice.

    Convolutions by filter, matrices by element, nothing for vectors and scalars.
    """
    if penalty == "auto":
        return None if ndim < 2 else "lasso" if ndim == 2 else "group_lasso"
    if penalty in (None, "lasso", "group_lasso"):
        return cast("PenaltyKind | None", penalty)
    if isinstance(penalty, Penalty) and not isinstance(penalty, type):
        return penalty
    raise ValueError(
        "penalty must be 'auto', 'lasso', 'group_lasso', None or an object with value, prox and "
        f"support, got {penalty!r}"
    )


def dim_of(p: Tensor, group: Mapping[str, Any]) -> int:
    """The dimension whose slices are p's groups, by the options of its parameter group."""
    dim: int | tuple[int, ...] | list[int] = group["group_dim"]
    if not isinstance(dim, tuple | list):
        return dim
    return next(d for q, d in zip(group["params"], dim, strict=True) if q is p)


def dims_of(group: Mapping[str, Any]) -> list[int]:
    """The same for each parameter of a group."""
    dim = group.get("group_dim", 0)
    return list(dim) if isinstance(dim, tuple | list) else [dim] * len(group["params"])


def make_penalty(
    kind: PenaltyKind | Penalty,
    shape: torch.Size,
    group_dim: int,
    lambd: float,
    scale: float | Tensor | None,
) -> Penalty:
    """The penalty of one tensor, its threshold ``lambd`` times ``scale`` (``None``: times 1).

    A penalty that is an object has its thresholds already.
    """
    if not isinstance(kind, str):
        return kind
    threshold = lambd if scale is None else lambd * scale
    return Lasso(threshold) if kind == "lasso" else GroupLasso(threshold, group_dim % len(shape))


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
    return never_zero(group_norms(W0, group_dim))


def scale_shape(kind: PenaltyKind, shape: torch.Size, group_dim: int) -> tuple[int, ...]:
    """The shape of what :func:`init_scale` returns."""
    if kind == "lasso":
        return ()
    return tuple(n if d == group_dim % len(shape) else 1 for d, n in enumerate(shape))


def never_zero(norms: Tensor) -> Tensor:
    """Norms, the root mean square of all in place of those that are zero."""
    typical = norms.square().mean().sqrt()
    return torch.where(norms > 0, norms, typical)

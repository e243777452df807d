"""Sharded parameters (FSDP2, tensor parallel): each rank steps its own shard.

The arithmetic is elementwise but for the norm of a group. Where every group lies whole on one rank
the local tensors are stepped like any others. Where groups are spread over ranks, or tied, the gap
between W and Gamma is taken of the DTensors themselves, whose norms are reduced over the ranks.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import torch

from ._norms import group_norms
from ._step import Item, Twin
from .prox import GroupLasso, Lasso, TiedGroupLasso, gap, joint_norms

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


def is_dtensor(t: object) -> bool:
    """Whether t is a DTensor, without importing torch.distributed for those who do not use it."""
    return hasattr(t, "to_local") and hasattr(t, "placements")


def count(mask: Tensor) -> int:
    """Number of True entries of a mask, over all ranks."""
    total: Any = mask.sum()
    return int(total.full_tensor() if is_dtensor(total) else total)


def settled(t: Tensor) -> Tensor:
    """The tensor with pending sums over ranks carried out."""
    if not is_dtensor(t):
        return t
    from torch.distributed.tensor import Replicate

    d = cast("Any", t)
    done = [Replicate() if p.is_partial() else p for p in d.placements]
    return cast("Tensor", d.redistribute(placements=done))


def full(t: Tensor) -> Tensor:
    """The whole tensor, on every rank."""
    return cast("Tensor", cast("Any", t).full_tensor()) if is_dtensor(t) else t


def beside(t: Tensor, p: Tensor) -> Tensor:
    """A tensor that every rank has, as one that can be computed with p."""
    if not is_dtensor(p):
        return t
    from torch.distributed.tensor import DTensor, Replicate

    mesh = cast("Any", p).device_mesh
    return DTensor.from_local(t, mesh, [Replicate()] * mesh.ndim)


def slice_norms(x: Tensor, dim: int) -> Tensor:
    """Norms of the slices along a dimension, as a vector that every rank has."""
    return full(group_norms(x, dim)).flatten()


def tie(
    penalties: Sequence[GroupLasso],
    duals: Sequence[Tensor],
    others: Sequence[Tensor] = (),
) -> list[TiedGroupLasso]:
    """The penalties of tensors whose slices of equal number are one group, at their V of now.

    Args:
        penalties: of the tensors, as if each stood alone.
        duals: their V.
        others: V of those that are part of the norms only, the dimension of the groups first.
    """
    owns = [slice_norms(V, one.dim) for one, V in zip(penalties, duals, strict=True)]
    joint = joint_norms([*owns, *(slice_norms(V, 0) for V in others)])
    return [
        TiedGroupLasso(one.lambd, one.dim, joint=beside(joint, V), own=beside(own, V))
        for one, V, own in zip(penalties, duals, owns, strict=True)
    ]


def localize(items: list[Item], kappa: float) -> list[Item]:
    """Items on local tensors, which a rank steps alone."""
    return [_localized(item, kappa) if is_dtensor(item.W) else item for item in items]


def _localized(item: Item, kappa: float) -> Item:
    W, grad = item.W, cast("Any", item.grad)
    if any(p.is_partial() for p in cast("Any", W).placements):
        raise RuntimeError(
            f"a parameter with Partial placement {cast('Any', W).placements} cannot be stepped; "
            "redistribute it to Shard or Replicate"
        )
    if grad is not None and tuple(grad.placements) != tuple(cast("Any", W).placements):
        grad = grad.redistribute(placements=cast("Any", W).placements)
    return Item(
        local(W),
        None if grad is None else local(grad),
        None if item.twin is None else _local_twin(W, item.twin, kappa),
        None if item.buffer is None else local(item.buffer),
        None if item.update_mask is None else local(item.update_mask),
    )


def _local_twin(W: Tensor, twin: Twin, kappa: float) -> Twin:
    V, penalty, _ = twin
    placements = cast("Any", W).placements
    if isinstance(penalty, Lasso) or (
        type(penalty) is GroupLasso
        and all(p.is_replicate() or p.is_shard(penalty.dim) for p in placements)
    ):
        if isinstance(penalty.lambd, torch.Tensor):
            penalty = replace(penalty, lambd=local(penalty.lambd))
        return Twin(local(V), penalty)
    found: Any = gap(penalty, W, V, kappa)
    # torch may replicate the gap (a shard of size 1): bring it home.
    return Twin(local(V), penalty, local(found.redistribute(placements=placements)))


def local(t: Tensor) -> Tensor:
    """This rank's part of a tensor."""
    return cast("Tensor", cast("Any", t).to_local()) if is_dtensor(t) else t

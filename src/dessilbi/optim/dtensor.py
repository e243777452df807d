"""Sharded parameters (FSDP2, tensor parallel): each rank steps its own shard.

The arithmetic is elementwise but for the norm of a group. Where every group lies whole on one rank
the local tensors are stepped like any others. Where groups are spread over ranks the loop runs on
the DTensors themselves, whose norm is reduced over the ranks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import torch

from ._step import Item, Twin
from .prox import GroupLasso

if TYPE_CHECKING:
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


def localize(items: list[Item]) -> tuple[list[Item], list[Item]]:
    """Items on local tensors that a rank can step alone, and those whose groups are spread."""
    local, spread = [], []
    for item in items:
        if not is_dtensor(item.W):
            local.append(item)
            continue
        W, grad = cast("Any", item.W), cast("Any", item.grad)
        if any(p.is_partial() for p in W.placements):
            raise RuntimeError(
                f"DessiLBI cannot step a parameter with Partial placement {W.placements}; "
                "redistribute it to Shard or Replicate"
            )
        if tuple(grad.placements) != tuple(W.placements):
            item = item._replace(grad=grad.redistribute(placements=W.placements))
        if _groups_are_local(W.placements, item.twin):
            local.append(_local_item(item))
        else:
            spread.append(_spread_item(item))
    return local, spread


def _groups_are_local(placements: Any, twin: Twin | None) -> bool:
    if twin is None or not isinstance(twin.penalty, GroupLasso):
        return True
    dim = twin.penalty.dim
    return all(p.is_replicate() or p.is_shard(dim) for p in placements)


@dataclass(frozen=True)
class _SpreadGroupLasso(GroupLasso):
    """Groups spread over ranks. torch may replicate the gap (a shard of size 1): bring it home."""

    def gap(self, W: Tensor, V: Tensor, kappa: float) -> Tensor:
        gap: Any = super().gap(W, V, kappa)
        return cast("Tensor", gap.redistribute(placements=cast("Any", W).placements))


def _spread_item(item: Item) -> Item:
    assert item.twin is not None
    assert isinstance(item.twin.penalty, GroupLasso)
    lambd, dim = item.twin.penalty.lambd, item.twin.penalty.dim
    return item._replace(twin=Twin(item.twin.V, _SpreadGroupLasso(lambd, dim)))


def _local_item(item: Item) -> Item:
    twin = item.twin
    if twin is not None:
        penalty = twin.penalty
        if isinstance(penalty.lambd, torch.Tensor):
            penalty = replace(penalty, lambd=_local(penalty.lambd))
        twin = Twin(_local(twin.V), penalty)
    buffer = None if item.buffer is None else _local(item.buffer)
    update_mask = None if item.update_mask is None else _local(item.update_mask)
    return Item(_local(item.W), _local(item.grad), twin, buffer, update_mask)


def _local(t: Tensor) -> Tensor:
    return cast("Tensor", cast("Any", t).to_local()) if is_dtensor(t) else t

"""One step of a parameter group: its twins, and the implementation that its options choose."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, cast

import torch

from . import dtensor
from ._step import Item, Options, Twin, multi_tensor, single_tensor
from .prox import GroupLasso, Penalty, make_penalty, resolve_penalty, size_scale, tie

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor


def step_group(
    group: dict[str, Any],
    params: list[Tensor],
    grads: list[Tensor],
    vs: list[Tensor | None],
    buffers: list[Tensor | None],
    scales: list[Tensor | None],
    frozen_duals: list[Tensor],
    update_masks: Mapping[Tensor, Tensor],
) -> None:
    """Choose the implementation for one group and run it.

    Args:
        group: its options.
        params: what is stepped, and in the same order:
        grads: gradients,
        vs: V where there is a twin,
        buffers: momentum buffers where there is momentum,
        scales: thresholds' factors where they are kept.
        frozen_duals: V of tied parameters that are not stepped but count in the norms.
        update_masks: where the loss may move a parameter, if not everywhere.
    """
    twins = [_twin(p, v, scale, group) for p, v, scale in zip(params, vs, scales, strict=True)]
    if group["tied"]:
        twins = _tied(cast("list[Twin]", twins), frozen_duals, group["group_dim"])
    items = [
        Item(p, grad, twin, buffer, update_masks.get(p) if update_masks else None)
        for p, grad, twin, buffer in zip(params, grads, twins, buffers, strict=True)
    ]
    numbers = {name: group[name] for name in Options.__dataclass_fields__}
    options = Options(**numbers | {"lr": _scalar(group["lr"])})
    if any(dtensor.is_dtensor(p) for p in params):
        items, spread = dtensor.localize(items)
        single_tensor(spread, options)
    if group["fused"] and not torch.compiler.is_compiling():
        from ._fused import fused

        fused(items, options)
    elif group["foreach"] or (group["foreach"] is None and _all_on_gpu(items)):
        multi_tensor(items, options)
    else:
        single_tensor(items, options)


def _twin(p: Tensor, v: Tensor | None, scale: Tensor | None, group: dict[str, Any]) -> Twin | None:
    penalty = None if v is None else penalty_of(p, group, scale)
    return None if v is None or penalty is None else Twin(v, penalty)


def _tied(twins: list[Twin], frozen_duals: list[Tensor], dim: int) -> list[Twin | None]:
    """The twins of a tied group, their norms taken before any of them is stepped."""
    if not twins:
        return []
    alone = [cast("GroupLasso", twin.penalty) for twin in twins]
    duals = [twin.V for twin in twins]
    return list(map(Twin, duals, tie(alone, duals, frozen_duals, dim)))


def penalty_of(p: Tensor, group: dict[str, Any], scale: Tensor | None) -> Penalty | None:
    """The penalty that a parameter group's options give p; ``None`` if it has no twin."""
    kind = resolve_penalty(group["penalty"], p.ndim)
    if kind is None:
        return None
    factor: float | Tensor | None = None
    if group["lambd_scale"] == "size":
        together = group["params"] if group["tied"] else [p]
        factor = math.hypot(*(size_scale(kind, q.shape, group["group_dim"]) for q in together))
    elif group["lambd_scale"] == "init":
        factor = scale
    return make_penalty(kind, p.shape, group["group_dim"], group["lambd"], factor)


def _scalar(lr: float | Tensor) -> float | Tensor:
    if isinstance(lr, torch.Tensor):
        return lr.squeeze().double() if torch.compiler.is_compiling() else float(lr)
    return lr


def _all_on_gpu(items: list[Item]) -> bool:
    return bool(items) and all(item.W.device.type in {"cuda", "xpu"} for item in items)

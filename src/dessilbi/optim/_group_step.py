"""One step of a parameter group: its twins, and the implementation that its options choose."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, cast

import torch

from . import dtensor
from ._step import Item, Options, Twin, multi_tensor, single_tensor
from .prox import GroupLasso, Penalty, dim_of, make_penalty, resolve_penalty, size_scale

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
        frozen_duals: V of tied parameters that are not stepped but count in the norms, the
            dimension of their groups first.
        update_masks: where the loss may move a parameter, if not everywhere.
    """
    twins = twins_of(group, params, vs, scales, frozen_duals)
    items = [
        Item(p, grad, twin, buffer, update_masks.get(p) if update_masks else None)
        for p, grad, twin, buffer in zip(params, grads, twins, buffers, strict=True)
    ]
    numbers = {name: group[name] for name in Options.__dataclass_fields__}
    options = Options(**numbers | {"lr": scalar(group["lr"])})
    items = dtensor.localize(items, options.kappa)
    if group["fused"] and not torch.compiler.is_compiling():
        from ._fused import fused

        fused(items, options)
    elif group["foreach"] or (group["foreach"] is None and _all_on_gpu(items)):
        multi_tensor(items, options)
    else:
        single_tensor(items, options)


def twins_of(
    group: dict[str, Any],
    params: list[Tensor],
    vs: list[Tensor | None],
    scales: list[Tensor | None],
    frozen_duals: list[Tensor],
) -> list[Twin | None]:
    """The twins of a parameter group, at their V of now; see :func:`step_group`."""
    twins = [_twin(p, v, scale, group) for p, v, scale in zip(params, vs, scales, strict=True)]
    if not group["tied"] or not twins:
        return twins
    # The norms are taken before any of them is stepped.
    known = cast("list[Twin]", twins)
    penalties = [cast("GroupLasso", twin.penalty) for twin in known]
    duals = [twin.V for twin in known]
    return list(map(Twin, duals, dtensor.tie(penalties, duals, frozen_duals)))


def _twin(p: Tensor, v: Tensor | None, scale: Tensor | None, group: dict[str, Any]) -> Twin | None:
    penalty = None if v is None else penalty_of(p, group, scale)
    return None if v is None or penalty is None else Twin(v, penalty)


def penalty_of(p: Tensor, group: dict[str, Any], scale: Tensor | None) -> Penalty | None:
    """The penalty that a parameter group's options give p; ``None`` if it has no twin."""
    kind = resolve_penalty(group["penalty"], p.ndim)
    if kind is None:
        return None
    factor: float | Tensor | None = None
    if group["lambd_scale"] == "size" and isinstance(kind, str):
        together = group["params"] if group["tied"] else [p]
        factor = math.hypot(*(size_scale(kind, q.shape, dim_of(q, group)) for q in together))
    elif group["lambd_scale"] == "init":
        factor = scale
    return make_penalty(kind, p.shape, dim_of(p, group), group["lambd"], factor)


def scalar(lr: float | Tensor) -> float | Tensor:
    """A rate as a number, or as a tensor without dimensions while torch.compile traces."""
    if isinstance(lr, torch.Tensor):
        return lr.squeeze().double() if torch.compiler.is_compiling() else float(lr)
    return lr


def _all_on_gpu(items: list[Item]) -> bool:
    return bool(items) and all(item.W.device.type in {"cuda", "xpu"} for item in items)

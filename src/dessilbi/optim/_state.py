"""The state of a parameter: how it begins, whether it fits, and how it comes from a checkpoint.

V and the momentum buffer are shaped as the parameter; ``lambd_scale="init"`` keeps one number a
group beside them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from . import dtensor
from .prox import (
    along,
    dim_of,
    init_scale,
    joint_norms,
    never_zero,
    resolve_penalty,
    scale_shape,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

    State = Mapping[Tensor, dict[str, Any]]
    Name = Callable[[Tensor], str]

TWIN_KEYS = ("v", "lambd_scale")
KEYS = (*TWIN_KEYS, "momentum_buffer")
_SHAPED = ("gradient", "update mask", "v", "momentum_buffer")


def dual_dtype(p: Tensor) -> torch.dtype:
    """V sums many small steps: float32 at least."""
    return torch.promote_types(p.dtype, torch.float32)


def new_v(p: Tensor) -> Tensor:
    """V before the first step."""
    return torch.zeros_like(p, dtype=dual_dtype(p), requires_grad=False)


@torch.no_grad()
def new_scale(p: Tensor, group: dict[str, Any], state: State) -> Tensor:
    """What ``lambd`` is multiplied by under ``lambd_scale="init"``."""
    if group["tied"]:
        # Others may have begun before p had its first gradient: one threshold for all.
        begun = (state[q].get("lambd_scale") for q in group["params"] if q in state)
        known = next((dtensor.full(scale).flatten() for scale in begun if scale is not None), None)
        if known is None:
            duals = ((q.to(dual_dtype(q)), dim_of(q, group)) for q in group["params"])
            known = never_zero(joint_norms([dtensor.slice_norms(q, dim) for q, dim in duals]))
        return dtensor.beside(along(known, p.ndim, dim_of(p, group)).clone(), p)
    kind = resolve_penalty(group["penalty"], p.ndim)
    assert isinstance(kind, str)
    return dtensor.settled(init_scale(kind, p.to(dual_dtype(p)), dim_of(p, group)))


def init_state(
    p: Tensor, group: dict[str, Any], state: State, dtype: torch.dtype | None = None
) -> None:
    """Make what the twin of a parameter lacks; its entry must be there.

    Args:
        p: the parameter.
        group: its options.
        state: of all parameters.
        dtype: of V; by default float32 at least.
    """
    own, kind = state[p], resolve_penalty(group["penalty"], p.ndim)
    if kind is None:
        return
    if "v" not in own:
        own["v"] = new_v(p) if dtype is None else new_v(p).to(dtype)
    if group["lambd_scale"] == "init" and isinstance(kind, str) and "lambd_scale" not in own:
        own["lambd_scale"] = new_scale(p, group, state)


def check_fit(
    p: Tensor, group: dict[str, Any], own: dict[str, Any], update_mask: Tensor | None, name: Name
) -> None:
    """Refuse a parameter whose data was replaced by a tensor that its state does not fit."""
    shape, device = p.shape, p.device
    tensors = p.grad, update_mask, own.get("v"), own.get("momentum_buffer")
    for what, tensor in zip(_SHAPED, tensors, strict=True):
        if tensor is not None and (tensor.shape != shape or tensor.device != device):
            raise ValueError(
                f"the {what} of parameter {name(p)} has shape {tuple(tensor.shape)} on "
                f"{tensor.device}, but the parameter is now {tuple(shape)} on {device}: it was "
                "replaced after a step; make a new optimizer for it"
            )
    scale = own.get("lambd_scale")
    if scale is not None and group["lambd_scale"] == "init":
        kind = resolve_penalty(group["penalty"], p.ndim)
        dim = dim_of(p, group)
        if isinstance(kind, str) and scale.shape != scale_shape(kind, shape, dim):
            raise ValueError(
                f"the thresholds of parameter {name(p)} were taken at the first step for groups of "
                f"shape {tuple(scale.shape)}, which penalty={group['penalty']!r} and "
                f"group_dim={group['group_dim']} do not have; set them before the first step"
            )


def restored(
    p: Tensor,
    saved: dict[str, Any],
    name: Name,
    keys: tuple[str, ...] = KEYS,
    v_dtype: torch.dtype | None = None,
) -> dict[str, Tensor]:
    """A parameter's part of a state dict, V in float32 where torch would round it."""
    found = {}
    for key in keys:
        if key not in saved:
            continue
        value = saved[key]
        if not isinstance(value, torch.Tensor):
            raise ValueError(
                f"{key} of parameter {name(p)} must be a tensor, got {type(value).__name__}; the "
                "state dict was not made by this optimizer"
            )
        if key != "lambd_scale" and value.shape != p.shape:
            raise ValueError(
                f"{key} of shape {tuple(value.shape)} was saved for another parameter than "
                f"{name(p)}; load into an optimizer with the same parameter order"
            )
        dtype = p.dtype if key == "momentum_buffer" else dual_dtype(p)
        if key == "v" and v_dtype is not None:
            dtype = v_dtype
        own = value.detach().to(device=p.device, dtype=dtype, copy=True)
        if own.shape == p.shape and own.stride() != p.stride():
            own = torch.zeros_like(p, dtype=dtype).copy_(own)
        found[key] = own
    return found


def only_asks_for_state(p: Tensor, lr: float | Tensor) -> bool:
    """Whether this is how torch.distributed.checkpoint makes empty state: lr 0, gradient 0.

    A true first step with both exactly zero looks the same, and loses nothing but a decay or
    coupling term in the momentum buffer.
    """
    return float(lr) == 0 and p.grad is not None and not bool(dtensor.count(p.grad != 0))

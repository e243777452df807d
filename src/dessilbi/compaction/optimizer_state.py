"""Optimizer state cut along with the weights, so that training goes on with the smaller network."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
from torch import Tensor

from dessilbi.graph.errors import CompactError
from dessilbi.optim import SplitLBI

from .modules_form import cut_tensor

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from dessilbi.graph.plan import Plan

_O = TypeVar("_O", bound="Optimizer")


def cut_optimizer(plan: Plan, small: nn.Module, model: nn.Module, optimizer: _O) -> _O:
    """An optimizer of the same kind and options for the smaller network, its state cut.

    State shaped as a parameter (V, momentum) is cut to the kept rows and columns, thresholds by
    group to the kept groups; counters are copied. Parameters that exist only in the smaller network
    (a bias that holds constants) begin without state, in the group of their layer's weight, and
    without a penalty if the group has one. Tied filters stay tied, unless different ones are
    left in different layers.

    Of :class:`SplitLBI` the base is cut, and wrapped as before.

    Args:
        plan: how the network was cut.
        small: the smaller network.
        model: the network whose parameters the optimizer holds.
        optimizer: is left alone.
    """
    if isinstance(optimizer, SplitLBI):
        return cast("_O", optimizer.around(cut_optimizer(plan, small, model, optimizer.base)))
    # A parameter that is tied has several names, and either network may call it by any of them.
    names: dict[Tensor, list[str]] = {}
    for name, p in model.named_parameters(remove_duplicate=False):
        names.setdefault(p, []).append(name)
    known_names = {name for aliases in names.values() for name in aliases}
    left = dict(small.named_parameters(remove_duplicate=False))
    groups, moved = [], dict[str, Tensor]()
    for group in optimizer.param_groups:
        for p in group["params"]:
            if p not in names:
                raise CompactError(
                    f"the optimizer holds a tensor of shape {tuple(p.shape)} that is no parameter "
                    "of the model; give the model that it trains"
                )
        stay = {name: p for p in group["params"] for name in [n for n in names[p] if n in left][:1]}
        chosen = list(stay)
        moved |= stay
        options = {k: v for k, v in group.items() if k not in ("params", "param_names")}
        if options.get("tied") and len({_rows(plan, name, left[name]) for name in chosen}) > 1:
            options["tied"] = False  # slices of equal number are no longer the same channel
        if chosen:
            groups.append(_group(options, chosen, left, "param_names" in group))
        fresh = [
            name
            for name in left
            if name not in known_names and f"{name.removesuffix('bias')}weight" in chosen
        ]
        if fresh:
            plain = options | ({"penalty": None} if "penalty" in options else {})
            plain |= {"tied": False} if "tied" in options else {}
            groups.append(_group(plain, fresh, left, "param_names" in group))
    if not groups:
        raise CompactError("none of the optimizer's parameters is left in the compact model")
    known = inspect.signature(type(optimizer)).parameters
    defaults = {k: v for k, v in optimizer.defaults.items() if k in known and v is not None}
    made = type(optimizer)(groups, **defaults)
    made.defaults = dict(optimizer.defaults)
    for name, old in moved.items():
        if old in optimizer.state:
            made.state[left[name]] = {
                key: _cut(plan, name, old, left[name], key, value)
                for key, value in optimizer.state[old].items()
            }
    return made


def _group(
    options: dict[str, Any], chosen: list[str], left: dict[str, Any], named: bool
) -> dict[str, Any]:
    params = [(name, left[name]) for name in chosen] if named else [left[n] for n in chosen]
    return options | {"params": params}


def _rows(plan: Plan, name: str, new: Tensor) -> tuple[int, ...]:
    cut = plan.tensors.get(name)
    return tuple(range(len(new))) if cut is None else cut.stays.get(0, tuple(range(len(new))))


def _cut(plan: Plan, name: str, old: Tensor, new: Tensor, key: str, value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    cut = plan.tensors.get(name)
    if value.numel() == 1 or cut is None:
        return value.clone()
    broadcasts = value.ndim == old.ndim and all(
        v in (1, o) for v, o in zip(value.shape, old.shape, strict=True)
    )
    if not broadcasts:
        raise CompactError(
            f"the optimizer's {key!r} of {name!r} has shape {tuple(value.shape)}, the parameter "
            f"{tuple(old.shape)}; state of another shape cannot be cut"
        )
    found = cut_tensor(cut, value.expand(old.shape))
    for dim, size in enumerate(value.shape):
        if size == 1:
            found = found.narrow(dim, 0, 1)
    if found.shape == new.shape:
        return torch.empty_like(new, dtype=value.dtype).copy_(found)  # in the weight's format
    return found.clone()

"""The options of DessiLBI: defaults, and errors that name argument, rule, value and way out."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Literal, TypeGuard

import torch

from dessilbi._text import did_you_mean

from .dtensor import is_dtensor
from .prox import resolve_penalty

if TYPE_CHECKING:
    from collections.abc import Mapping

PenaltyOption = Literal["auto", "lasso", "group_lasso"] | None
Coupling = Literal["direct", "momentum"]

DEFAULTS: dict[str, Any] = {
    "lr": 0.1,
    "kappa": 1.0,
    "nu": 100.0,
    "lambd": 1.0,
    "penalty": "auto",
    "group_dim": 0,
    "momentum": 0.0,
    "nesterov": False,
    "weight_decay": 0.0,
    "decoupled_weight_decay": False,
    "coupling": "direct",
    "maximize": False,
    "foreach": None,
    "fused": None,
    "lambd_scale": None,
    "tied": False,
}


def check_options(options: Mapping[str, Any], where: str = "") -> None:
    """Raise ValueError for the first option out of its range."""

    def refuse(rule: str, name: str) -> None:
        raise ValueError(f"{name} must be {rule}, got {options[name]!r}{where}")

    lr = options["lr"]
    if isinstance(lr, torch.Tensor) and lr.numel() != 1:
        raise ValueError(
            f"lr must be a number or a one-element tensor, got shape {tuple(lr.shape)}{where}"
        )
    for name in ("kappa", "nu"):
        if not _number(options[name]) or not options[name] > 0:
            refuse("> 0", name)
    if not options["kappa"] < math.inf:
        refuse("finite", "kappa")
    for name in ("lr", "lambd", "momentum", "weight_decay"):
        value = options[name]
        if isinstance(value, torch.Tensor):
            if name != "lr":
                refuse("a number, not a tensor", name)
            value = value.item()
        if not at_least_zero(value):
            refuse(">= 0 and finite", name)
    if options["nesterov"] and options["momentum"] == 0:
        raise ValueError(
            f"nesterov=True needs momentum > 0, got momentum={options['momentum']!r}{where}; "
            "set momentum=0.9 or nesterov=False"
        )
    resolve_penalty(options["penalty"], 2)
    if options["coupling"] not in ("direct", "momentum"):
        refuse("'direct' or 'momentum'", "coupling")
    if options["lambd_scale"] not in (None, "size", "init"):
        refuse("None, 'size' or 'init'", "lambd_scale")
    if isinstance(options["group_dim"], bool) or not isinstance(options["group_dim"], Integral):
        refuse("an integer", "group_dim")
    if not isinstance(options["tied"], bool):
        refuse("True or False", "tied")
    if options["foreach"] and options["fused"]:
        raise ValueError(f"foreach and fused cannot both be True{where}; choose one")


def check_params(group: dict[str, Any], index: int) -> None:
    """Raise ValueError for a group, as the user gave it, that is empty or names a tensor twice."""
    if not isinstance(group, dict) or isinstance(group["params"], (torch.Tensor, set)):
        return  # torch takes or refuses these
    group["params"] = params = list(group["params"])
    if not params:
        raise ValueError(f"parameter group {index} is empty; leave it out or give it parameters")
    tensors = [p[1] if isinstance(p, tuple) else p for p in params]
    if len({id(p) for p in tensors}) != len(tensors):
        raise ValueError(
            f"the same parameter appears twice in parameter group {index}; list it once"
        )


def check_group(group: Mapping[str, Any], index: int) -> None:
    """Raise ValueError for a parameter group that cannot be optimized as it is."""
    where = f" (parameter group {index})"
    if "coupled" in group:
        raise ValueError(f"option 'coupled' is now called 'tied'{where}")
    for key in group:
        # Schedulers leave keys of their own in the groups: initial_lr, max_momentum.
        theirs = any(key.endswith(f"_{option}") for option in DEFAULTS)
        if key in DEFAULTS or key in ("params", "param_names") or theirs:
            continue
        if hint := did_you_mean(key, DEFAULTS, cutoff=0.8):
            raise ValueError(f"unknown option {key!r}{where}{hint}")
    check_options(group, where)
    for i, p in enumerate(group["params"]):
        name = repr(group["param_names"][i]) if "param_names" in group else str(i)
        if p.is_complex():
            raise ValueError(
                f"DessiLBI does not support complex parameters (parameter {name}{where}); "
                "optimize torch.view_as_real of it"
            )
        dim = group["group_dim"]
        if resolve_penalty(group["penalty"], p.ndim) != "group_lasso":
            continue
        if p.ndim == 0:
            raise ValueError(
                f"group_lasso needs at least one dimension, parameter {name} has none{where}; "
                "use penalty='lasso' or None"
            )
        if not -p.ndim <= dim < p.ndim:
            raise ValueError(
                f"group_dim must be in [{-p.ndim}, {p.ndim - 1}] for parameter {name} of shape "
                f"{tuple(p.shape)}, got {dim}{where}"
            )
    if group["tied"]:
        _check_tied(group, where)


def _check_tied(group: Mapping[str, Any], where: str) -> None:
    """Raise ValueError unless the tensors of a group can share its groups of the group Lasso."""
    params, dim = group["params"], group["group_dim"]
    names = group.get("param_names", range(len(params)))
    for name, p in zip(names, params, strict=True):
        if resolve_penalty(group["penalty"], p.ndim) != "group_lasso":
            raise ValueError(
                f"tied=True needs penalty 'group_lasso' for every tensor, got "
                f"{group['penalty']!r} for parameter {name!r} of shape {tuple(p.shape)}{where}; "
                "set penalty='group_lasso', or move the parameter to a group of its own"
            )
        if is_dtensor(p):
            raise ValueError(
                f"tied=True does not support DTensors, parameter {name!r} is one{where}; use "
                "DistributedDataParallel, or tied=False"
            )
        for what, mine, first in (
            (f"slices along group_dim {dim}", p.shape[dim], params[0].shape[dim]),
            ("device", p.device, params[0].device),
            ("dtype", p.dtype, params[0].dtype),
        ):
            if mine != first:
                raise ValueError(
                    f"tied=True needs the same {what} for all tensors, got {first} for "
                    f"parameter {names[0]!r} and {mine} for {name!r}{where}; give them groups of "
                    "their own"
                )


def at_least_zero(value: object) -> bool:
    """Whether a value is a number that is finite and not negative."""
    return _number(value) and 0 <= value < math.inf


def _number(value: object) -> TypeGuard[float]:
    return isinstance(value, Real) and not isinstance(value, bool)

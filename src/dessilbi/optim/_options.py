"""The options of a parameter group: defaults, and errors that name argument, rule and way out."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Literal, TypeGuard

import torch

from dessilbi._text import did_you_mean

from .prox import Penalty, dim_of, resolve_penalty

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .prox import LambdScale

PenaltyOption = Literal["auto", "lasso", "group_lasso"] | Penalty | None
Coupling = Literal["direct", "momentum"]

TAU, C = 10.0, 2.0
"""The coupling time and the relative threshold that a newcomer gets."""
NU = 100.0
"""The coupling where neither ``nu`` nor the length of the training was given."""

TWIN_OPTIONS = ("kappa", "nu", "lambd", "penalty", "group_dim", "lambd_scale", "tied", "tau")
"""What a parameter group says of its twins, whichever optimizer takes the gradient."""
SGD_DEFAULTS: dict[str, Any] = {
    "lr": 0.1,
    "momentum": 0.0,
    "nesterov": False,
    "weight_decay": 0.0,
    "decoupled_weight_decay": False,
    "coupling": "direct",
    "maximize": False,
    "foreach": None,
    "fused": None,
}
OPTIONS = (*TWIN_OPTIONS, *SGD_DEFAULTS)
"""All that a parameter group of DessiLBI says."""


def twin_defaults(
    *,
    kappa: float,
    nu: float | None,
    lambd: float | None,
    tau: float,
    c: float,
    penalty: PenaltyOption,
    group_dim: int,
    lambd_scale: LambdScale | None,
    tied: bool,
) -> dict[str, Any]:
    """What groups say of their twins unless they say it themselves: tau and c, unless overruled."""
    for name, value in (("tau", tau), ("c", c)):
        if not at_least_zero(value) or (name == "tau" and value == 0):
            raise ValueError(f"{name} must be {'> 0' if name == 'tau' else '>= 0'}, got {value!r}")
    relative = lambd is None
    return {
        "kappa": kappa,
        "nu": NU if nu is None else nu,
        "tau": tau if nu is None else None,
        "lambd": c if relative else lambd,
        "lambd_scale": "init" if relative and lambd_scale is None else lambd_scale,
        "penalty": penalty,
        "group_dim": group_dim,
        "tied": tied,
    }


def resolve_group(group: dict[str, Any]) -> None:
    """Turn a group's own knobs into options: ``c`` is a relative threshold, ``nu`` ends ``tau``."""
    if "c" in group:
        group |= {"lambd": group.pop("c"), "lambd_scale": "init"}
    elif "lambd" in group:
        group.setdefault("lambd_scale", None)
    if "nu" in group:
        group.setdefault("tau", None)


def check_options(options: Mapping[str, Any], where: str = "") -> None:
    """Raise ValueError for the first option out of its range, of those that are there."""

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
    if options["tau"] is not None and not (at_least_zero(options["tau"]) and options["tau"] > 0):
        refuse("> 0 or None", "tau")
    for name in ("lr", "lambd", "momentum", "weight_decay"):
        if name not in options:
            continue
        value = options[name]
        if isinstance(value, torch.Tensor):
            if name != "lr":
                refuse("a number, not a tensor", name)
            value = value.item()
        if not at_least_zero(value):
            refuse(">= 0 and finite", name)
    if "nesterov" in options and options["nesterov"] and options["momentum"] == 0:
        raise ValueError(
            f"nesterov=True needs momentum > 0, got momentum={options['momentum']!r}{where}; "
            "set momentum=0.9 or nesterov=False"
        )
    resolve_penalty(options["penalty"], 2)
    if options.get("coupling", "direct") not in ("direct", "momentum"):
        refuse("'direct' or 'momentum'", "coupling")
    if options["lambd_scale"] not in (None, "size", "init"):
        refuse("None, 'size' or 'init'", "lambd_scale")
    dims = options["group_dim"]
    dims = list(dims) if options["tied"] is True and isinstance(dims, tuple | list) else [dims]
    if not all(isinstance(dim, Integral) and not isinstance(dim, bool) for dim in dims):
        refuse("an integer (or, in a tied group, one for each parameter)", "group_dim")
    if not isinstance(options["tied"], bool):
        refuse("True or False", "tied")
    if options.get("foreach") and options.get("fused"):
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


def check_group(group: Mapping[str, Any], index: int, known: Sequence[str] = OPTIONS) -> None:
    """Raise ValueError for a parameter group that cannot be optimized as it is."""
    where = f" (parameter group {index})"
    if "coupled" in group:
        raise ValueError(f"option 'coupled' is now called 'tied'{where}")
    for key in group:
        # Schedulers leave keys of their own in the groups: initial_lr, max_momentum.
        theirs = any(key.endswith(f"_{option}") for option in known)
        if key in known or key in ("params", "param_names") or theirs:
            continue
        if hint := did_you_mean(key, known, cutoff=0.8):
            raise ValueError(f"unknown option {key!r}{where}{hint}")
    check_options({name: group[name] for name in ("lr", *known)}, where)
    dims = group["group_dim"]
    if isinstance(dims, tuple | list) and len(dims) != len(group["params"]):
        raise ValueError(
            f"group_dim must be an integer or have one for each of the {len(group['params'])} "
            f"parameters, got {dims!r}{where}"
        )
    for i, p in enumerate(group["params"]):
        name = repr(group["param_names"][i]) if "param_names" in group else str(i)
        kind = resolve_penalty(group["penalty"], p.ndim)
        if p.is_complex() and (kind is not None or "momentum" in known):
            raise ValueError(
                f"a twin does not support complex parameters (parameter {name}{where}); "
                "optimize torch.view_as_real of it"
            )
        dim = dim_of(p, group)
        if kind != "group_lasso":
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
    params, first = group["params"], group["params"][0]
    slices = first.shape[dim_of(first, group)] if first.ndim else 0
    names = group.get("param_names", range(len(params)))
    for name, p in zip(names, params, strict=True):
        if resolve_penalty(group["penalty"], p.ndim) != "group_lasso":
            raise ValueError(
                f"tied=True needs penalty 'group_lasso' for every tensor, got "
                f"{group['penalty']!r} for parameter {name!r} of shape {tuple(p.shape)}{where}; "
                "set penalty='group_lasso', or move the parameter to a group of its own"
            )
        dim = dim_of(p, group)
        for what, mine, theirs in (
            (f"slices along group_dim {dim}", p.shape[dim], slices),
            ("device", p.device, first.device),
            ("dtype", p.dtype, first.dtype),
        ):
            if mine != theirs:
                raise ValueError(
                    f"tied=True needs the same {what} for all tensors, got {theirs} for "
                    f"parameter {names[0]!r} and {mine} for {name!r}{where}; give them groups of "
                    "their own"
                )


def at_least_zero(value: object) -> bool:
    """Whether a value is a number that is finite and not negative."""
    return _number(value) and 0 <= value < math.inf


def _number(value: object) -> TypeGuard[float]:
    return isinstance(value, Real) and not isinstance(value, bool)

"""What of an optimizer's options the theorem knows, and what puts a run outside it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard

from torch.optim import SGD

from dessilbi.optim import DessiLBI, SplitLBI

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from dessilbi.optim import TwinOptimizer


class Numbers(NamedTuple):
    """The numbers of the iteration, the same for every parameter."""

    lr: float
    kappa: float
    nu: float
    """The tightest coupling of any group with a twin; infinite without one."""
    l2: float
    """The largest L2 decay of any group."""


def steps_along_gradient(opt: Optimizer) -> TypeGuard[TwinOptimizer]:
    """Whether an optimizer with a twin moves the weights as the theorem has it."""
    if isinstance(opt, SplitLBI):
        return type(opt.base) is SGD
    return isinstance(opt, DessiLBI)


def numbers(opt: TwinOptimizer) -> Numbers:
    """The iteration's numbers.

    Raises:
        ValueError: If groups differ in lr, or groups with a twin in kappa: F has one alpha.
    """
    twins = {id(p) for _, p in opt.twins()}
    coupled = [g for g in opt.param_groups if any(id(p) in twins for p in g["params"])]
    rates = sorted({float(g["lr"]) for g in opt.param_groups})
    dampings = sorted({float(g["kappa"]) for g in coupled}) or [1.0]
    for name, values in (("lr", rates), ("kappa", dampings)):
        if len(values) > 1:
            raise ValueError(
                f"{name} must be the same in all parameter groups for F = alpha * Lbar + ..., got "
                f"{values}"
            )
    return Numbers(
        lr=rates[0],
        kappa=dampings[0],
        nu=min((float(g["nu"]) for g in coupled), default=math.inf),
        l2=max(l2_of(g) for g in opt.param_groups),
    )


def l2_of(group: dict[str, Any]) -> float:
    """Weight decay of a group as an L2 term of the loss.

    The paper's form, ``W - ... - weight_decay * W``, is one of strength ``weight_decay / lr``.
    """
    decay = float(group["weight_decay"])
    if not group.get("decoupled_weight_decay", False):
        return decay
    lr = float(group["lr"])
    return decay / lr if lr > 0 else 0.0


def outside(opt: TwinOptimizer) -> tuple[str, ...]:
    """Options under which the iteration is not the theorem's, in words."""
    reasons = []
    momentum = max(float(g["momentum"]) for g in opt.param_groups)
    if momentum:
        nesterov = ", Nesterov" if any(g["nesterov"] for g in opt.param_groups) else ""
        reasons.append(f"momentum {momentum:g}{nesterov} (the theorem has none)")
    if any(g["maximize"] for g in opt.param_groups):
        reasons.append("maximize=True climbs the loss")
    return tuple(reasons)

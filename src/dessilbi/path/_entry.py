"""When the first group will enter Gamma, foretold from how V grows."""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from .layers import tied_sets

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from dessilbi.optim.twin import TwinOptimizer

    from ._measure import Measured
    from .layers import Layer

LATE = 25
"""Epochs until the first entry that are worth a word, where the training's length is not known."""


def warn_if_late(
    opt: TwinOptimizer,
    params: Mapping[str, Tensor],
    measured: Mapping[Layer, Measured],
    step: int,
    steps_per_epoch: float,
) -> None:
    """Warn if settings let nothing enter, or late.

    Args:
        opt: the optimizer, in whose Gamma nothing is yet.
        params: its parameters with a twin, by name.
        measured: the layers as they are.
        step: steps made so far.
        steps_per_epoch: steps from one record to the next.
    """
    groups = {p: group for group in opt.param_groups for p in group["params"]}
    first, late = math.inf, False
    for tied in tied_sets(measured):
        group = groups[params[tied[0].name]]
        nu = float(group["nu"])
        # A schedule that warms up or cycles says how high the rate will be.
        rate = max(float(group.get(key) or 0) for key in ("lr", "initial_lr", "max_lr"))
        entry = step + _steps_left([measured[one] for one in tied], rate / nu)
        if entry < first:
            first = entry
            asked = group["tau"] is not None and nu != opt.defaults["nu"]
            late = entry > (group["tau"] * nu / rate if asked else LATE * steps_per_epoch)
            settings = f"nu={nu:g}, lambd={group['lambd']:g}"
    if not late or math.isinf(first):
        return
    warnings.warn(
        f"nothing has entered Gamma in {step} steps; at this rate the first group would enter "
        f"after {first / steps_per_epoch:,.0f} epochs ({first:,.0f} steps, {settings}). Give the "
        "optimizer steps=, the length of the training, which sets nu for it, or a smaller nu, c or "
        "lambd",
        stacklevel=5,  # record is under no_grad, which is a frame
    )


def _steps_left(tied: Sequence[Measured], rate: float) -> float:
    """Steps until the first of the groups enters, while V grows by ``rate / kappa`` of W."""
    W, V = (
        np.linalg.norm([part.astype(np.float64) for part in parts], axis=0)
        for parts in zip(*(_sizes(one) for one in tied), strict=True)
    )
    growth = rate / tied[0].kappa * W
    left = np.maximum(tied[0].thresholds - V, 0)
    return float(np.divide(left, growth, out=np.full_like(left, np.inf), where=growth > 0).min())


def _sizes(one: Measured) -> tuple[NDArray[Any], NDArray[Any]]:
    """W and V by group."""
    return (one.norms[0], one.norms[2]) if one.W is None or one.V is None else (one.W, one.V)

"""Why training cannot go on."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from dessilbi.errors import DessilbiError

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer


class TrainingError(DessilbiError, RuntimeError):
    """Training cannot go on; the message says why and what to try."""


class Interrupted(DessilbiError, RuntimeError):  # noqa: N818 - not an error
    """Stopped on request; running the same configuration again continues."""


def not_finite(what: str, model: nn.Module, optimizer: Optimizer, step: int, epoch: int) -> str:
    """That ``what`` became infinite or NaN, where the gradient is largest, and what to try."""
    from dessilbi.optim import TwinOptimizer  # the command line needs the errors before torch

    largest, where = 0.0, "no parameter"
    for name, p in model.named_parameters():
        if p.grad is not None:
            size = float(p.grad.detach().abs().nan_to_num(math.inf, math.inf).max())
            if size > largest:
                largest, where = size, name
    lr = optimizer.param_groups[0]["lr"]
    bound = " A stable step also needs lr < nu." if isinstance(optimizer, TwinOptimizer) else ""
    return (
        f"{what} not finite at step {step} (epoch {epoch}); the largest gradient is {largest:g}, "
        f"in {where}. Lower the learning rate (now {lr:g}) or warm it up (--schedule.warmup 1)."
        f"{bound}"
    )

"""The learning rate as a function of the step alone: a resumed run needs no scheduler state.

Before each step of a run: ``set_lr(optimizer, lr_factor(schedule, step=step, ...))``.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from dessilbi.lab.run.config import ConfigError

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from dessilbi.lab.run.config import Config, ScheduleConfig

_KINDS = ("constant", "step", "multistep", "cosine", "linear")


def lr_factor(config: ScheduleConfig, *, step: int, steps_per_epoch: int, epochs: int) -> float:
    r"""What the base rate is multiplied by at a step, counted from 0 over the whole run.

    The product of warm-up and decay. With :math:`s` the step, :math:`e` its epoch, :math:`w` the
    steps of warm-up (``warmup`` epochs, rounded to a step), :math:`T` the steps of the run and
    :math:`c` those of the cooldown (by default :math:`T - w`):

    ============  ===================================================================
    warm-up       :math:`\min(1, (s + 1) / w)`: never 0, and 1 at the w-th step
    constant      1
    step          :math:`\gamma^{\lfloor e / \mathrm{step\_size} \rfloor}`
    multistep     :math:`\gamma^n`, n the milestones with :math:`m \le e`, in any order
    cosine        :math:`(1 + \cos(\pi (s - w) / (T - w))) / 2`; 1 before, 0 after the end
    linear        :math:`\min(1, (T - s) / c)`: a one-cycle, or a trapezoid; 0 after the end
    ============  ===================================================================

    Epochs are counted from the start of the run, warm-up included. A warm-up longer than the run
    ends on its way up.

    Args:
        config: the schedule.
        step: steps made so far.
        steps_per_epoch: steps of an epoch.
        epochs: epochs of the whole run; only cosine and linear depend on it.

    Raises:
        ConfigError: If the schedule itself is not sound.
        ValueError: If a count is out of range.
    """
    _check(config)
    _check_counts(step=step, steps_per_epoch=steps_per_epoch, epochs=epochs)
    return _factor(config, step, steps_per_epoch, epochs)


def run_factor(config: Config, steps_per_epoch: int) -> float:
    """The sum of :func:`lr_factor` over all steps of a run, wherever in it one is."""
    epochs = config.epochs_before + config.epochs
    _check(config.schedule)
    _check_counts(steps_per_epoch=steps_per_epoch, epochs=epochs)
    steps = range(config.epochs_before * steps_per_epoch, epochs * steps_per_epoch)
    return math.fsum(_factor(config.schedule, step, steps_per_epoch, epochs) for step in steps)


def _factor(config: ScheduleConfig, step: int, steps_per_epoch: int, epochs: int) -> float:
    warmup_steps = round(config.warmup * steps_per_epoch)
    rise = (step + 1) / warmup_steps if step < warmup_steps else 1.0
    epoch = step // steps_per_epoch
    if config.kind == "step":
        return rise * _drops(config.gamma, epoch // config.step_size)
    if config.kind == "multistep":
        return rise * _drops(config.gamma, sum(m <= epoch for m in config.milestones))
    if config.kind == "cosine":
        return rise * _cosine(step - warmup_steps, steps_per_epoch * epochs - warmup_steps)
    if config.kind == "linear":
        fall_steps = steps_per_epoch * epochs - warmup_steps
        if config.cooldown is not None:
            fall_steps = round(config.cooldown * steps_per_epoch)
        return rise * _linear(steps_per_epoch * epochs - step, fall_steps)
    return rise


def set_lr(optimizer: Optimizer, factor: float) -> None:
    """Set the rate of each group to its base rate times a factor.

    The base rate is the one the group has when this is first called. It is kept in the group as
    ``initial_lr``, a float, and so travels with the optimizer's state_dict: a loaded optimizer goes
    on from the base rate it was saved with. Rates that are tensors are changed in place.
    """
    for group in optimizer.param_groups:
        base = group["initial_lr"] = float(group.get("initial_lr", group["lr"]))
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(base * factor)
        else:
            group["lr"] = base * factor


def _drops(gamma: float, count: int) -> float:
    return math.pow(gamma, count)


def _cosine(done: int, total: int) -> float:
    """Half a cosine wave from 1 at 0 to 0 at ``total``; 1 if there is nothing to cover."""
    if done <= 0 or total <= 0:
        return 1.0
    return (1 + math.cos(math.pi * min(done, total) / total)) / 2


def _linear(left: int, fall: int) -> float:
    """From 1 at ``fall`` steps before the end to 0 there."""
    return min(1.0, max(left, 0) / fall) if fall > 0 else 1.0


def _check_counts(*, step: int = 0, steps_per_epoch: int, epochs: int) -> None:
    for name, value, least in (
        ("step", step, 0),
        ("steps_per_epoch", steps_per_epoch, 1),
        ("epochs", epochs, 0),
    ):
        if value < least:
            raise ValueError(f"{name} must be >= {least}, got {value}")


def _check(config: ScheduleConfig) -> None:
    for rule, holds in {
        f"kind must be one of {', '.join(_KINDS)}, got {config.kind!r}": config.kind in _KINDS,
        f"warmup must be >= 0 and finite, got {config.warmup!r}": 0 <= config.warmup < math.inf,
        f"cooldown must be >= 0 and finite, got {config.cooldown!r}": (
            config.cooldown is None or 0 <= config.cooldown < math.inf
        ),
        f"cooldown is for kind='linear', got {config.cooldown!r} with {config.kind!r}": (
            config.cooldown is None or config.kind == "linear"
        ),
        f"gamma must be >= 0 and finite, got {config.gamma!r}": 0 <= config.gamma < math.inf,
        f"step_size must be >= 1, got {config.step_size!r}": config.step_size >= 1,
        f"milestones must be >= 0, got {config.milestones!r}": all(
            m >= 0 for m in config.milestones
        ),
        "kind='multistep' needs milestones; give some, or kind='constant'": (
            config.kind != "multistep" or len(config.milestones) > 0
        ),
    }.items():
        if not holds:
            raise ConfigError(f"schedule.{rule}")

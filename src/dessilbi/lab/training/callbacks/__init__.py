"""Callbacks of the training loop, one feature a file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dessilbi.lab.training.callbacks.base import Callback
from dessilbi.lab.training.callbacks.checkpoints import CheckpointsCallback
from dessilbi.lab.training.callbacks.fixed_mask import FixedMaskCallback
from dessilbi.lab.training.callbacks.methods import make_nested, method_callback, register_method
from dessilbi.lab.training.callbacks.path import PathCallback
from dessilbi.lab.training.callbacks.records import (
    RecordsCallback,
    TensorBoardCallback,
)
from dessilbi.lab.training.callbacks.step_check import StepCheckCallback

if TYPE_CHECKING:
    from dessilbi.lab.training.state import Training

__all__ = ["Callback", "make_callbacks", "make_nested", "method_callback", "register_method"]


def make_callbacks(t: Training) -> list[Callback]:
    """The callbacks of a run, in the order in which they are called: that of what they write."""
    asked: list[Callback] = []
    if t.options.tensorboard:
        asked.append(TensorBoardCallback())
    if t.options.check_step:
        asked.append(StepCheckCallback(t))
    return [
        t.precision,
        FixedMaskCallback(),
        t.method,
        PathCallback(t),
        RecordsCallback(),
        *asked,
        CheckpointsCallback(),
    ]

"""Scratch-E and Scratch-B: the structure that pruning found, trained with new random weights.

Liu, Sun, Zhou, Huang, Darrell: Rethinking the Value of Network Pruning. ICLR 2019.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from dessilbi.lab.analysis.subnetworks import share_of_macs
from dessilbi.paper.baselines.start import retrain

if TYPE_CHECKING:
    from pathlib import Path

    from dessilbi.lab.run.config import Config, ScheduleConfig
    from dessilbi.lab.run.directory import RunDir
    from dessilbi.path import Mask


def scratch(parent: RunDir, mask: Mask, runs: Path, kind: Literal["e", "b"]) -> Config:
    """Train a structure from new weights.

    Args:
        parent: the run whose training it repeats.
        mask: the structure.
        runs: folder of the run directories.
        kind: ``e``, as many epochs as the dense network; ``b``, as many multiply-adds, and at most
            twice the epochs, with the schedule stretched.
    """
    before = parent.config()
    factor = 1.0
    if kind == "b":
        factor = min(2.0, 1 / max(share_of_macs(before, mask), 1e-9))
    epochs = round(before.epochs * factor)
    return retrain(
        parent,
        mask,
        runs,
        method=f"scratch-{kind}",
        words="structure of the mask",
        weights="fresh",
        epochs=epochs,
        schedule=_stretched(before.schedule, epochs / max(before.epochs, 1)),
    )


def _stretched(schedule: ScheduleConfig, factor: float) -> ScheduleConfig:
    return replace(
        schedule,
        step_size=max(round(schedule.step_size * factor), 1),
        milestones=tuple(round(m * factor) for m in schedule.milestones),
    )

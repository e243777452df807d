"""Scratch-E and Scratch-B: the structure that pruning found, trained with new random weights.

Liu, Sun, Zhou, Huang, Darrell: Rethinking the Value of Network Pruning. ICLR 2019.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from dessilbi.lab.analysis.choice import Retrain
from dessilbi.lab.analysis.subnetworks import retrain

if TYPE_CHECKING:
    from pathlib import Path

    from dessilbi.lab.run.config import Config
    from dessilbi.lab.run.directory import RunDir
    from dessilbi.path import Mask


FRESH_SEED = 10_000
"""Added to a run's seed for new weights, so that they are no seed of the table."""


def scratch(parent: RunDir, mask: Mask, runs: Path, kind: Literal["e", "b"]) -> Config:
    """Train a structure from new weights.

    Args:
        parent: the run whose training it repeats.
        mask: the structure.
        runs: folder of the run directories.
        kind: ``e``, as many epochs as the dense network; ``b``, as many multiply-adds, and at most
            twice the epochs, with the schedule stretched.
    """
    return retrain(
        parent,
        mask,
        "structure of the mask",
        Retrain("scratch-b" if kind == "b" else "scratch"),
        runs,
        name=f"scratch-{kind}",
        fresh_seed=parent.config().seed + FRESH_SEED,
    )

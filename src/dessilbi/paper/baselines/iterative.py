"""Iterative-Pruning-A: prune the smallest weights, retrain what is left, and again.

Han, Pool, Tran, Dally: Learning both Weights and Connections for Efficient Neural Networks.
NeurIPS 2015.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dessilbi.lab.analysis.choice import Retrain
from dessilbi.lab.analysis.networks import trained_network
from dessilbi.lab.analysis.subnetworks import retrain
from dessilbi.lab.run.files import MASK
from dessilbi.path import Mask

if TYPE_CHECKING:
    from pathlib import Path

    from dessilbi.lab.run.config import Config
    from dessilbi.lab.run.directory import RunDir


def densities(target: float, rounds: int) -> tuple[float, ...]:
    """Density after each round: every round keeps the same fraction of what is left."""
    if not 0 < target <= 1:
        raise ValueError(f"target must be in (0, 1], got {target!r}")
    if rounds < 1:
        raise ValueError(f"rounds must be >= 1, got {rounds!r}")
    return tuple(target ** ((i + 1) / rounds) for i in range(rounds))


def pruned_again(parent: RunDir) -> Mask | None:
    """The mask that a run holds; ``None`` for the dense network that the rounds begin with."""
    return Mask.load(parent.path / MASK) if (parent.path / MASK).is_file() else None


def next_round(parent: RunDir, density: float, runs: Path, *, epochs: int | None = None) -> Config:
    """One round: the smallest weights of the parent go, the others are trained on.

    Args:
        parent: the run of the round before, or of the dense network.
        density: what is left after this round.
        runs: folder of the run directories.
        epochs: of retraining; a quarter of the parent's by default.
    """
    mask = Mask.magnitude(trained_network(parent), density, scope="global")
    before = pruned_again(parent)
    if before is not None:
        mask = mask & before  # weights that are gone are zero, and never come back
    words = f"largest weights, density {density:.4g}"
    return retrain(parent, mask, words, Retrain("finetune"), runs, name="han", epochs=epochs)

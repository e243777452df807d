"""Iterative-Pruning-B: gradual magnitude pruning along a cubic while the network trains.

Zhu, Gupta: To prune, or not to prune. 2017. The schedule is
:class:`dessilbi.subnet.GradualPruning`; here only what it is run with. Every layer is pruned to the
same density, as in that paper.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from dessilbi.lab.run.methods import GradualPruning

if TYPE_CHECKING:
    from dessilbi.lab.run.config import Config


def gradually_pruned(config: Config, density: float, *, every: int = 100) -> Config:
    """Train with magnitude pruning, by weight, every layer down to the same density.

    Pruning begins after a twelfth of the training and reaches its target after two thirds, every
    100 steps in between as in that paper.
    """
    return replace(
        config,
        name=f"{config.name}-gradual-by-layer",
        method=GradualPruning(density=density, penalty="lasso", every=every, per_layer=True),
    )

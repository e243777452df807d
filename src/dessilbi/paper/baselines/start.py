"""A masked network as a run of its own, whatever chose the mask."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from dessilbi.lab.analysis.networks import trained_network
from dessilbi.lab.run.checkpoint import model_tensors
from dessilbi.lab.run.config import (
    FreezeConfig,
    NestedConfig,
    PruneConfig,
    ScheduleConfig,
    StartConfig,
    StopConfig,
)
from dessilbi.lab.run.files import INIT
from dessilbi.lab.training.build import network_without_data
from dessilbi.lab.training.schedule import lr_factor
from dessilbi.lab.training.start import write_start
from dessilbi.path.names import weights_with_twin

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor, nn

    from dessilbi.lab.run.config import Config, OptimizerConfig
    from dessilbi.lab.run.directory import RunDir
    from dessilbi.path import Mask

Weights = Literal["init", "last", "fresh"]

FRESH_SEED = 10_000
"""Added to a run's seed for new weights, so that they are no seed of the table."""


def density(mask: Mask, model: nn.Module) -> float:
    """Fraction of the weights that may have a twin that a mask keeps; those it does not name stay.

    Masks of different methods name different parameters; this is the number to compare them by.
    """
    weights = weights_with_twin(model)
    kept = sum(
        int(mask[name].sum()) if name in mask.names else w.numel() for name, w in weights.items()
    )
    return kept / sum(w.numel() for w in weights.values())


def retrain(
    parent: RunDir,
    mask: Mask,
    runs: Path,
    *,
    method: str,
    words: str,
    weights: Weights,
    epochs: int | None = None,
    schedule: ScheduleConfig | None = None,
    optimizer: OptimizerConfig | None = None,
) -> Config:
    """The run of a masked network, its mask held; leaves mask and weights in its run directory.

    Args:
        parent: the run that the mask was found in, whose settings are taken over.
        mask: which weights stay.
        runs: folder of the run directories.
        method: name of the method, part of the run's name.
        words: how the mask was chosen.
        weights: ``init``, the parent's initial ones; ``last``, its trained ones, which are
            fine-tuned at the last learning rate; ``fresh``, new ones of another seed.
        epochs: as long as the parent by default, a quarter of that for fine-tuning.
        schedule: the parent's by default; fine-tuning has none.
        optimizer: the parent's by default.
    """
    before = parent.config()
    config = replace(
        before,
        name=before.name if before.name.endswith(f"-{method}") else f"{before.name}-{method}",
        stop=StopConfig(),
        nested=NestedConfig(),
        prune=PruneConfig(),
        freeze=FreezeConfig(),
        keep=(),
        start=None,
        schedule=schedule or before.schedule,
        optimizer=optimizer or before.optimizer,
    )
    if weights == "last":
        config = replace(at_the_last_rate(config), epochs=max(before.epochs // 4, 1))
    if epochs is not None:
        config = replace(config, epochs=epochs)
    start = StartConfig(parent=parent.path.name, mask=words, weights=weights)
    return write_start(config, start, _tensors(parent, weights), mask, runs)


def at_the_last_rate(config: Config) -> Config:
    """The configuration with the learning rate that its schedule ends with, constant."""
    last = lr_factor(
        config.schedule,
        step=max(config.epochs - 1, 0),
        steps_per_epoch=1,
        epochs=config.epochs,
    )
    optimizer = replace(config.optimizer, lr=config.optimizer.lr * (last if last > 0 else 1))
    return replace(config, optimizer=optimizer, schedule=ScheduleConfig(kind="constant"))


def _tensors(parent: RunDir, weights: Weights) -> dict[str, Tensor]:
    if weights == "init":
        return parent.read_tensors(INIT)
    if weights == "last":
        return model_tensors(trained_network(parent))
    config = parent.config()
    return model_tensors(network_without_data(config, seed=config.seed + FRESH_SEED))

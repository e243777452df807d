"""A subnetwork of a finished run as a run of its own: chosen, started, its mask held."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from dessilbi.compaction import Size
from dessilbi.lab.analysis.networks import shipped, trained_network
from dessilbi.lab.run.checkpoint import OPTIMIZER, model_tensors
from dessilbi.lab.run.config import (
    Config,
    ScheduleConfig,
    StartConfig,
    StopConfig,
)
from dessilbi.lab.run.directory import RunDir, RunError
from dessilbi.lab.run.files import INIT, LAST, PATH, checkpoint_name
from dessilbi.lab.run.methods import Dense
from dessilbi.lab.training.build import example_inputs, input_shape, network_without_data
from dessilbi.lab.training.schedule import lr_factor
from dessilbi.lab.training.start import write_start
from dessilbi.path import Mask, SolutionPath
from dessilbi.subnet.project import masked_weights, zero_outside

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from dessilbi.lab.analysis.choice import Choice, Retrain
    from dessilbi.lab.run.config import OptimizerConfig


def open_path(run: RunDir) -> SolutionPath:
    """The path that a run recorded."""
    if not (run.path / PATH).is_file():
        raise RunError(f"{run.path} has no {PATH}: only runs of DessiLBI record one")
    return SolutionPath.load(run.path / PATH)


def prepare(parent: RunDir, choice: Choice, how: Retrain, runs: Path, **options: Any) -> Config:
    """Make the run of a point of a run's path; see :func:`retrain` for the options."""
    mask, words = choice.mask(open_path(parent), parent.config().stop)
    return retrain(parent, mask, words, how, runs, **options)


def retrain(
    parent: RunDir,
    mask: Mask,
    words: str,
    how: Retrain,
    runs: Path,
    *,
    name: str | None = None,
    epochs: int | None = None,
    seed: int | None = None,
    fresh_seed: int | None = None,
    optimizer: OptimizerConfig | None = None,
) -> Config:
    """Make the run directory of a subnetwork, mask and weights inside, and return its config.

    Args:
        parent: the run that the mask was found in, whose settings are taken over.
        mask: which weights stay; it is held while training.
        words: how it was chosen.
        how: where the weights come from, and how they are trained.
        runs: folder of the new run directory.
        name: what is added to the parent's name; by default how it is trained.
        epochs: training epochs; by default as long as the parent (scratch), what the parent had
            left (rewind), or a quarter (finetune).
        seed: order of the images; the parent's by default.
        fresh_seed: makes new initial weights (scratch); by default they are the parent's.
        optimizer: trains the subnetwork; the parent's by default, which goes on with V and momentum
            as they were where the network is rewound or fine-tuned.
    """
    before = parent.config()
    own = optimizer in (None, before.optimizer)
    twin = own and before.optimizer.name == "dessilbi"
    weights, source = _tensors(parent, how, mask, with_twin=twin, fresh_seed=fresh_seed)
    if twin and how.how in ("rewind", "finetune"):
        optimizer = _coupled_as(parent, before.optimizer)
    name = how.how if name is None else name
    config = replace(
        before,
        name=before.name if before.name.endswith(f"-{name}") else f"{before.name}-{name}",
        stop=StopConfig(),
        method=Dense(),
        keep=(),
        epochs=0 if how.how == "one-shot" else _epochs(before, how, mask, epochs),
        seed=before.seed if seed is None else seed,
        optimizer=optimizer or before.optimizer,
    )
    if how.how == "scratch-b" and before.epochs:
        stretch = config.epochs / before.epochs
        config = replace(config, schedule=_stretched(before.schedule, stretch))
    if how.how == "finetune":
        config = _at_the_last_rate(config, before, done=_epochs_done(parent))
    start = StartConfig(
        parent=parent.path.resolve().name,  # also of `dessilbi subnet .`
        mask=words,
        weights=source,
        epoch=how.epoch,
    )
    return write_start(config, start, weights, mask, runs)


def _coupled_as(parent: RunDir, optimizer: OptimizerConfig) -> OptimizerConfig:
    """Whoever goes on with V is coupled to Gamma as before, however long it trains."""
    nu = next((record["nu"] for record in parent.records() if "nu" in record), None)
    return optimizer if nu is None else replace(optimizer, nu=nu, tau=None)


def _tensors(
    parent: RunDir, how: Retrain, mask: Mask, *, with_twin: bool, fresh_seed: int | None
) -> tuple[dict[str, Tensor], str]:
    """The weights to begin with, and their name.

    A network that goes on from where it was takes V and momentum along: with V = 0 the coupling
    would pull its weights to zero until Gamma has grown anew, which at a late learning rate it does
    not.
    """
    if how.how in ("scratch", "scratch-b"):
        if fresh_seed is not None:
            fresh = network_without_data(parent.config(), seed=fresh_seed)
            return model_tensors(fresh), "fresh"
        return parent.read_tensors(INIT), "init"
    name, words = LAST, "last"
    if how.how == "rewind":
        name, words = checkpoint_name(how.epoch), f"epoch {how.epoch}"
    checkpoint = parent.load(name)
    if checkpoint is None:
        way_out = "train it first"
        if how.how == "rewind":
            way_out = f"train it with --keep {how.epoch} to rewind there"
        raise RunError(f"{parent.path} has no {name}; {way_out}")
    tensors = model_tensors(trained_network(parent, mask=mask, checkpoint=checkpoint))
    if with_twin and how.how in ("rewind", "finetune"):
        state = checkpoint.part("optimizer")
        tensors |= {f"{OPTIMIZER}{name}": tensor for name, tensor in state.items()}
    return tensors, words


def _epochs(before: Config, how: Retrain, mask: Mask, given: int | None) -> int:
    if given is not None:
        return given
    if how.how == "rewind":
        return max(before.epochs - how.epoch, 1)
    if how.how == "finetune":
        return max(before.epochs // 4, 1)
    if how.how == "scratch":
        return before.epochs  # Scratch-E: the epochs of the dense training
    # Scratch-B: its multiply-adds, at most twice the epochs (Liu et al., Rethinking, ICLR 2019).
    return round(before.epochs * min(2.0, 1 / max(share_of_macs(before, mask), 1e-9)))


def share_of_macs(config: Config, mask: Mask) -> float:
    """Multiply-adds of the masked network's nonzero weights as a fraction of the dense one's.

    A filter that is gone takes the weights of the next layer that read it along.
    """
    model = network_without_data(config).eval()
    image = example_inputs(input_shape(config), getattr(torch, config.dtype))
    dense = Size.of(model, (image,)).nonzero_macs
    zero_outside(masked_weights(model, mask))
    return shipped(model, mask, image).size.nonzero_macs / dense


def _epochs_done(parent: RunDir) -> int:
    """Epochs that the parent trained, which are fewer if it stopped early."""
    last = parent.load(LAST)
    return 0 if last is None else int(last.state["epoch"])


def _at_the_last_rate(config: Config, before: Config, done: int) -> Config:
    """Fine-tuning stays where the parent's schedule was in its last epoch."""
    last = lr_factor(
        before.schedule,
        step=max(before.epochs_before + done - 1, 0),
        steps_per_epoch=1,
        epochs=before.epochs_before + before.epochs,
    )
    rate = config.optimizer.lr * (last if last > 0 else 1)
    return replace(
        config,
        optimizer=replace(config.optimizer, lr=rate),
        schedule=ScheduleConfig(kind="constant"),
    )


def _stretched(schedule: ScheduleConfig, factor: float) -> ScheduleConfig:
    """The same course of the learning rate over more epochs."""
    return replace(
        schedule,
        step_size=max(round(schedule.step_size * factor), 1),
        milestones=tuple(round(m * factor) for m in schedule.milestones),
    )

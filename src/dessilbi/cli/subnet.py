"""``dessilbi path`` and ``dessilbi subnet``: look at a run's path, and use a point of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from dessilbi.cli.options import Flat
from dessilbi.cli.train import competitor, run_to_the_end
from dessilbi.lab.analysis.choice import Choice, Retrain, settled_epoch
from dessilbi.lab.run.directory import RunDir
from dessilbi.lab.run.options import RunOptions

if TYPE_CHECKING:
    from dessilbi.path import SolutionPath


def path(run: tyro.conf.Positional[Path]) -> None:
    """What entered Gamma, epoch by epoch.

    Args:
        run: a run directory.
    """
    print_path(RunDir.open(run))


def print_path(run: RunDir) -> None:
    """Print a line an epoch, and a line a layer."""
    from dessilbi.lab.analysis.subnetworks import open_path
    from dessilbi.lab.data.text import is_text

    found = open_path(run)
    records = {record["epoch"]: record for record in run.records()}
    columns = {"accuracy": "dense", "sparse_accuracy": "sparse", "recalibrated_accuracy": "recal."}
    digits = 2
    if is_text(run.config().data.name):
        print("dense and sparse: loss on held-out text, in nats a character")
        columns, digits = {"loss": "dense", "sparse_loss": "sparse"}, 4
    heads = "".join(f"{head:>8}" for head in columns.values())
    print(f"{'epoch':>6}{'density':>9}{heads}{'gap':>9}")
    settled = settled_epoch(found, run.config().stop)
    for epoch in found.epochs:
        record = records.get(epoch, {})
        cells = "".join(
            f"{record[name]:8.{digits}f}" if name in record else f"{'-':>8}" for name in columns
        )
        mark = "   settled" if epoch == settled else ""
        print(f"{epoch:6}{found.density(epoch):9.4f}{cells}{found.gap(epoch):9.3f}{mark}")
    print(_entries(found))


def _entries(found: SolutionPath) -> str:
    lines = ["\nlayer: groups that entered, first and last step of entry"]
    for layer in found.layers:
        steps = found.entry_steps(layer.name)
        inside = steps[steps >= 0]
        if not len(inside):
            lines.append(f"  {layer.name}: none of {layer.groups}")
            continue
        lines.append(
            f"  {layer.name}: {len(inside)} of {layer.groups}, "
            f"step {int(inside.min())} to {int(inside.max())}"
        )
    return "\n".join(lines)


def subnet(
    run: tyro.conf.Positional[Path],
    choice: Flat[Choice],
    options: Flat[RunOptions],
    retrain: str | None = None,
    epochs: int | None = None,
    seed: int | None = None,
    optimizer: Annotated[str | None, tyro.conf.arg(name="with")] = None,
    threads: int | None = None,
) -> None:
    """A subnetwork of a run as a run of its own.

    Without --retrain the weights of the run are used as they are (one-shot). The mask is held
    exactly while training. Running the same command again resumes it.

    Args:
        run: the run directory whose path is chosen from.
        choice: which point of it.
        options: where and how it runs.
        retrain: scratch (same initialisation, same epochs), scratch-b (same multiply-adds),
            rewind:EPOCH (a kept epoch), finetune (last weights, last learning rate).
        epochs: training epochs; by default what --retrain implies.
        seed: order of the images; the run's own by default.
        optimizer: train with another optimizer (sgd-mom-wd, adamw, ...) instead of the run's.
        threads: threads of torch on the CPU; by default all cores.
    """
    from dessilbi.lab.analysis.subnetworks import prepare
    from dessilbi.lab.training.distributed import is_main

    config = prepare(
        RunDir.open(run),
        choice,
        Retrain.parse(retrain),
        options.runs,
        epochs=epochs,
        seed=seed,
        optimizer=None if optimizer is None else competitor(optimizer),
    )
    made = run_to_the_end(config, options, threads)
    if not is_main():
        return
    first = made.records()[0]
    assert config.start is not None
    print(
        f"{config.start.mask}: {first['density']:.2%} of the weights, values of "
        f"{config.start.weights}; before training {first['accuracy']:.2f} %, "
        f"{first['recalibrated_accuracy']:.2f} % with BatchNorm recalibrated, "
        f"loss {first['loss']:.4f}",
    )

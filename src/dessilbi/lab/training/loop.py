"""The training loop: trains a configuration, goes on where an earlier attempt stopped."""

from __future__ import annotations

import shutil
import time
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

import torch

from dessilbi.lab.data import batches
from dessilbi.lab.run.directory import RunDir
from dessilbi.lab.run.files import LAST
from dessilbi.lab.run.options import RunOptions
from dessilbi.lab.training.distributed import join_world, pick_device, seed_rank
from dessilbi.lab.training.errors import Interrupted
from dessilbi.lab.training.evaluate import measure, prediction_loss
from dessilbi.lab.training.state import Training

if TYPE_CHECKING:
    from dessilbi.lab.run.config import Config
    from dessilbi.lab.run.files import TimingRecord
    from dessilbi.lab.training.display import Display


def train(
    config: Config, options: RunOptions | None = None, display: Display | None = None
) -> RunDir:
    """Train to the last epoch of ``config`` and return the run directory.

    A run that was interrupted anywhere continues from its last checkpoint and ends as if it had
    not been, bit for bit; a finished one returns at once.

    Args:
        config: what to train.
        options: where.
        display: shows how it goes.

    Raises:
        Interrupted: stopped by Ctrl-C or SIGTERM, saved.
        TrainingError: the loss is not finite any more.
        RunError: the run directory cannot be written, or is in use.
        DataError, ModelError, ConfigError: what the configuration asks for cannot be had.
    """
    options = options or RunOptions()
    device = pick_device(options.device)
    with ExitStack() as stack:
        world = stack.enter_context(join_world(device))
        run = RunDir(options.runs / config.run_name)
        new = world.is_main and not run.path.exists()
        if world.is_main:
            run = RunDir.of(config, options.runs)
            stack.enter_context(run.lock())
        world.wait()
        if not _finished(run, config):
            try:
                t = Training.make(config, options, run, device, world, display)
            except Exception:
                if new:  # refused before it began: there is nothing to keep
                    shutil.rmtree(run.path, ignore_errors=True)
                raise
            run_to_the_end(t)
        world.wait()
    return run


def _finished(run: RunDir, config: Config) -> bool:
    last = run.load(LAST)
    if last is None:
        return False
    return bool(last.state["epoch"] >= config.epochs or last.state["settled"])


def run_to_the_end(t: Training) -> None:
    """From the last checkpoint, or from the beginning."""
    t.begin()
    t.display.start(t.config, t.run, t.progress, t.data)
    with t.stop:
        while not t.done:
            started, images = time.perf_counter(), _images_left(t)
            train_epoch(t)
            trained = time.perf_counter()
            record = measure(t)
            timing: TimingRecord = {
                "epoch": record["epoch"],
                "images": images,
                "train_seconds": trained - started,
                "evaluate_seconds": time.perf_counter() - trained,
            }
            t.progress.next_epoch()
            for callback in t.callbacks:
                callback.on_epoch_end(t, record, timing)
            t.display.epoch(record, timing)
            if t.stop.made and not t.done:
                raise Interrupted(
                    f"stopped after epoch {t.progress.epoch} of {t.config.epochs}; "
                    "run the same command again to continue"
                )


def _images_left(t: Training) -> int:
    return max(0, len(t.data.train) - t.progress.batch * t.config.batch_size)


def train_epoch(t: Training) -> None:
    """The steps of an epoch that are still to be made."""
    config, progress, world = t.config, t.progress, t.world
    t.net.train()
    t.loss_sum = torch.tensor(progress.loss, dtype=torch.float64, device=t.device)
    t.correct = torch.tensor(progress.correct, device=t.device)
    if world.size > 1:
        seed_rank(config.seed, progress.epoch, world.rank)
    for callback in t.callbacks:
        callback.on_epoch_start(t)
    stream = batches(
        t.data.train,
        config.batch_size,
        seed=config.seed,
        epoch=progress.epoch,
        augment=t.data.augmentation if config.data.augment else None,
        rank=world.rank,
        world_size=world.size,
        start=progress.batch,
    )
    for x, y in stream:
        t.set_lr(t.step)
        t.optimizer.zero_grad()  # not before: the last gradients explain a loss of NaN
        # DDP averages over ranks; a rank's share of the global batch is its weight.
        share = len(y) * world.size / min(config.batch_size, _images_left(t))
        weight = (share if world.size > 1 else 1.0) * t.precision.gradient_factor
        loss_of = partial(prediction_loss, labels=y, label_smoothing=config.label_smoothing)
        with t.precision.autocast():
            logits, loss = t.method.backward(t.net, x, loss_of, weight)
        if t.device.type == "cpu":
            t.refuse_nonfinite(loss)
        t.precision.step(t.optimizer)
        with torch.no_grad():
            t.loss_sum += loss.detach() * y.numel()
            t.correct += (logits.argmax(-1) == y).sum()
        progress.batch += 1
        progress.labels += y.numel()
        t.display.batch(progress, t.steps_per_epoch)
        for callback in t.callbacks:
            callback.on_step_end(t)
    t.refuse_nonfinite()
    t.sum_up()
    for callback in t.callbacks:
        callback.on_epoch_trained(t)

"""Train one configuration, leave a run directory, and go on where an earlier attempt stopped."""

from __future__ import annotations

import math
import shutil
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from dessilbi.cli.memory import keep_freed_memory
from dessilbi.errors import DessilbiError
from dessilbi.lab.data import batches, count_batches
from dessilbi.lab.run.checkpoint import Position, load_model, model_tensors, restore, take
from dessilbi.lab.run.config import ConfigError
from dessilbi.lab.run.directory import RunDir, RunError, clear_errors
from dessilbi.lab.run.environment import describe
from dessilbi.lab.run.files import (
    BEST,
    ENVIRONMENT,
    EVENTS,
    INIT,
    LAST,
    METRICS,
    PATH,
    TIMING,
    checkpoint_name,
)
from dessilbi.lab.training.build import evaluated_split, fresh_network, load_data
from dessilbi.lab.training.callbacks import Companions
from dessilbi.lab.training.display import Display, Silent
from dessilbi.lab.training.distributed import Team, pick_device, seed_rank, team
from dessilbi.lab.training.errors import TrainingError, not_finite
from dessilbi.lab.training.evaluate import Score, judge
from dessilbi.lab.training.schedule import lr_factor, set_lr
from dessilbi.lab.training.shared_batchnorm import share_batchnorm
from dessilbi.lab.training.start import load_start, take_up
from dessilbi.lab.training.step_check import StepCheck
from dessilbi.lab.training.stop_request import StopRequest
from dessilbi.lab.training.tensorboard import write_events
from dessilbi.optim import DessiLBI
from dessilbi.paper.optimizers import make_optimizer
from dessilbi.path import Mask, PathRecorder, SolutionPath, StabilityRule
from dessilbi.subnet import HeldMask

if TYPE_CHECKING:
    from collections.abc import Callable

    from dessilbi.lab.run.config import Config


class Interrupted(DessilbiError, RuntimeError):  # noqa: N818 - not an error
    """Stopped on request; running the same configuration again continues."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where and how a run happens; none of it changes a number of the result."""

    runs: Path = Path("runs")
    """Folder of the run directories."""
    data_dir: Path | None = None
    """Where the data lies; also $DESSILBI_DATA and the user cache are searched."""
    download: bool = False
    """Fetch the data if it is not found."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1, ..."""
    tensorboard: bool = False
    """Also write TensorBoard events into the run directory."""
    save_minutes: float = field(default=10.0)
    """Save within an epoch this often (a single process; several save after each epoch)."""
    check_step: bool = False
    """Before each epoch estimate the curvature on a batch; warn if lr is above the safe step."""


def train(
    config: Config,
    place: Place | None = None,
    display: Display | None = None,
    *,
    trainer: Callable[..., Trainer] | None = None,
) -> RunDir:
    """Train to the last epoch of ``config`` and return the run directory.

    A run that was interrupted anywhere continues from its last checkpoint and ends as if it had
    not been, bit for bit; a finished one returns at once.

    Args:
        config: what to train.
        place: where.
        display: who is told.
        trainer: makes the trainer, :class:`Trainer` by default; a method that changes how a network
            is trained makes one of its own.

    Raises:
        Interrupted: stopped by Ctrl-C or SIGTERM, saved.
        TrainingError: the loss is not finite any more.
        RunError: the run directory cannot be written, or is in use.
        DataError, ModelError, ConfigError: what the configuration asks for cannot be had.
    """
    place = place or Place()
    device = pick_device(place.device)
    if device.type == "cpu":
        keep_freed_memory()
    with ExitStack() as stack:
        crew = stack.enter_context(team(device))
        run = RunDir(place.runs / config.run_name)
        new = crew.leads and not run.path.exists()
        if crew.leads:
            run = RunDir.of(config, place.runs)
            stack.enter_context(run.lock())
        crew.wait()
        if not _finished(run, config):
            make = trainer or Trainer
            try:
                made = make(config, place, run, device, crew, display or Silent())
            except Exception:
                if new:  # refused before it began: there is nothing to keep
                    shutil.rmtree(run.path, ignore_errors=True)
                raise
            made.run_to_the_end()
        crew.wait()
    return run


def _finished(run: RunDir, config: Config) -> bool:
    last = run.load(LAST)
    if last is None:
        return False
    return bool(last.state["epoch"] >= config.epochs or last.state.get("settled"))


class Trainer:
    """A run under way."""

    def __init__(
        self,
        config: Config,
        place: Place,
        run: RunDir,
        device: torch.device,
        crew: Team,
        display: Display,
    ) -> None:
        if place.tensorboard:
            import_module("torch.utils.tensorboard")  # if it is missing, better to know now
        self.config, self.place, self.run, self.crew = config, place, run, crew
        self.device = device
        self.display: Display = display if crew.leads else Silent()
        self.data = load_data(config, place.data_dir, place.download, device)
        self.model = fresh_network(config, self.data).to(device)
        self.optimizer = make_optimizer(self.model, config.optimizer, self.data.shape)
        self.position = Position()
        self.judged, self.judged_on = evaluated_split(self.data)
        self.net = self._wrapped()
        self.batches = count_batches(len(self.data.train), config.batch_size)
        steps = config.epochs * self.batches
        example = next(self.model.parameters()).new_zeros(2, *self.data.shape)
        self.companions = Companions(config, self.model, self.optimizer, steps, example)
        self.recorder: PathRecorder | None = None
        if config.stop.when_stable and not isinstance(self.optimizer, DessiLBI):
            raise ConfigError(
                f"--stop-when-stable watches Gamma, which optimizer {config.optimizer.name} has not"
            )
        self.rule = StabilityRule(config.stop.window, config.stop.tolerance, config.stop.distance)
        self.stop = StopRequest()
        self.check_step: StepCheck | None = None
        if place.check_step:
            say = self.display.warn
            self.check_step = StepCheck(
                self.model, self.optimizer, self.data.train, config, crew.size, say
            )

    def _wrapped(self) -> nn.Module:
        if self.crew.size == 1:
            return self.model
        # Statistics over the global batch, as one process would take them.
        self.model = share_batchnorm(self.model, self.device)
        devices = [self.device] if self.device.type == "cuda" else None
        return DistributedDataParallel(self.model, device_ids=devices)

    # ------------------------------------------------------------------ the run

    def run_to_the_end(self) -> None:
        """From the last checkpoint, or from the beginning."""
        self._begin()
        self.display.start(self.config, self.run, self.position, self.data)
        with self.stop:
            while self.position.epoch < self.config.epochs and not self.position.settled:
                began, start = time.perf_counter(), self.position.batch
                self._train_epoch()
                trained = time.perf_counter()
                metrics = self._measure()
                timing = {
                    "epoch": metrics["epoch"],
                    "images": max(0, len(self.data.train) - start * self.config.batch_size),
                    "train_seconds": trained - began,
                    "evaluate_seconds": time.perf_counter() - trained,
                }
                self._finish_epoch(metrics, timing)

    def _begin(self) -> None:
        held, mask = None, Mask({})
        if self.config.start is not None:
            weights, state, mask = load_start(self.run, self.config.start)
            load_model(self.model, weights)
            held = HeldMask(self.model, mask, self.optimizer)
            if state:
                take_up(self.optimizer, state, self.model, mask)
        last = self.run.load(LAST)
        if last is not None:
            try:
                self.position = restore(last, self.model, self.optimizer)
                self.companions.restore(last)
            except (KeyError, ValueError, RuntimeError) as error:
                raise RunError(
                    f"{self.run.path / LAST} does not fit this model and optimizer ({error}); if "
                    f"their code has changed since, move {self.run.path} away to start anew"
                ) from error
            self._set_lr(max(self._steps() - 1, 0))
        if held is not None:
            held.apply()
        self._record_path(resumed=last is not None)
        if last is None and self.crew.leads:
            self.run.write_tensors(INIT, model_tensors(self.model))
            self.run.write(ENVIRONMENT, describe(self.device, self.crew.size))
            if 0 in self.config.keep:
                self._save(checkpoint_name(0))
            if self.config.start is not None:
                for name in (METRICS, TIMING):
                    self.run.forget_after(name, -1)  # of an attempt that ended right here
                self.run.append(METRICS, {"epoch": 0, **self._judge(mask)})
                self.run.append(TIMING, {"epoch": 0, "images": 0, "train_seconds": 0.0})
            self._save(LAST)
        if self.crew.leads:
            for name in (METRICS, TIMING):
                self.run.forget_after(name, self.position.epoch)
        self.crew.wait()

    def _record_path(self, *, resumed: bool) -> None:
        if not self.crew.leads or not isinstance(self.optimizer, DessiLBI):
            return
        if not any(True for _ in self.optimizer.twins()):
            return
        if not resumed:
            self.recorder = PathRecorder(self.model, self.optimizer, nested=self.companions.nested)
            self.recorder.record(0)
        else:
            try:
                path = SolutionPath.load(self.run.path / PATH)
                path = path.truncated(step=self.position.path_step, epoch=self.position.epoch)
                self.recorder = PathRecorder(
                    self.model, self.optimizer, path, nested=self.companions.nested
                )
            except (OSError, ValueError) as error:
                raise RunError(
                    f"cannot continue the path of {self.run.path} ({error}); "
                    "move the folder away to start anew"
                ) from error
        for epoch in self.recorder.path.epochs if self.config.stop.when_stable else ():
            self.rule.update(self.recorder.path.support(epoch))

    def _train_epoch(self) -> None:
        config, position, crew = self.config, self.position, self.crew
        augment = self.data.augmentation if config.data.augment else None
        images = len(self.data.train)
        self.net.train()
        self.companions.begin_epoch(position.epoch)
        if crew.size > 1:
            seed_rank(config.seed, position.epoch, crew.rank)
        if self.check_step is not None:
            self._set_lr(self._steps())
            self.check_step(position.epoch)
        loss_sum = torch.tensor(position.loss, dtype=torch.float64, device=self.device)
        correct = torch.tensor(position.correct, device=self.device)
        saved = time.perf_counter()
        stream = batches(
            self.data.train,
            config.batch_size,
            seed=config.seed,
            epoch=position.epoch,
            augment=augment,
            rank=crew.rank,
            world_size=crew.size,
            start=position.batch,
        )
        for x, y in stream:
            step = self._steps()
            self._set_lr(step)
            self.optimizer.zero_grad()  # not before: the last gradients explain a loss of NaN
            # DDP averages over ranks; a rank's share of the global batch is its weight.
            whole = min(config.batch_size, images - position.batch * config.batch_size)
            share = len(y) * crew.size / whole if crew.size > 1 else 1.0
            judge_by = partial(cross_entropy, target=y)
            logits, loss = self.companions.backward(self.net, x, judge_by, share)
            if self.device.type == "cpu" and not math.isfinite(loss.item()):
                self._explode("the loss is", step)
            self.optimizer.step()
            with torch.no_grad():
                loss_sum += loss.detach() * len(y)
                correct += (logits.argmax(1) == y).sum()
            position.batch += 1
            position.images += len(y)
            now = time.perf_counter()
            self.display.batch(position, self.batches)
            late = crew.size == 1 and now - saved > 60 * self.place.save_minutes
            if self.stop.made or late:
                position.loss, position.correct = float(loss_sum), int(correct)
                self._pause()
                saved = now
        position.loss, position.correct = float(loss_sum), int(correct)
        self._refuse_nonfinite()

    def _steps(self) -> int:
        """Steps made so far."""
        return self.position.epoch * self.batches + self.position.batch

    def _set_lr(self, step: int) -> None:
        config = self.config
        before = 0 if config.start is None else config.start.epoch  # a rewound schedule goes on
        factor = lr_factor(
            config.schedule,
            step=before * self.batches + step,
            steps_per_epoch=self.batches,
            epochs=before + config.epochs,
        )
        set_lr(self.optimizer, factor)

    def _refuse_nonfinite(self) -> None:
        """Let no broken network take the place of the last good checkpoint."""
        step = self._steps() - 1
        if not math.isfinite(self.position.loss):  # on a GPU the loss is not read every step
            self._explode("the loss is", step)
        if not all(bool(p.isfinite().all()) for p in self.model.parameters()):
            self._explode("the weights are", step)

    def _pause(self) -> None:
        if self.crew.size == 1:
            self._refuse_nonfinite()
            self._save(LAST)
        if self.stop.made:
            raise Interrupted(
                f"stopped in epoch {self.position.epoch + 1} of {self.config.epochs}; "
                "run the same command again to continue"
            )

    def _explode(self, what: str, step: int) -> None:
        found = not_finite(what, self.model, self.optimizer, step, step // self.batches + 1)
        raise TrainingError(f"{found} The last good checkpoint is kept in {self.run.path / LAST}")

    # ------------------------------------------------------------------ after an epoch

    def _measure(self) -> dict[str, Any]:
        position = self.position
        loss, correct, images = self.crew.sum(
            [position.loss, position.correct, position.images], self.device
        )
        trained = Score(loss, int(correct), int(images))
        return {
            "epoch": position.epoch + 1,
            **self._judge(),
            "lr": self.optimizer.param_groups[0]["lr"],
            "train_loss": trained.mean_loss,
            "train_accuracy": trained.accuracy,
        }

    def _judge(self, mask: Mask | None = None) -> dict[str, Any]:
        found = judge(self.model, self.optimizer, self.judged, self.data.train, mask)
        pruning = self.companions.pruning
        if pruning is not None and pruning.mask is not None:
            found |= {
                "density": pruning.mask.density,
                "densities": pruning.mask.layer_densities(),
            }
        return {"judged_on": self.judged_on, **found}

    def _finish_epoch(self, metrics: dict[str, Any], timing: dict[str, Any]) -> None:
        position = self.position
        best = metrics["accuracy"] > position.best
        position.best = max(position.best, metrics["accuracy"])
        position.next_epoch()
        if self.recorder is not None:
            loss = metrics["train_loss"]
            self.recorder.record(position.epoch, loss=loss)
            if self.config.stop.when_stable:
                support = self.recorder.path.support(position.epoch)
                position.settled = self.rule.update(support)
        position.settled = bool(self.crew.sum([float(position.settled)], self.device)[0])
        if self.crew.leads:
            self.run.append(METRICS, metrics)
            self.run.append(TIMING, timing)
            if self.place.tensorboard:
                with clear_errors(self.run.path / EVENTS):
                    write_events(self.run.path / EVENTS, metrics)
            if best:
                self._save(BEST)
            if position.epoch in self.config.keep:
                self._save(checkpoint_name(position.epoch))
            self._save(LAST)
        self.display.epoch(metrics, timing)
        more = position.epoch < self.config.epochs and not position.settled
        if self.stop.made and more:
            raise Interrupted(
                f"stopped after epoch {position.epoch} of {self.config.epochs}; "
                "run the same command again to continue"
            )

    def _save(self, name: str) -> None:
        if self.recorder is not None:
            # The path first: a checkpoint can cut a path that is ahead of it, not lengthen one.
            self.position.path_step = self.recorder.step
            with clear_errors(self.run.path / PATH):
                self.recorder.path.save(self.run.path / PATH)
        checkpoint = take(self.model, self.optimizer, self.position)
        checkpoint.tensors.update(self.companions.tensors())
        self.run.save(name, checkpoint)

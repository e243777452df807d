"""A run under way: what the training loop and its callbacks work on."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

import torch
from torch.nn.parallel import DistributedDataParallel

from dessilbi.lab.data import count_batches
from dessilbi.lab.run.checkpoint import Progress, load_checkpoint, load_model, make_checkpoint
from dessilbi.lab.run.config import ConfigError
from dessilbi.lab.run.directory import RunError
from dessilbi.lab.run.files import LAST
from dessilbi.lab.training.build import (
    evaluated_split,
    example_inputs,
    fresh_network,
    laid_out_for,
    load_data,
)
from dessilbi.lab.training.callbacks import Callback, make_callbacks, method_callback
from dessilbi.lab.training.display import Display, Silent
from dessilbi.lab.training.errors import TrainingError, not_finite
from dessilbi.lab.training.fused import kernel_builds
from dessilbi.lab.training.optimizers import make_optimizer
from dessilbi.lab.training.precision import Precision
from dessilbi.lab.training.schedule import lr_factor, run_factor, set_lr
from dessilbi.lab.training.shared_batchnorm import share_batchnorm
from dessilbi.lab.training.start import load_start, take_up
from dessilbi.lab.training.stop_request import StopRequest

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

    from dessilbi.lab.data import Dataset, Split
    from dessilbi.lab.run.config import Config
    from dessilbi.lab.run.directory import RunDir
    from dessilbi.lab.run.options import RunOptions
    from dessilbi.lab.training.distributed import World
    from dessilbi.path import Mask


@dataclass
class Training:
    """A run under way; :meth:`make` builds it, :meth:`begin` puts weights and state in place."""

    config: Config
    options: RunOptions
    run: RunDir
    device: torch.device
    world: World
    display: Display
    data: Dataset
    evaluated: Split
    evaluated_on: str
    """Which split that is: test or validation."""
    model: nn.Module
    net: nn.Module
    """The model as it is to be called: compiled, wrapped if several processes train it."""
    optimizer: Optimizer
    precision: Precision
    steps_per_epoch: int
    progress: Progress = field(default_factory=Progress)
    fixed_mask: Mask | None = None
    """The mask of a subnetwork's run."""
    method: Callback = field(default_factory=Callback)
    """The callback of the configuration's method; it makes the passes."""
    callbacks: list[Callback] = field(default_factory=list)
    """All of them, the method's among them."""
    stop: StopRequest = field(default_factory=StopRequest)
    loss_sum: Tensor = field(default_factory=lambda: torch.zeros((), dtype=torch.float64))
    correct: Tensor = field(default_factory=lambda: torch.zeros((), dtype=torch.int64))
    """Sums of the epoch under way, on the device: reading them waits for it."""

    @classmethod
    def make(
        cls,
        config: Config,
        options: RunOptions,
        run: RunDir,
        device: torch.device,
        world: World,
        display: Display | None,
    ) -> Training:
        """Everything that the configuration asks for."""
        data = load_data(config, options.data_dir, options.download, device)
        model = fresh_network(config, data).to(device)
        data = laid_out_for(model, data, half=config.precision != "full")
        steps_per_epoch = count_batches(len(data.train), config.batch_size)
        optimizer = make_optimizer(
            model, config.optimizer, data.shape, total_factor=run_factor(config, steps_per_epoch)
        )
        net = _compiled(model, device, world) if config.compile else model
        if world.size > 1:
            # Statistics over the global batch, as one process would take them.
            model = share_batchnorm(model, device)
            net = DistributedDataParallel(
                model, device_ids=[device] if device.type == "cuda" else None
            )
        t = cls(
            config=config,
            options=options,
            run=run,
            device=device,
            world=world,
            display=display if display is not None and world.is_main else Silent(),
            data=data,
            evaluated=(split := evaluated_split(data))[0],
            evaluated_on=split[1],
            model=model,
            net=net,
            optimizer=optimizer,
            precision=Precision(config, device),
            steps_per_epoch=steps_per_epoch,
        )
        t.method = method_callback(t)
        t.callbacks = make_callbacks(t)
        return t

    @property
    def steps(self) -> int:
        """Optimizer steps of the whole run."""
        return max(self.config.epochs * self.steps_per_epoch, 1)

    @property
    def step(self) -> int:
        """Steps made so far."""
        return self.progress.epoch * self.steps_per_epoch + self.progress.batch

    @property
    def done(self) -> bool:
        """Whether nothing is left to train."""
        return self.progress.epoch >= self.config.epochs or self.progress.settled

    @property
    def example_input(self) -> Tensor:
        """Two black images, or windows of one character."""
        return example_inputs(self.data.shape, getattr(torch, self.config.dtype), 2).to(self.device)

    def begin(self) -> None:
        """Start from fresh weights, from a subnetwork's, or from the last checkpoint."""
        if self.config.start is not None:
            weights, state, self.fixed_mask = load_start(self.run, self.config.start)
            load_model(self.model, weights)
            if state:
                take_up(self.optimizer, state, self.model, self.fixed_mask)
        last = self.run.load(LAST)
        if last is not None:
            try:
                self.progress = load_checkpoint(last, self.model, self.optimizer)
                for callback in self.callbacks:
                    if callback.name:
                        callback.load_state(self, last.part(callback.name))
            except (KeyError, ValueError, RuntimeError) as error:
                raise RunError(
                    f"{self.run.path / LAST} does not fit this model and optimizer ({error}); if "
                    f"their code has changed since, move {self.run.path} away to start anew"
                ) from error
            self.set_lr(max(self.step - 1, 0))
        for callback in self.callbacks:
            callback.on_start(self, resumed=last is not None)
        self.world.wait()

    def set_lr(self, step: int) -> None:
        """Set the learning rate of a step."""
        factor = lr_factor(
            self.config.schedule,
            step=self.config.epochs_before * self.steps_per_epoch + step,
            steps_per_epoch=self.steps_per_epoch,
            epochs=self.config.epochs_before + self.config.epochs,
        )
        set_lr(self.optimizer, factor)

    def save(self, name: str) -> None:
        """Write a checkpoint of the whole state."""
        self.sum_up()
        for callback in self.callbacks:
            callback.on_save(self)
        checkpoint = make_checkpoint(self.model, self.optimizer, self.progress)
        for callback in self.callbacks:
            checkpoint.add(callback.name, callback.state_tensors())
        self.run.save(name, checkpoint)

    def sum_up(self) -> None:
        """Read the sums of the epoch from the device."""
        if self.progress.batch:
            self.progress.loss, self.progress.correct = float(self.loss_sum), int(self.correct)

    def refuse_nonfinite(self, loss: Tensor | None = None) -> None:
        """Let no broken network take the place of the last good checkpoint.

        Args:
            loss: of a step under way, before the optimizer's; by default all steps so far and the
                weights are looked at.
        """
        if loss is not None:
            if not math.isfinite(loss.item()):
                self._refuse("the loss is", self.step)
            return
        if not math.isfinite(float(self.loss_sum)):  # on a GPU it is not read every step
            self._refuse("the loss is", self.step - 1)
        if not all(bool(p.isfinite().all()) for p in self.model.parameters()):
            self._refuse("the weights are", self.step - 1)

    def _refuse(self, what: str, step: int) -> None:
        epoch = step // self.steps_per_epoch + 1
        found = not_finite(what, self.model, self.optimizer, step, epoch)
        raise TrainingError(f"{found} The last good checkpoint is kept in {self.run.path / LAST}")


def _compiled(model: nn.Module, device: torch.device, world: World) -> nn.Module:
    """The model compiled, in what it does with a batch; its weights are shared."""
    if world.size > 1:
        raise ConfigError(
            f"compile=True is for a single process, got {world.size}; leave out --compile"
        )
    if device.type == "cpu" and not kernel_builds():
        raise ConfigError("compile=True needs a C++ compiler, and none works here")
    # Code for each size of a batch, whichever sizes came before: as after a resume.
    return cast("nn.Module", torch.compile(model, dynamic=False))

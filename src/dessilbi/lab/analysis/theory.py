"""Curvature along a run, and the step that it allows."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import torch

from dessilbi.lab.data import batches, count_batches
from dessilbi.lab.run.config import ConfigError
from dessilbi.lab.run.files import INIT, LAST, checkpoint_name
from dessilbi.lab.run.methods import GradualPruning, NestedWeights, NestedWidths
from dessilbi.lab.training.build import fresh_network, laid_out_for, load_data
from dessilbi.lab.training.callbacks.step_check import Iteration, iteration_of
from dessilbi.lab.training.evaluate import prediction_loss
from dessilbi.lab.training.optimizers import make_optimizer
from dessilbi.lab.training.schedule import lr_factor, run_factor
from dessilbi.subnet.batchnorm import has_batchnorm
from dessilbi.theory import LipschitzTrack, judge_step

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from torch import Tensor

    from dessilbi.lab.run.config import Config
    from dessilbi.lab.run.directory import RunDir
    from dessilbi.theory import StepVerdict
    from dessilbi.theory.lipschitz import Curvature

EVALUATION_BATCH = 500


class Point(NamedTuple):
    """Weights to look at, and the learning rate of the steps that follow or led there."""

    label: str
    weights: dict[str, Tensor] | None
    lr: float


class Study:
    """A configuration with its data and network, and the points of a run.

    The options are those of ``dessilbi theory``; without a run, its points are the initial weights.
    """

    def __init__(
        self,
        config: Config,
        run: RunDir | None = None,
        *,
        images: int,
        iterations: int,
        seed: int | None = None,
        data_dir: Path | None = None,
        download: bool = False,
        device: torch.device | str = "cpu",
    ) -> None:
        self.config, self.run = config, run
        seed = config.seed if seed is None else seed
        data = load_data(config, data_dir, download, device)
        self.model = fresh_network(config, data).to(device)
        self.data = laid_out_for(self.model, data)
        self.steps_per_epoch = count_batches(len(data.train), config.batch_size)
        self.optimizer = make_optimizer(
            self.model,
            config.optimizer,
            self.data.shape,
            total_factor=run_factor(config, self.steps_per_epoch),
        )
        found = iteration_of(self.optimizer)
        if found is None:
            raise ConfigError(
                f"the bounds are about optimizers dessilbi and sgd, not {config.optimizer.label}"
            )
        self.iteration: Iteration = found
        self.count = min(images, len(self.data.train))
        generator = torch.Generator().manual_seed(seed)
        chosen = torch.randperm(len(self.data.train), generator=generator)[: self.count]
        # BatchNorm takes its statistics over as many images as in training.
        size = config.batch_size if has_batchnorm(self.model) else EVALUATION_BATCH
        part = self.data.train.take(chosen.sort().values)
        self.batches = list(batches(part, size, seed=0, epoch=0, shuffle=False))
        if has_batchnorm(self.model) and len(self.batches[-1][1]) == 1 and len(self.batches) > 1:
            self.batches.pop()  # of one image there is no variance
        self.track = LipschitzTrack(
            self.model,
            prediction_loss,
            self.batches,
            weight_decay=found.l2,
            max_iter=iterations,
            seed=seed,
        )

    def points(self) -> Iterator[Point]:
        """The initial weights, kept epochs, and where the run is now."""
        if self.run is None:
            yield Point("initial", None, self.config.optimizer.lr)
            return
        yield Point("initial", self.run.read_tensors(INIT), self._lr(0))
        seen = {(0, 0)}
        for name in (*map(checkpoint_name, sorted(self.config.keep)), LAST):
            checkpoint = self.run.load(name)
            if checkpoint is None:
                continue
            epoch, batch = checkpoint.state["epoch"], checkpoint.state["batch"]
            if (epoch, batch) not in seen:
                seen.add((epoch, batch))
                label = f"epoch {epoch}+" if batch else f"epoch {epoch}"
                yield Point(label, checkpoint.part("model"), self._lr(epoch))

    def verdict(self, point: Point) -> tuple[Curvature, StepVerdict]:
        """The curvature at a point, and what it says of the learning rate there."""
        found = self.track(point.label, point.weights)
        estimate = replace(self.track.estimate, points=(found,))
        return found, judge_step(point.lr, self.iteration.nu, estimate, self._reasons())

    @property
    def _masked(self) -> bool:
        return self.config.start is not None or isinstance(self.config.method, GradualPruning)

    def _reasons(self) -> tuple[str, ...]:
        """Why the theorem does not cover the run, apart from kinks."""
        reasons = list(self.iteration.outside)
        images, size = len(self.data.train), self.config.batch_size
        if self._masked:
            reasons.append("a mask is held (Lip of all weights bounds that of the kept ones)")
        if isinstance(self.config.method, NestedWeights | NestedWidths):
            reasons.append("nested training (a step sees a part of the network)")
        if size < images:
            reasons.append(f"batches of {size} of {images:,} images (the theorem has all of them)")
        return tuple(reasons)

    def _lr(self, epoch: int) -> float:
        """Largest rate of the epoch that follows; of the last one at the end of a run."""
        config, steps = self.config, self.steps_per_epoch
        before = config.epochs_before
        first = (before + min(epoch, max(config.epochs - 1, 0))) * steps
        factors = (
            lr_factor(
                config.schedule, step=step, steps_per_epoch=steps, epochs=before + config.epochs
            )
            for step in (first, first + steps - 1)
        )
        return config.optimizer.lr * max(factors)

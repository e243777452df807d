"""``dessilbi theory``: curvature along a run, the steps it allows, and the step in use."""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
import tyro
from torch.nn.functional import cross_entropy

from dessilbi.lab.data import batches, count_batches
from dessilbi.lab.run.checkpoint import restore
from dessilbi.lab.run.config import Config, ConfigError
from dessilbi.lab.run.directory import RunDir, RunError
from dessilbi.lab.run.files import CONFIG, INIT, LAST, checkpoint_name
from dessilbi.lab.run.recipes import RECIPES, find_recipe
from dessilbi.lab.training.build import fresh_network, load_data
from dessilbi.lab.training.distributed import pick_device
from dessilbi.lab.training.schedule import lr_factor, set_lr
from dessilbi.lab.training.step_check import Iteration, iteration_of
from dessilbi.lab.training.terminal import plain_console
from dessilbi.optim import DessiLBI
from dessilbi.paper.optimizers import make_optimizer
from dessilbi.subnet.batchnorm import has_batchnorm
from dessilbi.theory import LipschitzTrack, LyapunovMonitor, draw, judge_step

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console
    from torch import Tensor, nn
    from torch.optim import Optimizer

    from dessilbi.lab.data import Dataset
    from dessilbi.lab.run.directory import Checkpoint
    from dessilbi.theory import LyapunovHistory, StepVerdict

EVALUATION_BATCH = 500


@dataclass(frozen=True, kw_only=True)
class TheoryCommand:
    """Lip, the safe step, the paper's bound and the lr in use, with a verdict.

    For a run directory at its initial weights, the kept epochs and the last checkpoint; for a
    recipe or a config.json at the initial weights.
    """

    what: tyro.conf.Positional[str]
    """A run directory (or its name under --runs), a recipe, or a config.json."""
    images: int = 2000
    """Training images that the loss is taken over, chosen at random; not augmented."""
    iterations: int = 60
    """Most products with the Hessian at each point."""
    steps: int = 0
    """Also take this many full-batch steps from the last weights, without momentum, and see
    whether F descends (DessiLBI only; in float64)."""
    plot: Path | None = None
    """Draw those steps into this file (png, svg, pdf)."""
    seed: int | None = None
    """Chooses the images and the start of the iteration; for a recipe also the weights."""
    runs: Path = Path("runs")
    """Folder of the run directories."""
    data_dir: Path | None = None
    """Where the data lies; also $DESSILBI_DATA and the user cache are searched."""
    download: bool = False
    """Fetch the data if it is not found."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1, ..."""
    threads: int | None = None
    """Threads of torch on the CPU; by default all cores."""


class Point(NamedTuple):
    """Weights to look at, and the learning rate of the steps that follow or led there."""

    label: str
    weights: dict[str, Tensor] | None
    lr: float


def theory(arguments: list[str]) -> None:
    """``dessilbi theory RUN|RECIPE [options]``."""
    command = tyro.cli(TheoryCommand, prog="dessilbi theory", args=arguments)
    for name, value, least in (
        ("images", command.images, 1),
        ("iterations", command.iterations, 1),
        ("steps", command.steps, 0),
        ("threads", 1 if command.threads is None else command.threads, 1),
    ):
        if value < least:
            raise ConfigError(f"{name} must be >= {least}, got {value}")
    if command.plot is not None and not command.steps:
        raise ConfigError("--plot draws the steps of --steps; give --steps 200, say")
    if command.plot is not None and find_spec("matplotlib") is None:
        raise ConfigError("--plot needs matplotlib: pip install 'dessilbi[report]'")
    if command.plot is not None:
        _check_picture(command.plot)
    if command.threads is not None:
        torch.set_num_threads(command.threads)
    study = Study(command)
    console = plain_console()
    study.curvature(console)
    if command.steps:
        study.descent(console)


def _check_picture(file: Path) -> None:
    """Refuse before anything is computed what could not be drawn after it."""
    if file.suffix not in (".png", ".svg", ".pdf"):
        raise ConfigError(f"plot must end in .png, .svg or .pdf, got {file}")
    if not file.parent.is_dir():
        raise ConfigError(f"there is no folder {file.parent} to draw {file.name} in")


class Study:
    """A configuration, its data and network, and the points of a run."""

    def __init__(self, command: TheoryCommand) -> None:
        self.command = command
        self.run, self.config = _find(command)
        config = self.config
        seed = config.seed if command.seed is None else command.seed
        device = pick_device(command.device)
        # Differences of F lie below the rounding of float32.
        build = replace(config, dtype="float64") if command.steps else config
        self.data: Dataset = load_data(build, command.data_dir, command.download, device)
        self.model: nn.Module = fresh_network(build, self.data).to(device)
        self.optimizer: Optimizer = make_optimizer(self.model, config.optimizer, self.data.shape)
        found = iteration_of(self.optimizer)
        if found is None:
            raise ConfigError(
                f"the bounds are about optimizers dessilbi and sgd, not {config.optimizer.name}"
            )
        self.iteration: Iteration = found
        self.seed = seed
        self.count = min(command.images, len(self.data.train))
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
            cross_entropy,
            self.batches,
            weight_decay=found.l2,
            max_iter=command.iterations,
            seed=seed,
        )

    # ------------------------------------------------------------------ curvature and bounds

    def curvature(self, console: Console) -> None:
        """Print a line for each point, and the verdict."""
        config, found = self.config, self.iteration
        console.print(
            f"{config.model.name} on {self.data.name}, {self.count:,} of "
            f"{len(self.data.train):,} training images; {config.optimizer.name}, kappa "
            f"{config.optimizer.kappa:g}, nu {found.nu:g}, weight decay {found.l2:g}",
            soft_wrap=True,
        )
        console.print(
            f"{'weights':>10}{'Lip':>10}{'at most':>10}{'safe lr':>10}{'sharp':>10}"
            f"{'paper':>10}{'lr':>10}  verdict",
            soft_wrap=True,
        )
        verdicts: dict[str, StepVerdict] = {}
        for point in self.points():
            found_here = self.track(point.label, point.weights)
            estimate = replace(self.track.estimate, points=(found_here,))
            verdict = judge_step(point.lr, found.nu, estimate, self.reasons())
            verdicts[point.label] = verdict
            bounds = verdict.bounds
            console.print(
                f"{point.label:>10}{found_here.lip:10.4g}{found_here.upper:10.4g}"
                f"{bounds.safe:10.4g}{bounds.sharp:10.4g}{bounds.paper:10.4g}{point.lr:10.4g}"
                f"  {verdict.status}",
                soft_wrap=True,
            )
        estimate = self.track.estimate
        console.print(
            f"'at most' holds with probability {estimate.confidence:g} for these weights and "
            "images; between and beyond them nothing is claimed",
            soft_wrap=True,
        )
        worst = max(verdicts, key=lambda label: verdicts[label].lr / verdicts[label].bounds.safe)
        where = f" ({worst} weights)" if len(verdicts) > 1 else ""
        console.print(f"verdict{where}: {verdicts[worst]}", soft_wrap=True)
        for note in estimate.notes:
            console.print(f"note: {note}", soft_wrap=True)

    def reasons(self) -> tuple[str, ...]:
        """Why the theorem does not cover the run, apart from kinks."""
        reasons = list(self.iteration.outside)
        images, size = len(self.data.train), self.config.batch_size
        if self._masked:
            reasons.append("a mask is held (Lip of all weights bounds that of the kept ones)")
        if self.config.nested.on:
            reasons.append("nested training (a step sees a part of the network)")
        if size < images:
            reasons.append(f"batches of {size} of {images:,} images (the theorem has all of them)")
        return tuple(reasons)

    @property
    def _masked(self) -> bool:
        return self.config.start is not None or self.config.prune.density is not None

    def points(self) -> Iterator[Point]:
        """The initial weights, kept epochs, and where the run is now."""
        if self.run is None:
            yield Point("initial", None, self.config.optimizer.lr)
            return
        yield Point("initial", self.run.read_tensors(INIT), self._lr(0))
        seen = set()
        for name in (*(checkpoint_name(epoch) for epoch in sorted(self.config.keep)), LAST):
            checkpoint = self.run.load(name)
            if checkpoint is None:
                continue
            epoch, batch = checkpoint.state["epoch"], checkpoint.state["batch"]
            if (epoch, batch) in seen or (epoch, batch) == (0, 0):
                continue
            seen.add((epoch, batch))
            label = f"epoch {epoch}" if not batch else f"epoch {epoch}+"
            yield Point(label, checkpoint.part("model"), self._lr(epoch))

    def _lr(self, epoch: int) -> float:
        """Largest rate of the epoch that follows; of the last one at the end of a run."""
        config = self.config
        steps = count_batches(len(self.data.train), config.batch_size)
        before = 0 if config.start is None else config.start.epoch
        epoch = before + min(epoch, max(config.epochs - 1, 0))
        return config.optimizer.lr * max(
            lr_factor(
                config.schedule, step=step, steps_per_epoch=steps, epochs=before + config.epochs
            )
            for step in (epoch * steps, epoch * steps + steps - 1)
        )

    # ------------------------------------------------------------------ full-batch steps

    def descent(self, console: Console) -> None:
        """Take full-batch steps from the last weights and print what F did."""
        if not isinstance(self.optimizer, DessiLBI):
            raise ConfigError(
                f"--steps watches F, which optimizer {self.config.optimizer.name} has not"
            )
        if self._masked:
            raise ConfigError("--steps does not hold the mask of this run; leave it out")
        lr = self._place()
        for group in self.optimizer.param_groups:
            group |= {"momentum": 0.0, "nesterov": False}
        set_lr(self.optimizer, lr / self.config.optimizer.lr if self.config.optimizer.lr else 0.0)
        history = self._steps(self.optimizer)
        lip = self.track.estimate.value
        console.print(
            f"\n{len(history)} full-batch steps at lr {lr:.4g} without momentum, from the last "
            f"weights:\n{history.check(lip)}",
            soft_wrap=True,
        )
        if self.command.plot is not None:
            draw(history, lip, self.command.plot)
            console.print(f"drawn: {self.command.plot}", soft_wrap=True)

    def _place(self) -> float:
        """Put the last weights and V in place; returns the learning rate there."""
        last: Checkpoint | None = None if self.run is None else self.run.load(LAST)
        if last is None:
            return self._lr(0)
        try:
            position = restore(last, self.model, self.optimizer)
        except (KeyError, ValueError, RuntimeError) as error:
            raise RunError(f"the last checkpoint does not fit its model ({error})") from error
        return self._lr(position.epoch)

    def _steps(self, optimizer: DessiLBI) -> LyapunovHistory:
        def closure() -> Tensor:
            losses = [cross_entropy(self.model(x), y) * len(y) for x, y in self.batches]
            return torch.stack(losses).sum() / sum(len(y) for _, y in self.batches)

        often = max(self.command.steps // 5, 1)
        with LyapunovMonitor(optimizer, closure) as monitor:
            for step in range(self.command.steps):
                optimizer.zero_grad()
                torch.autograd.backward(closure())
                optimizer.step()
                if step % often == 0 or step + 1 == self.command.steps:
                    self.track(f"step {step + 1}")
        return monitor.history


def _find(command: TheoryCommand) -> tuple[RunDir | None, Config]:
    """A run directory with its configuration, or a configuration alone."""
    what = command.what
    for folder in (Path(what), command.runs / what):
        if folder.is_dir() and (what not in RECIPES or (folder / CONFIG).is_file()):
            run = RunDir.open(folder)
            return run, run.config()
    if "/" in what and not what.endswith(".json"):
        raise RunError(f"there is no run directory {what}")
    config = find_recipe(what)
    return None, config if command.seed is None else replace(config, seed=command.seed)

"""What a recipe is: the runs of a table or figure, and how they become it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

from dessilbi.lab.run.config import Config, DataConfig, ScheduleConfig
from dessilbi.paper.sweep import Job

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from dessilbi.lab.run.directory import RunDir
    from dessilbi.lab.run.options import RunOptions
    from dessilbi.paper.results import Results
    from dessilbi.paper.sweep import Label
    from dessilbi.paper.tables import Table

Scale = Literal["smoke", "cpu", "paper"]
SCALES: tuple[Scale, ...] = ("smoke", "cpu", "paper")

ACCURACIES = ("accuracy", "sparse_accuracy", "recalibrated_accuracy")
COLLAPSED = 20.0
"""Accuracy, in percent of ten classes, below which a run has not learned at all."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A cell of a recipe: what is run, once for every seed."""

    labels: Mapping[str, Label]
    """What it is in the grid; together they are its key."""
    config: Config | Callable[..., Config]
    """The configuration, or how it is made of the runs in ``needs``, given in their order."""
    needs: tuple[str, ...] = ()
    """Keys of settings whose runs of the same seed must be there before."""
    seeds: int = 1
    """Of the scale, unless the user says how many."""

    @property
    def key(self) -> str:
        """Its name in the recipe."""
        return "/".join(map(str, self.labels.values()))


@dataclass(frozen=True, kw_only=True)
class Recipe(ABC):
    """A table or figure of the paper as one command."""

    with_curves: ClassVar[bool] = False
    """Whether the course of its runs is kept."""

    name: str
    what: str
    """What it reproduces, in a line."""
    shows: tuple[str, ...]
    """Labels of the tables and figures in the paper's source."""
    costs: Mapping[Scale, str]
    """Roughly how long a scale takes; estimates."""
    cuts: Mapping[Scale, tuple[str, ...]]
    """What a scale leaves out of the paper's setting."""

    @abstractmethod
    def settings(self, scale: Scale) -> list[Setting]:
        """What a scale runs; a setting comes after those that it needs."""

    @abstractmethod
    def tables(self, results: Results) -> list[Table]:
        """Ours next to the paper's, also of an unfinished recipe."""

    def draw(self, results: Results, out: Path, options: RunOptions) -> list[Path]:
        """Write the figures to a folder; some need the run directories."""
        return []

    def measure(self, run: RunDir, job: Job, options: RunOptions) -> dict[str, Any]:
        """What of a finished run is kept in the results."""
        found = measure_training(run)
        return found | {"curves": courses(run)} if self.with_curves else found

    def jobs(self, scale: Scale, seeds: int | None = None) -> list[Job]:
        """The runs of a scale: a seed of every setting before a second one.

        Half a table says something, too. Seeds are 0, 1, ...: fixed before any run, so that none
        can be chosen afterwards.
        """
        if seeds is not None and seeds < 1:
            raise ValueError(f"seeds must be >= 1, got {seeds}")
        settings = self.settings(scale)
        return [
            Job(
                key=f"{setting.key or self.name}/seed={seed}",
                config=replace(setting.config, seed=seed)
                if isinstance(setting.config, Config)
                else setting.config,
                needs=tuple(f"{need}/seed={seed}" for need in setting.needs),
                labels={**setting.labels, "seed": seed},
            )
            for seed in range(seeds or max(setting.seeds for setting in settings))
            for setting in settings
            if seed < (seeds or setting.seeds)
        ]


def measure_training(run: RunDir) -> dict[str, Any]:
    """Accuracies at the end and at best, densities, and whether the run collapsed."""
    records = run.records()
    last, best = records[-1], max(r["accuracy"] for r in records)
    found: dict[str, Any] = {
        "epochs": last["epoch"],
        "accuracy": round(last["accuracy"], 4),
        "best": round(best, 4),
        # Where there are ten classes, 10 % is chance.
        "collapsed": best < COLLAPSED and run.config().data.name != "imagenet",
        "judged_on": last["judged_on"],
    }
    for name in (*ACCURACIES[1:], "density"):
        values = [r[name] for r in records if name in r]
        if values:
            found[name] = round(values[-1], 6)
            found[f"best_{name}"] = round(max(values), 6)
    layers = [r["densities"] for r in records if "densities" in r]
    if layers:
        found["densities"] = {name: round(d, 6) for name, d in layers[-1].items()}
    return found


def courses(run: RunDir) -> dict[str, list[float]]:
    """The course of training, an entry an epoch."""
    records = [r for r in run.records() if r["epoch"] > 0]
    return {
        name: [round(r[name], 4) for r in records]
        for name in ("train_loss", "train_accuracy", *ACCURACIES, "density")
        if records and all(name in r for r in records)
    }


def stand_in(trained: str, network: str) -> str:
    """What to call the network of a figure: "vgg-4 for VGG-16" where another one was trained."""
    papers = network.replace("resnet", "ResNet").replace("vgg", "VGG")
    return papers if trained == network else f"{trained.replace('resnet', 'ResNet')} for {papers}"


def over_seeds(results: Results) -> str:
    """The end of a figure's title: what a shaded band or an error bar is."""
    return "mean and deviation over seeds" if len(results.seeds) > 1 else "one seed"


def _cifar10(epochs: int, *milestones: int, data: DataConfig, batch_size: int = 128) -> Config:
    schedule = ScheduleConfig(kind="multistep", milestones=milestones)
    return Config(data=data, schedule=schedule, epochs=epochs, batch_size=batch_size)


FEWER: Final = DataConfig(name="cifar10", images=5_000, test_images=2_000)
CIFAR10: Final[dict[Scale, Config]] = {
    "paper": _cifar10(160, 80, 120, data=DataConfig(name="cifar10")),
    "cpu": _cifar10(16, 8, 12, data=FEWER),
    "smoke": _cifar10(2, 1, data=DataConfig(images=512), batch_size=64),
}
"""The paper's training on CIFAR-10, and what stands for it."""

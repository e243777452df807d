"""What a recipe is: the runs of a table or figure, and how they become it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal

from dessilbi.lab.run.config import Config, DataConfig, ScheduleConfig
from dessilbi.paper.sweep.sweep import Job, Label

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from dessilbi.lab.run.directory import RunDir
    from dessilbi.lab.run.options import RunOptions
    from dessilbi.paper.results import Results
    from dessilbi.paper.tables import Table

Scale = Literal["smoke", "cpu", "paper"]
SCALES: tuple[Scale, ...] = ("smoke", "cpu", "paper")

COLLAPSED = 20.0
"""Accuracy, in percent of ten classes, below which a run has not learned at all."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A table or figure of the paper as one command."""

    name: str
    what: str
    """What it reproduces, in a line."""
    shows: tuple[str, ...]
    """Labels of the tables and figures in the paper's source."""
    jobs: Callable[[Scale, int | None], list[Job]]
    """The runs of a scale; the number of seeds, or ``None`` for the scale's own."""
    tables: Callable[[Results], list[Table]]
    draw: Callable[[Results, Path, RunOptions], list[Path]] = lambda results, out, options: []
    """Writes the figures to a folder and returns the files; it may need the run directories."""
    measure: Callable[[RunDir, Job, RunOptions], dict[str, Any]]
    """What of a finished run is kept in the results."""
    costs: Mapping[Scale, str]
    """Roughly how long a scale takes; estimates."""
    cuts: Mapping[Scale, tuple[str, ...]] = field(default_factory=dict)
    """What a scale leaves out of the paper's setting."""
    notes: tuple[str, ...] = ()
    """What was decided where the paper is silent."""


def measure_training(run: RunDir, job: Job, options: RunOptions) -> dict[str, Any]:
    """Accuracies at the end and at best, densities, and whether the run collapsed."""
    records = run.records()
    last = records[-1]
    found: dict[str, Any] = {
        "epochs": last["epoch"],
        "accuracy": round(last["accuracy"], 4),
        "best": round(max(r["accuracy"] for r in records), 4),
        "collapsed": max(r["accuracy"] for r in records) < COLLAPSED and has_ten_classes(run),
        "judged_on": last["judged_on"],
    }
    for name in ("sparse_accuracy", "recalibrated_accuracy", "density"):
        values = [r[name] for r in records if name in r]
        if values:
            found[name] = round(values[-1], 6)
            found[f"best_{name}"] = round(max(values), 6)
    layers = [r["densities"] for r in records if "densities" in r]
    if layers:
        found["densities"] = {name: round(d, 6) for name, d in layers[-1].items()}
    return found


def has_ten_classes(run: RunDir) -> bool:
    """Whether the run's task has ten classes, so that 10 % is chance."""
    return run.config().data.name != "imagenet"


CURVES = (
    "train_loss",
    "train_accuracy",
    "accuracy",
    "sparse_accuracy",
    "recalibrated_accuracy",
    "density",
)


def measure_curves(run: RunDir, job: Job, options: RunOptions) -> dict[str, Any]:
    """The same, with the course of training, an entry an epoch."""
    records = [r for r in run.records() if r["epoch"] > 0]
    curves = {
        name: [round(r[name], 4) for r in records]
        for name in CURVES
        if records and all(name in r for r in records)
    }
    return measure_training(run, job, options) | {"curves": curves}


def stand_in(trained: str, network: str) -> str:
    """What to call the network of a figure: "vgg-4 for VGG-16" where another one was trained."""
    papers = network.replace("resnet", "ResNet").replace("vgg", "VGG")
    return papers if trained == network else f"{trained.replace('resnet', 'ResNet')} for {papers}"


def over_seeds(results: Results) -> str:
    """The end of a figure's title: what a shaded band or an error bar is."""
    return "mean and deviation over seeds" if len(results.seeds) > 1 else "one seed"


def seed_list(count: int | None, usual: int) -> Sequence[int]:
    """Seeds 0, 1, ...: fixed before any run, so that none can be chosen afterwards."""
    number = usual if count is None else count
    if number < 1:
        raise ValueError(f"seeds must be >= 1, got {number}")
    return range(number)


def seeded(key: str, config: Config, seeds: Sequence[int], **labels: Label) -> list[Job]:
    """A job for each seed."""
    return [
        Job(key=f"{key}/seed={s}", config=replace(config, seed=s), labels={**labels, "seed": s})
        for s in seeds
    ]


CIFAR10: Final[dict[Scale, Config]] = {
    "paper": Config(
        data=DataConfig(name="cifar10"),
        schedule=ScheduleConfig(kind="multistep", milestones=(80, 120)),
        epochs=160,
        batch_size=128,
    ),
    "cpu": Config(
        data=DataConfig(name="cifar10", images=5_000, test_images=2_000),
        schedule=ScheduleConfig(kind="multistep", milestones=(8, 12)),
        epochs=16,
        batch_size=128,
    ),
    "smoke": Config(
        data=DataConfig(images=512),
        schedule=ScheduleConfig(kind="multistep", milestones=(1,)),
        epochs=2,
        batch_size=64,
    ),
}
"""The paper's training on CIFAR-10, and what stands for it."""
CIFAR10_CUT = "5,000 of 50,000 training images, 2,000 of 10,000 test images"

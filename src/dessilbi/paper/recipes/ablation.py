"""The ablations of kappa and nu on CIFAR-10: four tables and four figures of curves.

The seed decides the initialisation, so every setting of a round starts from the same weights.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from dessilbi.lab.run.config import Config, DataConfig, ModelConfig, OptimizerConfig, ScheduleConfig
from dessilbi.paper.figures import Line, Panel, draw_panels
from dessilbi.paper.optimizers import COMPETITORS
from dessilbi.paper.published import EPOCHS, KAPPA, KAPPA_EPOCHS, NU, NU_EPOCHS, PublishedTable
from dessilbi.paper.recipe import Recipe, Scale, measure_curves, over_seeds, seed_list, stand_in
from dessilbi.paper.sweep.sweep import Job, Label
from dessilbi.paper.tables import Cell, Table

if TYPE_CHECKING:
    from pathlib import Path

    from dessilbi.lab.training.loop import Place
    from dessilbi.paper.results import Results


@dataclass(frozen=True)
class Size:
    """How far a scale goes."""

    networks: dict[str, str]
    """The paper's network and what stands for it."""
    base: Config
    shrink: int
    """Epochs of the paper for one of ours."""
    seeds: int
    quicker: float = 1.0
    """Divides both nu and lambd, so that a group enters Gamma in so many times squared fewer steps:
    with fewer steps in all, the path is as long as the paper's."""


_PAPER = Config(
    data=DataConfig(name="cifar10"),
    schedule=ScheduleConfig(kind="multistep", milestones=(80, 120)),
    epochs=160,
    batch_size=128,
)
SIZES: dict[Scale, Size] = {
    "paper": Size({"vgg-16": "vgg-16", "resnet-56": "resnet-56"}, _PAPER, 1, seeds=5),
    "cpu": Size(
        {"vgg-16": "vgg-4", "resnet-56": "resnet-8"},
        replace(
            _PAPER,
            data=DataConfig(name="cifar10", images=5_000, test_images=2_000),
            schedule=ScheduleConfig(kind="multistep", milestones=(8, 12)),
            epochs=16,
        ),
        10,
        seeds=2,
        quicker=10.0,
    ),
    "smoke": Size(
        {"vgg-16": "digits-net"},
        Config(
            data=DataConfig(images=512),
            schedule=ScheduleConfig(kind="multistep", milestones=(1,)),
            epochs=2,
            batch_size=64,
        ),
        80,
        seeds=1,
        quicker=10.0,
    ),
}


def jobs(which: str, values: tuple[float, ...], scale: Scale, seeds: int | None) -> list[Job]:
    """Every value of the setting and SGD, each network, each seed."""
    size = SIZES[scale]
    found = []
    for network, trained in size.networks.items():
        for value in (*values, None):
            if value is None:
                optimizer, setting = COMPETITORS["sgd-mom-wd"], "sgd"
            else:
                setting = f"{which}={value:g}"
                nu, kappa = (value, 1.0) if which == "nu" else (100.0, value)
                optimizer = OptimizerConfig(
                    lr=0.1,
                    momentum=0.9,
                    weight_decay=1e-4,
                    kappa=kappa,
                    nu=nu / size.quicker,
                    lambd=1.0 / size.quicker,
                )
            for seed in seed_list(seeds, size.seeds):
                # Without the setting in the name: kappa = 1 and nu = 100 are the same run.
                config = replace(
                    size.base,
                    name=f"ablation-{trained}",
                    model=ModelConfig(name=trained),
                    optimizer=optimizer,
                    seed=seed,
                )
                labels: dict[str, Label] = {"network": network, "setting": setting, "seed": seed}
                key = f"{network}/{setting}/seed={seed}"
                found.append(Job(key=key, config=config, labels=labels))
    return found


def tables(name: str, best: PublishedTable, along: PublishedTable, results: Results) -> list[Table]:
    """Best accuracies, and density with sparse accuracy at the paper's epochs."""
    size = SIZES[results.scale]  # type: ignore[index]
    cells = []
    for row in best.rows:
        kind, network = row.split("/")
        value = "best" if kind == "full" else "best_sparse_accuracy"
        for column in best.columns:
            if kind == "sparse" and column == "sgd":
                continue
            labels = {"network": network, "setting": column}
            ours = tuple(results.values(value, **labels))
            lost = results.collapsed(**labels)
            cells.append(Cell(row, column, ours, best.value(row, column), best.spread(row), lost))
    course = []
    for row in along.rows:
        network, setting = row.split("/")
        labels = {"network": network, "setting": setting}
        for epoch in EPOCHS:
            for what, curve, factor in (
                ("density", "density", 100.0),
                ("accuracy", "sparse_accuracy", 1.0),
            ):
                column = f"epoch {epoch} {what}"
                place = max(epoch // size.shrink, 1) - 1
                seeds = [
                    factor * record.values["curves"][curve][place]
                    for record in results.learned(**labels)
                    if place < len(record.values["curves"].get(curve, []))
                ]
                theirs, lost = along.value(row, column), results.collapsed(**labels)
                course.append(Cell(row, column, tuple(seeds), theirs, collapsed=lost))
    note = (
        "Best test accuracy over all epochs, in percent, as in the paper: chosen on the test set."
    )
    return [
        Table(f"{name}-best", best.title, cells, notes=(note,)),
        Table(f"{name}-epochs", along.title, course),
    ]


def draw(
    name: str, settings: tuple[str, ...], results: Results, out: Path, place: Place
) -> list[Path]:
    """A figure a network: training, validation, density and sparse accuracy."""
    files = []
    for network, trained in SIZES[results.scale].networks.items():  # type: ignore[index]
        panels = []
        for curve, label, factor in (
            ("train_loss", "training loss", 1.0),
            ("train_accuracy", "training accuracy, %", 1.0),
            ("accuracy", "test accuracy of W, %", 1.0),
            ("density", "density of Gamma, % (the paper's sparsity)", 100.0),
            ("sparse_accuracy", "test accuracy on the support of Gamma, %", 1.0),
        ):
            lines = []
            for setting in settings:
                seeds = [
                    [factor * value for value in record.values["curves"][curve]]
                    for record in results.learned(network=network, setting=setting)
                    if curve in record.values["curves"]
                ]
                if seeds:
                    lines.append(Line(setting, range(1, len(seeds[0]) + 1), seeds))
            log = curve == "train_loss"
            panels.append(Panel(label, "epoch", label, lines, log_y=log))
        shown = stand_in(trained, network)
        title = f"{shown}, {name}, {results.scale} scale; {over_seeds(results)}"
        files += draw_panels(panels, out / f"{name}-{network}", title, columns=3)
    return files


_CUTS: dict[Scale, tuple[str, ...]] = {
    "cpu": (
        "vgg-4 (16-32-64-64 filters) for VGG-16, ResNet-8 for ResNet-56",
        "5,000 of 50,000 training images, 2,000 of 10,000 test images",
        "16 epochs for 160, drops at 8 and 12; the paper's epochs 20, 40, 80, 160 are 2, 4, 8, 16",
        "nu and lambd divided by 10, as there are 100 times fewer steps for Gamma to grow in; "
        "settings are named by the paper's nu",
    ),
    "smoke": ("digits-net for VGG-16 on 512 digits, 2 epochs, nu and lambd divided by 10",),
}


def _recipe(which: str, best: PublishedTable, along: PublishedTable, cpu: str) -> Recipe:
    settings = best.columns
    values = tuple(float(c.partition("=")[2]) for c in settings if "=" in c)
    name = f"ablation-{which}"
    return Recipe(
        name=name,
        what=f"{which} ablation on CIFAR-10: two tables, and curves of VGG-16 and ResNet-56",
        shows=(
            f"table:{best.label}",
            f"table:{along.label}",
            "figure:train",
            "figure:spa",
            "figure:ablation",
        ),
        jobs=partial(jobs, which, values),
        tables=partial(tables, name, best, along),
        draw=partial(draw, name, settings),
        measure=measure_curves,
        costs={"smoke": "under a minute", "cpu": cpu, "paper": "days on a GPU"},
        cuts=_CUTS,
        notes=("lr = kappa * alpha = 0.1 throughout, as in the paper.",),
    )


RECIPES = (
    _recipe("kappa", KAPPA, KAPPA_EPOCHS, "half an hour on 2 cores"),
    _recipe("nu", NU, NU_EPOCHS, "an hour on 2 cores"),
)

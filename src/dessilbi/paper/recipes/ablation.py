"""The ablations of kappa and nu on CIFAR-10: four tables and four figures of curves.

The seed decides the initialisation, so every setting of a round starts from the same weights.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from dessilbi.lab.run.config import ModelConfig
from dessilbi.paper.figures import Line, Panel, draw_panels
from dessilbi.paper.optimizers import COMPETITORS
from dessilbi.paper.published import EPOCHS, KAPPA, KAPPA_EPOCHS, NU, NU_EPOCHS, PublishedTable
from dessilbi.paper.recipe import (
    CIFAR10,
    CIFAR10_CUT,
    Recipe,
    Scale,
    measure_curves,
    over_seeds,
    seed_list,
    seeded,
    stand_in,
)
from dessilbi.paper.tables import Cell, Table, cell

if TYPE_CHECKING:
    from pathlib import Path

    from dessilbi.lab.run.options import RunOptions
    from dessilbi.paper.results import Results
    from dessilbi.paper.sweep.sweep import Job


@dataclass(frozen=True)
class Size:
    """How far a scale goes."""

    networks: dict[str, str]
    """The paper's network and what stands for it."""
    shrink: int
    """Epochs of the paper for one of ours."""
    seeds: int
    quicker: float = 1.0
    """Divides both nu and lambd, so that a group enters Gamma in so many times squared fewer steps:
    with fewer steps in all, the path is as long as the paper's."""


SIZES: dict[Scale, Size] = {
    "paper": Size({"vgg-16": "vgg-16", "resnet-56": "resnet-56"}, 1, seeds=5),
    "cpu": Size({"vgg-16": "vgg-4", "resnet-56": "resnet-8"}, 10, seeds=2, quicker=10.0),
    "smoke": Size({"vgg-16": "digits-net"}, 80, seeds=1, quicker=10.0),
}


def jobs(which: str, values: tuple[float, ...], scale: Scale, seeds: int | None) -> list[Job]:
    """Every value of the setting and SGD, each network, each seed."""
    size, found = SIZES[scale], []
    for network, trained in size.networks.items():
        # Without the setting in the name: kappa = 1 and nu = 100 are the same run.
        base = replace(CIFAR10[scale], name=f"ablation-{trained}", model=ModelConfig(name=trained))
        for value in (*values, None):
            optimizer, setting = COMPETITORS["sgd-mom-wd"], "sgd"
            if value is not None:
                setting = f"{which}={value:g}"
                nu, kappa = (value, 1.0) if which == "nu" else (100.0, value)
                optimizer = replace(
                    COMPETITORS["dessilbi-mom-wd"],
                    kappa=kappa,
                    nu=nu / size.quicker,
                    lambd=1.0 / size.quicker,
                )
            found += seeded(
                f"{network}/{setting}",
                replace(base, optimizer=optimizer),
                seed_list(seeds, size.seeds),
                network=network,
                setting=setting,
            )
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
            cells.append(cell(results, labels, row, column, value, best))
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
                index = max(epoch // size.shrink, 1) - 1
                seeds = [
                    factor * record.values["curves"][curve][index]
                    for record in results.learned(**labels)
                    if index < len(record.values["curves"].get(curve, []))
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
    name: str, settings: tuple[str, ...], results: Results, out: Path, options: RunOptions
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
        CIFAR10_CUT,
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

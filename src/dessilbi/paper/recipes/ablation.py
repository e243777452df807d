"""The ablations of kappa and nu on CIFAR-10: four tables and four figures of curves.

The seed decides the initialisation, so every setting of a round starts from the same weights.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dessilbi.lab.run.config import ModelConfig
from dessilbi.paper.competitors import COMPETITORS
from dessilbi.paper.figures import Panel, draw_panels, lines_of
from dessilbi.paper.published import EPOCHS, KAPPA, KAPPA_EPOCHS, NU, NU_EPOCHS
from dessilbi.paper.recipe import CIFAR10, Recipe, Scale, Setting, over_seeds, stand_in
from dessilbi.paper.tables import Cell, Table, cell

if TYPE_CHECKING:
    from pathlib import Path

    from dessilbi.lab.run.options import RunOptions
    from dessilbi.paper.results import Results


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
PUBLISHED = {"ablation-kappa": (KAPPA, KAPPA_EPOCHS), "ablation-nu": (NU, NU_EPOCHS)}
CURVES = {
    "train_loss": "training loss",
    "train_accuracy": "training accuracy, %",
    "accuracy": "test accuracy of W, %",
    "density": "density of Gamma, % (the paper's sparsity)",
    "sparse_accuracy": "test accuracy on the support of Gamma, %",
}


class Ablation(Recipe):
    """Every value of kappa or nu and SGD, each network; lr = kappa * alpha = 0.1 throughout."""

    with_curves = True

    def settings(self, scale: Scale) -> list[Setting]:
        """As the columns of the paper's table say."""
        size, found = SIZES[scale], []
        for network, trained in size.networks.items():
            # Without the setting in the name: kappa = 1 and nu = 100 are the same run.
            model, name = ModelConfig(name=trained), f"ablation-{trained}"
            for column in PUBLISHED[self.name][0].columns:
                which, _, value = column.partition("=")
                optimizer = COMPETITORS["sgd-mom-wd"]
                if which != "sgd":
                    optimizer = replace(
                        COMPETITORS["dessilbi-mom-wd"],
                        kappa=float(value) if which == "kappa" else 1.0,
                        nu=(float(value) if which == "nu" else 100.0) / size.quicker,
                        lambd=1.0 / size.quicker,
                    )
                config = replace(CIFAR10[scale], name=name, model=model, optimizer=optimizer)
                labels = {"network": network, "setting": column}
                found.append(Setting(labels=labels, config=config, seeds=size.seeds))
        return found

    def tables(self, results: Results) -> list[Table]:
        """Best accuracies, and density with sparse accuracy at the paper's epochs."""
        best, along = PUBLISHED[self.name]
        cells = []
        for row in best.rows:
            kind, network = row.split("/")
            value = "best" if kind == "full" else "best_sparse_accuracy"
            for column in best.columns:
                if kind == "full" or column != "sgd":
                    labels = {"network": network, "setting": column}
                    cells.append(cell(results, labels, row, column, value, best))
        course = []
        for row in along.rows:
            network, setting = row.split("/")
            labels = {"network": network, "setting": setting}
            lost = results.collapsed(**labels)
            for epoch in EPOCHS:
                index = max(epoch // SIZES[results.scale].shrink, 1) - 1
                for what, curve in (("density", "density"), ("accuracy", "sparse_accuracy")):
                    seeds = results.curves(curve, **labels)
                    ours = tuple(seed[index] for seed in seeds if index < len(seed))
                    column = f"epoch {epoch} {what}"
                    theirs = along.value(row, column)
                    course.append(Cell(row, column, ours, theirs, collapsed=lost))
        note = (
            "Best test accuracy over all epochs, in percent, as in the paper: chosen on the test "
            "set."
        )
        return [
            Table(f"{self.name}-best", best.title, cells, notes=(note,)),
            Table(f"{self.name}-epochs", along.title, course),
        ]

    def draw(self, results: Results, out: Path, options: RunOptions) -> list[Path]:
        """A figure a network: training, validation, density and sparse accuracy."""
        files, columns = [], PUBLISHED[self.name][0].columns
        for network, trained in SIZES[results.scale].networks.items():
            whose = {column: {"network": network, "setting": column} for column in columns}
            panels = [
                Panel(label, label, lines_of(results, curve, whose), log_y=curve == "train_loss")
                for curve, label in CURVES.items()
            ]
            shown = f"{stand_in(trained, network)}, {self.name}, {results.scale} scale"
            file, title = out / f"{self.name}-{network}", f"{shown}; {over_seeds(results)}"
            files += draw_panels(panels, file, title, columns=3)
        return files

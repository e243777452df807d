"""LeNet-3, Conv-2 and Conv-4 on MNIST: density by layer, and fine-tuning by rewinding."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from dessilbi.lab.analysis.choice import Choice, Retrain
from dessilbi.lab.analysis.networks import trained_network
from dessilbi.lab.analysis.subnetworks import open_path, prepare, retrain
from dessilbi.lab.run.config import Config, DataConfig, ModelConfig, ScheduleConfig
from dessilbi.paper.baselines import largest_as
from dessilbi.paper.competitors import COMPETITORS
from dessilbi.paper.figures import Panel, draw_panels
from dessilbi.paper.published import LAYERS_CONV_2, LAYERS_CONV_4, LAYERS_LENET_3, OVERALL_DENSITY
from dessilbi.paper.recipe import Recipe, Scale, Setting, over_seeds
from dessilbi.paper.tables import Cell, Table, cell

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from dessilbi.lab.run.directory import RunDir
    from dessilbi.lab.run.options import RunOptions
    from dessilbi.paper.results import Results

PUBLISHED = {"lenet-3": LAYERS_LENET_3, "conv-2": LAYERS_CONV_2, "conv-4": LAYERS_CONV_4}
REWINDS = {"F-epoch30": 0.3, "F-epoch60": 0.6, "F-epoch90": 0.9, "F-epoch100": 1.0}
"""Where the network is reloaded, as a fraction of the training."""


@dataclass(frozen=True)
class Size:
    """How far a scale goes for a network."""

    images: int | None
    epochs: int
    seeds: int
    test_images: int | None = None
    nu: float = 10.0
    lambd: float = 1.0
    batch: int = 128
    lr: float = 0.1
    warmup: float = 0.0


SIZES: dict[Scale, dict[str, Size]] = {
    "paper": {network: Size(None, 100, 3) for network in PUBLISHED},
    "cpu": {
        "lenet-3": Size(None, 20, 3, nu=5.0, lambd=0.5),
        # Batches of 128 leave too few steps: at rate 0.1 neither SGD nor DessiLBI learns in them.
        # lambd: at 1/20, 0.01 % of Conv-2's fc1 is in Gamma after ten epochs (the paper: 0.7 %),
        # at 1/50, 3 % after three, at 1/200 most of Conv-4's initial weights.
        "conv-2": Size(5_000, 10, 3, 5_000, lambd=1 / 50, batch=32, lr=0.03, warmup=1.0),
        "conv-4": Size(2_500, 10, 3, 2_500, lambd=1 / 50, batch=32, lr=0.03, warmup=1.0),
    },
    # Six steps an epoch: only a short coupling lets anything into Gamma.
    "smoke": {network: Size(400, 2, 1, nu=0.5, lambd=0.01, batch=64) for network in PUBLISHED},
}


def dense(network: str, scale: Scale, method: str) -> Setting:
    """The dense training: MNIST, 100 epochs, batch 128, the rate falling every 30."""
    size = SIZES[scale][network]
    row = {"DessiLBI": "dessilbi-mom-wd", "SGD": "sgd-mom-wd"}[method]
    optimizer = replace(COMPETITORS[row], lr=size.lr)
    if method == "DessiLBI":
        optimizer = replace(optimizer, nu=size.nu, lambd=size.lambd)
    config = Config(
        name=f"{network}-mnist-{row}",
        data=DataConfig(
            name="digits" if scale == "smoke" else "mnist",
            images=size.images,
            test_images=size.test_images,
            # For LeNet-3 inputs in [0, 1] cost points of accuracy (docs/training.md); with
            # convolutions normalised ones are avoided, as LeNet-5 collapsed on them at rate 0.1.
            normalize=network == "lenet-3",
        ),
        model=ModelConfig(name=network),
        optimizer=optimizer,
        schedule=ScheduleConfig(
            kind="step", step_size=max(round(0.3 * size.epochs), 1), warmup=size.warmup
        ),
        epochs=size.epochs,
        batch_size=size.batch,
        keep=tuple(sorted({0, *(round(size.epochs * f) for f in REWINDS.values())})),
    )
    labels = {"network": network, "method": method}
    return Setting(labels=labels, config=config, seeds=size.seeds)


class Layers(Recipe):
    """Density of each layer: DessiLBI alone."""

    @property
    def network(self) -> str:
        """What is trained."""
        return self.name.partition("-")[2]

    def settings(self, scale: Scale) -> list[Setting]:
        """The dense training."""
        return [dense(self.network, scale, "DessiLBI")]

    def tables(self, results: Results) -> list[Table]:
        """Density by layer next to the paper's, and of all layers together."""
        published = PUBLISHED[self.network]
        labels = {"network": self.network, "method": "DessiLBI"}
        records, lost = results.learned(**labels), results.collapsed(**labels)
        cells = []
        for layer in published.columns:
            ours = tuple(r.values["densities"][f"{layer}.weight"] for r in records)
            theirs = published.value("density", layer)
            cells.append(Cell("density", layer, ours, theirs, collapsed=lost))
        whole = cell(results, labels, "density", "all", "density")
        cells.append(replace(whole, theirs=OVERALL_DENSITY[self.network]))
        return [Table(f"layers-{self.network}", published.title, cells, digits=4)]


class Finetune(Layers):
    """Dense DessiLBI and SGD, both lotteries, and the rewound subnetworks.

    The paper does not say how long fine-tuning takes: a network rewound to epoch k goes on with the
    schedule to the last epoch, and for a tenth of the training at least.
    """

    def settings(self, scale: Scale) -> list[Setting]:
        """The dense networks and what is retrained of them."""
        last = SIZES[scale][self.network].epochs
        found = [dense(self.network, scale, method) for method in ("DessiLBI", "SGD")]
        parent, sgd = (setting.key for setting in found)

        def add(method: str, config: Callable[..., Config], *needs: str) -> None:
            labels = {"network": self.network, "method": method}
            found.append(replace(found[0], labels=labels, config=config, needs=needs))

        again = partial(_retrained, at=last)
        add("DessiLBI (Lottery)", partial(again, how=Retrain("scratch")), parent)
        add("SGD (Lottery)", partial(_sgd_lottery, at=last), parent, sgd)
        for method, fraction in REWINDS.items():
            epoch = round(last * fraction)
            left = max(last - epoch, last // 10, 1)
            add(method, partial(again, how=Retrain("rewind", epoch), epochs=left), parent)
        return found

    def tables(self, results: Results) -> list[Table]:
        """The layer densities, and the figure in numbers, of which the paper gives none."""
        title = (
            f"Fine-tuning of {self.network}: test accuracy, in percent (the paper's figure has no "
            "numbers)"
        )
        return [*super().tables(results), Table(self.name, title, self._accuracies(results))]

    def _accuracies(self, results: Results) -> list[Cell]:
        found = []
        lotteries = ("SGD (Lottery)", "DessiLBI (Lottery)")
        for row in ("SGD", "DessiLBI", "DessiLBI, sparse", *lotteries, *REWINDS):
            # The sparse model is one of the dense run, and has collapsed with it.
            method, _, sparse = row.partition(", ")
            labels = {"network": self.network, "method": method}
            value = "sparse_accuracy" if sparse else "accuracy"
            found.append(cell(results, labels, row, "accuracy", value))
        return found

    def draw(self, results: Results, out: Path, options: RunOptions) -> list[Path]:
        """Mean and deviation of each method."""
        means = {one.row: one.ours for one in self._accuracies(results) if one.ours}
        title = f"{self.network}: fine-tuning by rewinding, {results.scale} scale"
        panel = Panel(over_seeds(results), "test accuracy, %", means=means, xlabel="")
        return draw_panels([panel], out / self.name, title)


def _retrained(parent: RunDir, *, at: int, how: Retrain, epochs: int | None = None) -> Config:
    return prepare(parent, Choice(epoch=at), how, parent.path.parent, epochs=epochs)


def _sgd_lottery(parent: RunDir, sgd: RunDir, *, at: int) -> Config:
    mask = largest_as(trained_network(sgd), open_path(parent).mask(epoch=at))
    words, how = "largest weights at the layer densities of Gamma", Retrain("scratch")
    return retrain(sgd, mask, words, how, sgd.path.parent, name="lottery")

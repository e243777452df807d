"""Table 1 and its supplement: thirteen optimizers on MNIST, CIFAR-10 and ImageNet."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from dessilbi.lab.analysis.networks import trained_network
from dessilbi.lab.data import batches
from dessilbi.lab.run.config import Config, DataConfig, ModelConfig, ScheduleConfig
from dessilbi.lab.training.build import load_data
from dessilbi.paper.competitors import COMPETITORS
from dessilbi.paper.published import CLASSIFICATION, IMAGENET
from dessilbi.paper.recipe import Recipe, Scale, Setting
from dessilbi.paper.tables import Table, cell

if TYPE_CHECKING:
    from dessilbi.lab.run.directory import RunDir
    from dessilbi.lab.run.options import RunOptions
    from dessilbi.paper.published import PublishedTable
    from dessilbi.paper.results import Results
    from dessilbi.paper.sweep import Job

NETWORKS = {
    "lenet-5 mnist": ("mnist", "lenet-5"),
    "resnet-20 cifar10": ("cifar10", "resnet-20"),
    "alexnet": ("imagenet", "torchvision.models:alexnet"),
    "resnet-18": ("imagenet", "torchvision.models:resnet18"),
}
"""Data set and network by column."""
FEWER_IMAGES = {"mnist": (60_000, None), "cifar10": (5_000, 2_000), "imagenet": (500, 300)}


def base(column: str, scale: Scale) -> Config:
    """The training of a network, but for its optimizer."""
    if scale == "smoke":
        return Config(epochs=1, batch_size=32, data=DataConfig(images=512))
    name, network = NETWORKS[column]
    large = name == "imagenet"
    config = Config(
        data=DataConfig(name=name),
        model=ModelConfig(name=network, init="he" if large else None),
        schedule=ScheduleConfig(kind="step", step_size=30),
        epochs=100,
        batch_size=256 if large else 128,
    )
    if scale == "paper":
        return config
    images, test_images = FEWER_IMAGES[name]
    data = DataConfig(name=name, images=images, test_images=test_images)
    if large:  # an image takes a core a quarter of a second: small batches, so that there are steps
        step = ScheduleConfig(kind="step", step_size=1)
        return replace(config, data=data, schedule=step, epochs=3, batch_size=32)
    return replace(config, data=data, schedule=ScheduleConfig(kind="step", step_size=3), epochs=10)


class Classification(Recipe):
    """Some columns of the big table."""

    @property
    def _columns(self) -> tuple[str, ...]:
        """The paper's."""
        if self.name == "table-imagenet":
            return IMAGENET.columns
        return ("resnet-20 cifar10",) if self.name == "table-cifar10" else ("lenet-5 mnist",)

    @property
    def _published(self) -> PublishedTable:
        return IMAGENET if self.name == "table-imagenet" else CLASSIFICATION

    def settings(self, scale: Scale) -> list[Setting]:
        """Every optimizer and network, DessiLBI first and with three seeds.

        The paper does not say how often it ran.
        """
        found = []
        for row in sorted(self._published.rows, key=lambda row: not row.startswith("dessilbi")):
            for column in dict.fromkeys(column.partition(" top-")[0] for column in self._columns):
                config, optimizer = base(column, scale), COMPETITORS[row]
                if config.data.name == "imagenet" and optimizer.name == "dessilbi":
                    optimizer = replace(optimizer, nu=1000.0)
                warmup = 1.0 if self.name.endswith("warmup") else 0.0
                config = replace(
                    config,
                    name=f"{self.name}-{column.replace(' ', '-')}-{row}",
                    schedule=replace(config.schedule, warmup=warmup),
                    optimizer=optimizer,
                )
                seeds = 3 if optimizer.name == "dessilbi" and scale != "smoke" else 1
                labels = {"column": column, "row": row}
                found.append(Setting(labels=labels, config=config, seeds=seeds))
        return found

    def tables(self, results: Results) -> list[Table]:
        """Ours at the last epoch next to theirs."""
        cells = []
        for column in self._columns:
            ours, _, top = column.partition(" top-")
            value = "top5" if top == "5" else "accuracy"
            for row in self._published.rows:
                labels = {"row": row, "column": ours}
                cells.append(cell(results, labels, row, column, value, self._published))
        title = f"{self._published.title}: {', '.join(self._columns)}"
        note = (
            "Test accuracy after the last epoch, in percent; collapsed seeds (never above 20 %) "
            "are counted but not averaged."
        )
        return [Table(self.name, title, cells, notes=(note,))]

    def measure(self, run: RunDir, job: Job, options: RunOptions) -> dict[str, Any]:
        """As usual, and for ImageNet the share of images whose class is among the first five."""
        found = super().measure(run, job, options)
        if run.config().data.name != "imagenet":
            return found
        data = load_data(run.config(), options.data_dir, options.download)
        model = trained_network(run, data).eval()
        hits = images = 0
        with torch.inference_mode():
            for x, y in batches(data.test, 256, seed=0, epoch=0, shuffle=False):
                hits += int((model(x).topk(5, dim=1).indices == y.unsqueeze(1)).sum())
                images += len(y)
        return found | {"top5": round(100 * hits / images, 4)}

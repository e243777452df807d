"""Table 1 and its supplement: thirteen optimizers on MNIST, CIFAR-10 and ImageNet."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from dessilbi.lab.analysis.networks import trained_network
from dessilbi.lab.data import batches
from dessilbi.lab.run.config import Config, DataConfig, ModelConfig, ScheduleConfig
from dessilbi.lab.training.build import load_data
from dessilbi.paper.optimizers import COMPETITORS
from dessilbi.paper.published import CLASSIFICATION, IMAGENET, PublishedTable
from dessilbi.paper.recipe import CIFAR10_CUT, Recipe, Scale, measure_training, seed_list, seeded
from dessilbi.paper.tables import Table, cell

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dessilbi.lab.run.directory import RunDir
    from dessilbi.lab.run.options import RunOptions
    from dessilbi.paper.results import Results
    from dessilbi.paper.sweep.sweep import Job


@dataclass(frozen=True)
class Column:
    """A network on a data set."""

    name: str
    paper: Config
    cpu: Config
    smoke: Config


_STEP = ScheduleConfig(kind="step", step_size=30)
_SMOKE = Config(epochs=1, batch_size=32, data=DataConfig(images=512))


def _column(
    name: str,
    data: str,
    model: str,
    images: int,
    test_images: int | None = None,
    batch: int = 128,
) -> Column:
    paper = Config(
        data=DataConfig(name=data),
        model=ModelConfig(name=model),
        schedule=_STEP,
        epochs=100,
        batch_size=batch,
    )
    # Ten times fewer epochs with the drops where they were, in proportion.
    shorter = replace(_STEP, step_size=3)
    fewer = DataConfig(name=data, images=images, test_images=test_images)
    cpu = replace(paper, data=fewer, schedule=shorter, epochs=10)
    return Column(name, paper, cpu, _SMOKE)


MNIST = _column("lenet-5 mnist", "mnist", "lenet-5", 60_000)
CIFAR10 = _column("resnet-20 cifar10", "cifar10", "resnet-20", 5_000, 2_000)


def _imagenet(name: str, model: str) -> Column:
    made = _column(name, "imagenet", f"torchvision.models:{model}", 500, 300, batch=256)
    he = ModelConfig(name=f"torchvision.models:{model}", init="he")
    # An image of 224 x 224 takes a core a quarter of a second: few images, and small batches so
    # that there are steps at all.
    shortest = replace(_STEP, step_size=1)
    cpu = replace(made.cpu, model=he, schedule=shortest, epochs=3, batch_size=32)
    return replace(made, paper=replace(made.paper, model=he), cpu=cpu)


ALEXNET = _imagenet("alexnet", "alexnet")
RESNET_18 = _imagenet("resnet-18", "resnet18")


def jobs(
    name: str,
    columns: tuple[Column, ...],
    rows: tuple[str, ...],
    warmup: float,
    scale: Scale,
    seeds: int | None,
) -> list[Job]:
    """A run for every optimizer, network and seed; three seeds for DessiLBI if none are given."""
    found = []
    for column in columns:
        base: Config = getattr(column, scale)
        base = replace(base, schedule=replace(base.schedule, warmup=warmup))
        for row in rows:
            optimizer = COMPETITORS[row]
            if base.data.name == "imagenet" and optimizer.name == "dessilbi":
                optimizer = replace(optimizer, nu=1000.0)
            usual = 3 if row.startswith("dessilbi") and scale != "smoke" else 1
            run_name = f"{name}-{column.name.replace(' ', '-')}-{row}"
            config = replace(base, name=run_name, optimizer=optimizer)
            key, numbers = f"{column.name}/{row}", seed_list(seeds, usual)
            found += seeded(key, config, numbers, row=row, column=column.name)
    # A seed of every row before a second one, DessiLBI first: half a table says something, too.
    return sorted(
        found, key=lambda job: (job.labels["seed"], not str(job.labels["row"]).startswith("dessi"))
    )


def tables(
    name: str, published: PublishedTable, columns: Mapping[str, tuple[str, str]], results: Results
) -> list[Table]:
    """Ours at the last epoch next to theirs; ``columns`` maps theirs to our column and value."""
    cells = []
    for theirs, (ours, value) in columns.items():
        for row in published.rows:
            labels = {"row": row, "column": ours}
            cells.append(cell(results, labels, row, theirs, value, published))
    notes = (
        "Test accuracy after the last epoch, in percent; collapsed seeds (never above 20 %) are "
        "counted but not averaged.",
    )
    title = f"{published.title}: {', '.join(columns)}"
    return [Table(name, title, cells, notes=notes)]


def measure_top5(run: RunDir, job: Job, options: RunOptions) -> dict[str, Any]:
    """As usual, and for ImageNet the share of images whose class is among the first five."""
    found = measure_training(run, job, options)
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


_SHORTER = "10 epochs instead of 100, the learning rate falling every 3 instead of every 30"
_SMOKE_CUT = ("digits-net on 512 images of scikit-learn's digits, one epoch",)
_SEEDS = "The paper does not say how often it ran; three seeds for DessiLBI, one for the others."


def _recipe(
    name: str,
    what: str,
    columns: tuple[Column, ...],
    shown: Mapping[str, tuple[str, str]],
    published: PublishedTable = CLASSIFICATION,
    *,
    warmup: float = 0.0,
    costs: tuple[str, str],
    cut: tuple[str, ...] = (_SHORTER,),
) -> Recipe:
    rows = tuple(published.rows)
    return Recipe(
        name=name,
        what=what,
        shows=(f"table:{published.label}",),
        jobs=partial(jobs, name, columns, rows, warmup),
        tables=partial(tables, name, published, shown),
        measure=measure_top5,
        costs={"smoke": "under a minute", "cpu": costs[0], "paper": costs[1]},
        cuts={"smoke": _SMOKE_CUT, "cpu": cut},
        notes=(_SEEDS,),
    )


RECIPES = (
    _recipe(
        "table-mnist",
        "MNIST column of the big table: LeNet-5, 13 optimizers",
        (MNIST,),
        {"lenet-5 mnist": ("lenet-5 mnist", "accuracy")},
        costs=("half an hour on 2 cores", "3 to 4 hours on 2 cores"),
    ),
    _recipe(
        "table-mnist-warmup",
        "the same with one epoch of warm-up, which the paper does not have",
        (MNIST,),
        {"lenet-5 mnist": ("lenet-5 mnist", "accuracy")},
        warmup=1.0,
        costs=("half an hour on 2 cores", "3 to 4 hours on 2 cores"),
    ),
    _recipe(
        "table-cifar10",
        "CIFAR-10 column of the big table: ResNet-20, 13 optimizers",
        (CIFAR10,),
        {"resnet-20 cifar10": ("resnet-20 cifar10", "accuracy")},
        costs=("two hours on 2 cores", "half a day on a GPU"),
        cut=(_SHORTER, CIFAR10_CUT),
    ),
    _recipe(
        "table-imagenet",
        "ImageNet columns (Table 1): AlexNet and ResNet-18, top-1 and top-5",
        (ALEXNET, RESNET_18),
        {
            f"{net} {top}": (net, value)
            for net in ("alexnet", "resnet-18")
            for top, value in (("top-1", "accuracy"), ("top-5", "top5"))
        },
        IMAGENET,
        costs=("two hours on 2 cores; needs ImageNet", "weeks on a GPU"),
        cut=(
            "500 of 1.28 million training images, 300 of 50,000 to judge by: too few to learn from,"
            " so that this shows that every run works on these files, and nothing about accuracy",
            "3 epochs instead of 100, the learning rate falling after each; batches of 32 for 256",
        ),
    ),
)

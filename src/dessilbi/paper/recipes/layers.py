"""LeNet-3, Conv-2 and Conv-4 on MNIST: density by layer, and fine-tuning by rewinding."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from dessilbi.lab.analysis.choice import Choice, Retrain
from dessilbi.lab.analysis.networks import trained_network
from dessilbi.lab.analysis.subnetworks import open_path, prepare, retrain
from dessilbi.lab.run.config import Config, DataConfig, ModelConfig, ScheduleConfig
from dessilbi.paper.baselines.tickets import largest_as
from dessilbi.paper.figures import Panel, draw_panels
from dessilbi.paper.optimizers import COMPETITORS
from dessilbi.paper.published import (
    LAYERS_CONV_2,
    LAYERS_CONV_4,
    LAYERS_LENET_3,
    OVERALL_DENSITY,
    PublishedTable,
)
from dessilbi.paper.recipe import Recipe, Scale, measure_training, over_seeds, seed_list, seeded
from dessilbi.paper.sweep.sweep import Job, Label
from dessilbi.paper.tables import Cell, Table

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from dessilbi.lab.run.directory import RunDir
    from dessilbi.lab.run.options import RunOptions
    from dessilbi.paper.results import Results

PUBLISHED: dict[str, PublishedTable] = {
    "lenet-3": LAYERS_LENET_3,
    "conv-2": LAYERS_CONV_2,
    "conv-4": LAYERS_CONV_4,
}
REWINDS = (0.3, 0.6, 0.9, 1.0)
"""Where the network is reloaded, as a fraction of the training: epochs 30, 60, 90, 100."""


@dataclass(frozen=True)
class Size:
    """How far a scale goes for a network."""

    images: int | None
    epochs: int
    seeds: int
    test_images: int | None = None
    nu_divisor: float = 1.0
    """See :mod:`dessilbi.paper.recipes.ablation`."""
    lambd_divisor: float = 1.0
    batch: int = 128
    lr: float = 0.1
    warmup: float = 0.0


SIZES: dict[Scale, dict[str, Size]] = {
    "paper": {net: Size(None, 100, 3) for net in PUBLISHED},
    "cpu": {
        "lenet-3": Size(None, 20, 3, nu_divisor=2.0, lambd_divisor=2.0),
        # Batches of 128 leave too few steps: at rate 0.1 neither SGD nor DessiLBI learns in them.
        # lambd: at a 20th 0.01 % of Conv-2's fc1 is in Gamma after ten epochs (the paper: 0.7 %),
        # at a 50th 3 % after three, at a 200th most of Conv-4's initial weights.
        "conv-2": Size(5_000, 10, 3, 5_000, lambd_divisor=50.0, batch=32, lr=0.03, warmup=1.0),
        "conv-4": Size(2_500, 10, 3, 2_500, lambd_divisor=50.0, batch=32, lr=0.03, warmup=1.0),
    },
    "smoke": {net: Size(400, 2, 1) for net in PUBLISHED},
}


def dense(network: str, scale: Scale, optimizer: str) -> Config:
    """The dense training: MNIST, 100 epochs, batch 128, the rate falling every 30."""
    size = SIZES[scale][network]
    smoke = scale == "smoke"
    keep = tuple(sorted({0, *(round(size.epochs * f) for f in REWINDS)}))
    config = replace(COMPETITORS[optimizer], lr=size.lr)
    if config.nu is not None and config.lambd is not None:
        nu, lambd = config.nu / size.nu_divisor, config.lambd / size.lambd_divisor
        config = replace(config, nu=nu, lambd=lambd)
        if smoke:  # six steps an epoch: only a short coupling lets anything into Gamma
            config = replace(config, nu=0.5, lambd=0.01)
    return Config(
        name=f"{network}-mnist-{optimizer}",
        data=DataConfig(
            name="digits" if smoke else "mnist",
            images=size.images,
            test_images=size.test_images,
            # For LeNet-3 inputs in [0, 1] cost points of accuracy (docs/training.md); with
            # convolutions normalised ones are avoided, as LeNet-5 collapsed on them at rate 0.1.
            normalize=network == "lenet-3",
        ),
        model=ModelConfig(name=network),
        optimizer=config,
        schedule=ScheduleConfig(
            kind="step", step_size=max(round(0.3 * size.epochs), 1), warmup=size.warmup
        ),
        epochs=size.epochs,
        batch_size=64 if smoke else size.batch,
        keep=keep,
    )


def layer_jobs(network: str, scale: Scale, seeds: int | None) -> list[Job]:
    """DessiLBI alone."""
    numbers = seed_list(seeds, SIZES[scale][network].seeds)
    config = dense(network, scale, "dessilbi-mom-wd")
    return seeded(f"{network}/DessiLBI", config, numbers, network=network, method="DessiLBI")


def finetune_jobs(network: str, scale: Scale, seeds: int | None) -> list[Job]:
    """Dense DessiLBI and SGD, both lotteries, and the rewound subnetworks."""
    size = SIZES[scale][network]
    last = size.epochs
    numbers = seed_list(seeds, size.seeds)
    found = layer_jobs(network, scale, seeds)
    config = dense(network, scale, "sgd-mom-wd")
    found += seeded(f"{network}/SGD", config, numbers, network=network, method="SGD")
    for seed in numbers:

        def key(method: str, seed: int = seed) -> str:
            return f"{network}/{method}/seed={seed}"

        def rewound(
            runs: Mapping[str, RunDir], how: Retrain, epochs: int | None, parent: str
        ) -> Config:
            run = runs[parent]
            return prepare(run, Choice(epoch=last), how, run.path.parent, epochs=epochs)

        def sgd_lottery(runs: Mapping[str, RunDir], parent: str, sgd: str) -> Config:
            ticket = open_path(runs[parent]).mask(epoch=last)
            mask = largest_as(trained_network(runs[sgd]), ticket)
            words = "largest weights at the layer densities of Gamma"
            folder = runs[sgd].path.parent
            return retrain(runs[sgd], mask, words, Retrain("scratch"), folder, name="lottery")

        parent, sgd = key("DessiLBI"), key("SGD")
        later: list[tuple[str, Callable[..., Config], tuple[str, ...], int]] = [
            (
                "DessiLBI (Lottery)",
                partial(rewound, how=Retrain("scratch"), epochs=None, parent=parent),
                (parent,),
                last,
            ),
            ("SGD (Lottery)", partial(sgd_lottery, parent=parent, sgd=sgd), (parent, sgd), last),
        ]
        for fraction in REWINDS:
            epoch = round(last * fraction)
            left = max(last - epoch, last // 10, 1)
            how = Retrain("rewind", epoch)
            config_of = partial(rewound, how=how, epochs=left, parent=parent)
            later.append((f"F-epoch{round(100 * fraction)}", config_of, (parent,), left))
        for method, made, needs, epochs in later:
            labels: dict[str, Label] = {"network": network, "method": method, "seed": seed}
            job = Job(key=key(method), config=made, needs=needs, epochs=epochs, labels=labels)
            found.append(job)
    return found


def tables(network: str, results: Results) -> list[Table]:
    """Density by layer next to the paper's, and of all layers together."""
    published = PUBLISHED[network]
    labels = {"network": network, "method": "DessiLBI"}
    records, lost = results.learned(**labels), results.collapsed(**labels)
    cells = []
    for layer in published.columns:
        ours = tuple(r.values["densities"][f"{layer}.weight"] for r in records)
        theirs = published.value("density", layer)
        cells.append(Cell("density", layer, ours, theirs, collapsed=lost))
    ours = tuple(r.values["density"] for r in records)
    cells.append(Cell("density", "all", ours, OVERALL_DENSITY[network], collapsed=lost))
    return [Table(f"layers-{network}", published.title, cells, digits=4)]


def finetune_tables(network: str, results: Results) -> list[Table]:
    """The layer densities, and the figure in numbers, of which the paper gives none."""
    cells = [
        Cell(
            name,
            "accuracy",
            tuple(values),
            # The sparse model is one of the dense run, and has collapsed with it.
            collapsed=results.collapsed(network=network, method=name.removesuffix(", sparse")),
        )
        for name, values in _accuracies(network, results).items()
    ]
    title = (
        f"Fine-tuning of {network}: test accuracy, in percent (the paper's figure has no numbers)"
    )
    return [*tables(network, results), Table(f"finetune-{network}", title, cells)]


def _accuracies(network: str, results: Results) -> dict[str, list[float]]:
    found = {
        "SGD": results.values("accuracy", network=network, method="SGD"),
        "DessiLBI": results.values("accuracy", network=network, method="DessiLBI"),
        "DessiLBI, sparse": results.values("sparse_accuracy", network=network, method="DessiLBI"),
    }
    for method in (
        "SGD (Lottery)",
        "DessiLBI (Lottery)",
        *(f"F-epoch{round(100 * f)}" for f in REWINDS),
    ):
        found[method] = results.values("accuracy", network=network, method=method)
    return found


def draw(network: str, results: Results, out: Path, options: RunOptions) -> list[Path]:
    """Mean and deviation of each method."""
    means = {name: values for name, values in _accuracies(network, results).items() if values}
    title = f"{network}: fine-tuning by rewinding, {results.scale} scale"
    panel = Panel(over_seeds(results), "", "test accuracy, %", means=means)
    return draw_panels([panel], out / f"finetune-{network}", title)


_FEW_STEPS = (
    "batches of 32 at rate 0.03 for 128 at 0.1, and one epoch of warm-up",
    "lambd divided by 50, as there are fewer steps for Gamma to grow in",
)
_CUTS = {
    "lenet-3": ("20 epochs for 100", "nu and lambd halved"),
    "conv-2": (
        "10 epochs for 100, 5,000 of 60,000 training images, 5,000 of 10,000 test images",
        *_FEW_STEPS,
    ),
    "conv-4": (
        "10 epochs for 100, 2,500 of 60,000 training images, 2,500 of 10,000 test images",
        *_FEW_STEPS,
    ),
}
_COSTS = {
    "lenet-3": (("a few minutes", "ten minutes"), ("ten minutes", "40 minutes")),
    "conv-2": (("quarter of an hour", "two days"), ("1 to 2 hours", "a week")),
    "conv-4": (("quarter of an hour", "four days"), ("1 to 2 hours", "weeks")),
}
"""On two cores; of the layers alone and of the fine-tuning, at cpu and at paper scale."""


_INPUTS = (
    "Inputs are normalised for LeNet-3 and in [0, 1] for Conv-2 and Conv-4; the paper is silent."
)


def _recipes(network: str) -> tuple[Recipe, Recipe]:
    cuts: dict[Scale, tuple[str, ...]] = {
        "cpu": (*_CUTS[network], "drops of the rate and rewinding in proportion"),
        "smoke": ("400 of scikit-learn's digits, two epochs, nu 0.5, lambd 0.01",),
    }
    published = PUBLISHED[network]
    layer, tune = _COSTS[network]
    on_a_gpu = "" if network == "lenet-3" else "; hours on a GPU"
    first = Recipe(
        name=f"layers-{network}",
        what=f"density of each layer of {network} on MNIST",
        shows=(f"table:{published.label}",),
        jobs=partial(layer_jobs, network),
        tables=partial(tables, network),
        measure=measure_training,
        costs={
            "smoke": "seconds",
            "cpu": f"{layer[0]} on 2 cores",
            "paper": f"{layer[1]} on 2 cores",
        },
        cuts=cuts,
        notes=(_INPUTS,),
    )
    second = replace(
        first,
        name=f"finetune-{network}",
        what=f"rewinding and fine-tuning {network} on MNIST, both lotteries",
        shows=("fig:finetunemnist", f"table:{published.label}"),
        jobs=partial(finetune_jobs, network),
        tables=partial(finetune_tables, network),
        draw=partial(draw, network),
        costs={
            "smoke": "seconds",
            "cpu": f"{tune[0]} on 2 cores",
            "paper": f"{tune[1]} on 2 cores{on_a_gpu}",
        },
        notes=(
            _INPUTS,
            "The paper does not say how long fine-tuning takes: a network rewound to epoch k goes "
            "on with the schedule to the last epoch, and for a tenth of the training at least.",
        ),
    )
    return first, second


RECIPES = tuple(recipe for network in PUBLISHED for recipe in _recipes(network))

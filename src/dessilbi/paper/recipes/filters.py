"""The path of LeNet-5's third convolution, and its filters by activation maximisation."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dessilbi._style import BLUE, GREEN
from dessilbi.lab.analysis.subnetworks import open_path
from dessilbi.lab.run.checkpoint import load_model
from dessilbi.lab.run.config import Config, DataConfig, ModelConfig, ScheduleConfig
from dessilbi.lab.run.directory import RunDir
from dessilbi.lab.run.files import CONFIG, checkpoint_name
from dessilbi.lab.training.build import input_shape, network_without_data
from dessilbi.paper.figures import Images, Line, Panel, draw_images, draw_panels
from dessilbi.paper.optimizers import COMPETITORS
from dessilbi.paper.recipe import Recipe, Scale, measure_training, seed_list, seeded
from dessilbi.paper.tables import Cell, Table, cell
from dessilbi.paper.visual import by_norm, maximised, min_max

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from dessilbi.lab.run.options import RunOptions
    from dessilbi.paper.results import Results
    from dessilbi.paper.sweep.sweep import Job

EPOCHS: dict[Scale, int] = {"smoke": 4, "cpu": 20, "paper": 80}
LAYER: dict[str, str] = {"smoke": "conv2", "cpu": "conv.c5", "paper": "conv.c5"}
SHOWN = 36
FRAMES = (BLUE, GREEN, "#000000")
"""Blue, green and black, as in the paper: after a quarter, half and all of the epochs."""


def moments(scale: Scale) -> tuple[int, int, int]:
    """Epochs 20, 40 and 80 of 80, or the same fractions of fewer."""
    last = EPOCHS[scale]
    return last // 4, last // 2, last


def jobs(scale: Scale, seeds: int | None) -> list[Job]:
    """DessiLBI with kappa = 10 and SGD, the rate falling every 40 epochs."""
    smoke, epochs = scale == "smoke", EPOCHS[scale]
    found = []
    for method, row in (("DessiLBI", "dessilbi-mom-wd"), ("SGD", "sgd-mom-wd")):
        optimizer = COMPETITORS[row]
        if method == "DessiLBI":
            optimizer = replace(optimizer, kappa=10.0, nu=0.5 if smoke else 10.0)
            optimizer = replace(optimizer, lambd=0.02) if smoke else optimizer
        config = Config(
            name=f"filters-{row}",
            data=DataConfig(name="digits" if smoke else "mnist", images=512 if smoke else None),
            model=ModelConfig(name="digits-net" if smoke else "lenet-5"),
            optimizer=optimizer,
            schedule=ScheduleConfig(kind="step", step_size=max(epochs // 2, 1), warmup=1.0),
            epochs=epochs,
            batch_size=128,
            keep=tuple(range(epochs + 1)),
        )
        found += seeded(method, config, seed_list(seeds, 1), method=method)
    return found


def measure(run: RunDir, job: Job, options: RunOptions) -> dict[str, Any]:
    """The norms of the layer's filters, an entry an epoch, and who is in Gamma at the end."""
    config = run.config()
    layer = LAYER["smoke" if config.data.name == "digits" else "paper"] + ".weight"
    norms = []
    for epoch in range(config.epochs + 1):
        checkpoint = run.load(checkpoint_name(epoch))
        if checkpoint is not None:
            weight = checkpoint.part("model")[layer]
            norms.append([round(v, 4) for v in weight.flatten(1).norm(dim=1).tolist()])
    found = measure_training(run, job, options) | {"norms": norms}
    if config.optimizer.name == "dessilbi":
        support = open_path(run).support(config.epochs)[layer]
        found["inside"] = [int(i) for i in support.flatten(1).any(1).nonzero().flatten()]
    return found


def tables(results: Results) -> list[Table]:
    """How sparse the layer is and what that costs."""
    cells = [
        cell(results, {"method": method}, method, "accuracy, %") for method in ("SGD", "DessiLBI")
    ]
    records = results.learned(method="DessiLBI")
    shares = tuple(100 * len(r.values["inside"]) / len(r.values["norms"][-1]) for r in records)
    lost = results.collapsed(method="DessiLBI")
    cells.append(Cell("DessiLBI", "filters of the layer in Gamma, %", shares, collapsed=lost))
    title = "Third convolution of LeNet-5 (the paper shows a figure without numbers)"
    return [Table("filters-lenet-5", title, cells)]


def draw(results: Results, out: Path, options: RunOptions) -> list[Path]:
    """Norms of all filters along the training, and images of the strongest."""
    panels = []
    for method in ("DessiLBI", "SGD"):
        for record in results.where(method=method)[:1]:
            norms = record.values["norms"]
            inside = set(record.values.get("inside", []))
            columns = list(zip(*norms, strict=True))
            kept = [columns[i] for i in range(len(columns)) if i in inside]
            others = [columns[i] for i in range(len(columns)) if i not in inside]
            label = "outside of it" if method == "DessiLBI" else "all filters"
            colour = "#D55E00" if method == "DessiLBI" else "#000000"
            lines = [
                Line(f"{name}: {len(group)} filters", range(len(norms)), group, each)
                for name, group, each in (
                    ("in the support of Gamma", kept, BLUE),
                    (label, others, colour),
                )
                if group
            ]
            panels.append(Panel(method, "epoch", "l2 norm of a filter", lines))
    files = draw_panels(panels, out / "filters-lenet-5", f"filter path, {results.scale} scale")
    return files + _pictures(results, out, options)


def _pictures(results: Results, out: Path, options: RunOptions) -> list[Path]:
    blocks: list[Images | None] = []
    for method in ("DessiLBI", "SGD"):
        for record in results.where(method=method)[:1]:
            folder = options.runs / record.run
            if not (folder / CONFIG).is_file():
                continue  # results travel without the runs; the images need their weights
            run = RunDir(folder)
            for epoch, frame in zip(moments(results.scale), FRAMES, strict=True):  # type: ignore[arg-type]
                images = strongest(run, epoch, LAYER[results.scale])
                blocks.append(Images(f"{method}, epoch {epoch}", images, frame))
    title = "images that excite the strongest filters most (Erhan et al. 2009)"
    return draw_images(blocks, out / "filters-lenet-5-images", title)


def strongest(run: RunDir, epoch: int, layer: str) -> Tensor:
    """What the filters of largest norm respond to, at an epoch that was kept."""
    checkpoint = run.load(checkpoint_name(epoch))
    assert checkpoint is not None, f"{run.path} did not keep epoch {epoch}"
    config = run.config()
    model = network_without_data(config)
    load_model(model, checkpoint.part("model"))
    weight = dict(model.named_parameters())[f"{layer}.weight"]
    chosen = [int(i) for i in by_norm(weight)[:SHOWN]]
    channels, height, width = input_shape(config)
    return min_max(maximised(model, layer, chosen, (channels, height, width)))


RECIPE = Recipe(
    name="filters-lenet-5",
    what="filter path of LeNet-5's third convolution on MNIST, and its filters",
    shows=("mnist_visualization",),
    jobs=jobs,
    tables=tables,
    draw=draw,
    measure=measure,
    costs={
        "smoke": "seconds",
        "cpu": "ten minutes on 2 cores",
        "paper": "40 minutes on 2 cores",
    },
    cuts={
        "cpu": ("20 epochs for 80, the rate falling every 10 for 40",),
        "smoke": ("digits-net's second convolution, 512 digits, 4 epochs, nu 0.5, lambd 0.02",),
    },
    notes=(
        "One epoch of warm-up, which the paper does not have: without it one seed in three "
        "collapses.",
        "nu is the paper's default for MNIST, 10; the figure states kappa = 10 only.",
    ),
)

"""First-layer gradient images of ResNet-18 along the training, by guided backpropagation."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from dessilbi.lab.data.splits import ImageSplit
from dessilbi.lab.run.checkpoint import load_model
from dessilbi.lab.run.config import Config, DataConfig, ModelConfig, ScheduleConfig
from dessilbi.lab.run.directory import RunDir
from dessilbi.lab.run.files import CONFIG, checkpoint_name
from dessilbi.lab.training.build import load_data, network_without_data
from dessilbi.paper.figures import Images, Line, Panel, draw_images, draw_panels
from dessilbi.paper.optimizers import COMPETITORS
from dessilbi.paper.recipe import Recipe, Scale, measure_curves, seed_list, seeded
from dessilbi.paper.tables import Table, cell
from dessilbi.paper.visual import by_norm, guided_gradients, min_max

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from dessilbi.lab.run.options import RunOptions
    from dessilbi.paper.results import Results
    from dessilbi.paper.sweep.sweep import Job

_PAPER = Config(
    data=DataConfig(name="imagenet"),
    model=ModelConfig(name="torchvision.models:resnet18", init="he"),
    schedule=ScheduleConfig(kind="step", step_size=30),
    epochs=60,
    batch_size=256,
)
BASES: dict[Scale, Config] = {
    "paper": _PAPER,
    "cpu": replace(
        _PAPER,
        data=DataConfig(name="cifar10", images=5_000, test_images=2_000),
        model=ModelConfig(name="resnet-8"),
        schedule=ScheduleConfig(kind="step", step_size=6),
        epochs=12,
        batch_size=128,
    ),
    "smoke": Config(data=DataConfig(images=512), epochs=3, batch_size=64),
}
NU: dict[Scale, float] = {"paper": 1000.0, "cpu": 100.0, "smoke": 1.0}
LAMBD: dict[Scale, float] = {"paper": 1.0, "cpu": 0.02, "smoke": 1.0}
LAYERS: dict[str, tuple[str, str]] = {
    "paper": ("conv1", "relu"),
    "cpu": ("conv1", "relu1"),
    "smoke": ("conv1", "relu1"),
}
"""The first convolution, and the ReLU behind it whose maps are summed."""
FRAMES = ("#800080", "#009E73", "#000000")
"""Purple, green and black, as in the paper: epochs 20, 40 and 60."""
METHODS = ("SGD", "DessiLBI-1", "DessiLBI-10")
FIRST_SNAKE, LAST_SNAKE = "n01728572", "n01756291"
"""ImageNet's 17 classes of snakes, thunder snake to sidewinder, follow each other: WordNet ids."""


def moments(scale: Scale) -> tuple[int, int, int]:
    """A third, two thirds and the end."""
    last = BASES[scale].epochs
    return last // 3, 2 * last // 3, last


def jobs(scale: Scale, seeds: int | None) -> list[Job]:
    """SGD, and DessiLBI with kappa 1 and 10; the weights of the pictures are kept."""
    found = []
    for method in METHODS:
        optimizer = COMPETITORS["sgd-mom-wd"]
        if method != "SGD":
            kappa = float(method.partition("-")[2])
            optimizer = replace(
                COMPETITORS["dessilbi-mom-wd"], nu=NU[scale], lambd=LAMBD[scale], kappa=kappa
            )
        config = replace(
            BASES[scale],
            name=f"gradients-{method.lower()}",
            optimizer=optimizer,
            keep=(0, *moments(scale)),
        )
        found += seeded(method, config, seed_list(seeds, 1), method=method)
    return found


def tables(results: Results) -> list[Table]:
    """Accuracies of the runs behind the pictures."""
    cells = [cell(results, {"method": method}, method, "accuracy, %") for method in METHODS]
    title = "Runs behind the gradient images (the paper shows pictures and curves)"
    return [Table("gradients-resnet-18", title, cells)]


def gradient_images(run: RunDir, epoch: int, image: Tensor, scale: str) -> Tensor:
    """Gradient images of all first-layer filters, from the largest filter to the smallest."""
    checkpoint = run.load(checkpoint_name(epoch))
    assert checkpoint is not None, f"{run.path} did not keep epoch {epoch}"
    model = network_without_data(run.config())
    load_model(model, checkpoint.part("model"))
    convolution, relu = LAYERS[scale]
    order = by_norm(dict(model.named_parameters())[f"{convolution}.weight"])
    return min_max(guided_gradients(model, relu, image)[order])


def draw(results: Results, out: Path, options: RunOptions) -> list[Path]:
    """Curves of training and test accuracy, and the gradient images where the runs are there."""
    panels = [
        Panel(
            label,
            "epoch",
            label,
            [
                Line(method, range(1, len(seeds[0]) + 1), seeds)
                for method in METHODS
                if (seeds := [r.values["curves"][curve] for r in results.learned(method=method)])
            ],
        )
        for curve, label in (
            ("train_accuracy", "training accuracy, %"),
            ("accuracy", "test accuracy, %"),
        )
    ]
    name = "gradients-resnet-18"
    files = draw_panels(panels, out / name, f"accuracy, {results.scale} scale")
    records = [r for method in METHODS for r in results.where(method=method)[:1]]
    runs = [(r, RunDir(options.runs / r.run)) for r in records]
    runs = [(r, run) for r, run in runs if (run.path / CONFIG).is_file()]
    if not runs:
        return files
    image = _snake(runs[0][1].config(), options)
    first = gradient_images(runs[0][1], 0, image, results.scale)
    blocks: list[Images | None] = [
        Images("input", min_max(image.unsqueeze(0))),
        Images("initial weights", first),
        None,
    ]
    for record, run in runs:
        for epoch, frame in zip(moments(results.scale), FRAMES, strict=True):  # type: ignore[arg-type]
            images = gradient_images(run, epoch, image, results.scale)
            blocks.append(Images(f"{record.labels['method']}, epoch {epoch}", images, frame))
    title = "guided gradients of the first layer's filters, ordered by norm from the upper left"
    return files + draw_images(blocks, out / f"{name}-images", title)


def _snake(config: Config, options: RunOptions) -> Tensor:
    """The first test image of a snake, as in the paper, or the first of all where there is none."""
    import torch

    data = load_data(config, options.data_dir, options.download)
    snakes = [
        i
        for i, name in enumerate(data.classes)
        if "snake" in name.lower() or FIRST_SNAKE <= name <= LAST_SNAKE
    ]
    assert isinstance(data.test, ImageSplit)
    # By label: images in class order would have to be decoded by the thousand to find one.
    shown = torch.isin(data.test.labels.cpu(), torch.tensor(snakes)).nonzero().flatten()
    image = data.test.take(shown[:1] if len(shown) else torch.zeros(1, dtype=torch.int64))
    x, _ = next(iter(image.stream(torch.zeros(1, dtype=torch.int64), [(0, 1)], None, None)))
    return x[0]


RECIPE = Recipe(
    name="gradients-resnet-18",
    what="first-layer gradient images of ResNet-18 by guided backpropagation",
    shows=("fig:imagenet training", "fig:imagenet-vis"),
    jobs=jobs,
    tables=tables,
    draw=draw,
    measure=measure_curves,
    costs={
        "smoke": "seconds",
        "cpu": "five minutes on 2 cores",
        "paper": "a week on a GPU; needs ImageNet",
    },
    cuts={
        "cpu": (
            "ResNet-8 on 5,000 images of CIFAR-10 for ResNet-18 on ImageNet (16 filters for 64), "
            "2,000 test images",
            "12 epochs for 60, nu 100 for 1000, lambd 0.02 for 1",
        ),
        "smoke": ("digits-net on 512 digits, three epochs, nu 1",),
    },
    notes=(
        "The maps are summed behind the first ReLU: before it they are linear in the image, and "
        "the gradient would not depend on it.",
    ),
)

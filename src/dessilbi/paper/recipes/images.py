"""Figures of filters: LeNet-5's third convolution along the path, ResNet-18's first by gradients.

Both show what filters of large norm see, at three epochs whose weights are kept.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dessilbi._style import BLUE, GREEN, OKABE_ITO
from dessilbi.lab.analysis.subnetworks import open_path
from dessilbi.lab.data import batches
from dessilbi.lab.run.checkpoint import load_model
from dessilbi.lab.run.config import Config, DataConfig, ModelConfig, ScheduleConfig
from dessilbi.lab.run.directory import RunDir
from dessilbi.lab.run.files import CONFIG, checkpoint_name
from dessilbi.lab.training.build import input_shape, load_data, network_without_data
from dessilbi.paper.competitors import COMPETITORS
from dessilbi.paper.figures import Images, Line, Panel, draw_images, draw_panels, lines_of
from dessilbi.paper.recipe import FEWER, Recipe, Scale, Setting
from dessilbi.paper.tables import Cell, Table, cell
from dessilbi.paper.visual import by_norm, guided_gradients, maximised, min_max

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from torch import Tensor, nn

    from dessilbi.lab.run.options import RunOptions
    from dessilbi.paper.results import Results
    from dessilbi.paper.sweep import Job

BLACK = "#000000"


def first_runs(results: Results, methods: Sequence[str], options: RunOptions) -> dict[str, RunDir]:
    """The first run of each method that is there: results travel without the runs."""
    found = {method: results.where(method=method)[:1] for method in methods}
    runs = {m: RunDir(options.runs / record.run) for m, some in found.items() for record in some}
    return {method: run for method, run in runs.items() if (run.path / CONFIG).is_file()}


def images_of(
    runs: dict[str, RunDir],
    epochs: Sequence[int],
    frames: Sequence[str],
    look: Callable[[nn.Module], Tensor],
) -> list[Images | None]:
    """What each network looks like at some epochs, each in its frame."""
    return [
        Images(f"{method}, epoch {epoch}", look(network_of(run, epoch)), frame)
        for method, run in runs.items()
        for epoch, frame in zip(epochs, frames, strict=True)
    ]


def network_of(run: RunDir, epoch: int) -> nn.Module:
    """The network of a run at an epoch that was kept."""
    checkpoint = run.load(checkpoint_name(epoch))
    assert checkpoint is not None, f"{run.path} did not keep epoch {epoch}"
    model = network_without_data(run.config())
    load_model(model, checkpoint.part("model"))
    return model


def accuracies(results: Results, methods: Sequence[str]) -> list[Cell]:
    """Of the runs behind a figure; the paper gives none."""
    return [cell(results, {"method": method}, method, "accuracy, %") for method in methods]


# ---------------------------------------------------------------------- LeNet-5's path

EPOCHS: dict[Scale, tuple[int, int, int]] = {
    "smoke": (1, 2, 4),
    "cpu": (5, 10, 20),
    "paper": (20, 40, 80),
}
"""Those of the images: a quarter, half and all of the training."""
SHOWN = 36


class FilterPath(Recipe):
    """DessiLBI with kappa = 10 and SGD, the rate falling every 40 epochs.

    The figure states kappa only; nu is the paper's default for MNIST. One epoch of warm-up, which
    the paper does not have: without it one seed in three collapses.
    """

    def settings(self, scale: Scale) -> list[Setting]:
        """One run each."""
        smoke, epochs = scale == "smoke", EPOCHS[scale][-1]
        ours = replace(COMPETITORS["dessilbi-mom-wd"], kappa=10.0)
        config = Config(
            name="filters-dessilbi-mom-wd",
            data=DataConfig(name="digits" if smoke else "mnist", images=512 if smoke else None),
            model=ModelConfig(name="digits-net" if smoke else "lenet-5"),
            optimizer=replace(ours, nu=0.5, lambd=0.02) if smoke else ours,
            schedule=ScheduleConfig(kind="step", step_size=epochs // 2, warmup=1.0),
            epochs=epochs,
            batch_size=128,
            keep=tuple(range(epochs + 1)),
        )
        sgd = replace(config, name="filters-sgd-mom-wd", optimizer=COMPETITORS["sgd-mom-wd"])
        return [
            Setting(labels={"method": "DessiLBI"}, config=config),
            Setting(labels={"method": "SGD"}, config=sgd),
        ]

    @staticmethod
    def _layer(config: Config) -> str:
        return "conv2" if config.model.name == "digits-net" else "conv.c5"

    def measure(self, run: RunDir, job: Job, options: RunOptions) -> dict[str, Any]:
        """The norms of the layer's filters, an entry an epoch, and who is in Gamma at the end."""
        config = run.config()
        name, norms = f"{self._layer(config)}.weight", []
        for epoch in config.keep:
            weight = network_of(run, epoch).get_parameter(name).detach()
            norms.append([round(v, 4) for v in weight.flatten(1).norm(dim=1).tolist()])
        found = super().measure(run, job, options) | {"norms": norms}
        if config.optimizer.name == "dessilbi":
            support = open_path(run).support(config.epochs)[name]
            found["inside"] = support.flatten(1).any(1).nonzero().flatten().tolist()
        return found

    def tables(self, results: Results) -> list[Table]:
        """How sparse the layer is and what that costs."""
        records = results.learned(method="DessiLBI")
        shares = tuple(100 * len(r.values["inside"]) / len(r.values["norms"][-1]) for r in records)
        lost = results.collapsed(method="DessiLBI")
        share = Cell("DessiLBI", "filters of the layer in Gamma, %", shares, collapsed=lost)
        title = "Third convolution of LeNet-5 (the paper shows a figure without numbers)"
        return [Table(self.name, title, [*accuracies(results, ("SGD", "DessiLBI")), share])]

    def draw(self, results: Results, out: Path, options: RunOptions) -> list[Path]:
        """Norms of all filters along the training, and images of the strongest."""
        panels = []
        for method, others in (("DessiLBI", "outside of it"), ("SGD", "all filters")):
            for record in results.where(method=method)[:1]:
                groups: tuple[list[Any], list[Any]] = ([], [])
                inside = set(record.values.get("inside", []))
                for i, filter_norms in enumerate(zip(*record.values["norms"], strict=True)):
                    groups[i in inside].append(filter_norms)
                colour = OKABE_ITO[1] if method == "DessiLBI" else BLACK
                lines = [
                    Line(f"{name}: {len(norms)} filters", norms, first=0, each=each)
                    for name, norms, each in (
                        ("in the support of Gamma", groups[True], BLUE),
                        (others, groups[False], colour),
                    )
                    if norms
                ]
                panels.append(Panel(method, "l2 norm of a filter", lines))
        files = draw_panels(panels, out / self.name, f"filter path, {results.scale} scale")
        runs = first_runs(results, ("DessiLBI", "SGD"), options)

        def strongest(model: nn.Module) -> Tensor:
            config = next(iter(runs.values())).config()
            channels, height, width = input_shape(config)
            layer = self._layer(config)
            chosen = by_norm(model.get_parameter(f"{layer}.weight"))[:SHOWN].tolist()
            return min_max(maximised(model, layer, chosen, (channels, height, width)))

        # Blue, green and black, as in the paper.
        blocks = images_of(runs, EPOCHS[results.scale], (BLUE, GREEN, BLACK), strongest)
        title = "images that excite the strongest filters most (Erhan et al. 2009)"
        return files + draw_images(blocks, out / f"{self.name}-images", title)


# ---------------------------------------------------------------------- ResNet-18's gradients

PAPER = Config(
    data=DataConfig(name="imagenet"),
    model=ModelConfig(name="torchvision.models:resnet18", init="he"),
    schedule=ScheduleConfig(kind="step", step_size=30),
    epochs=60,
    batch_size=256,
)
CPU = replace(
    PAPER,
    data=FEWER,
    model=ModelConfig(name="resnet-8"),
    schedule=ScheduleConfig(kind="step", step_size=6),
    epochs=12,
    batch_size=128,
)
SMOKE = Config(data=DataConfig(images=512), epochs=3, batch_size=64)
SIZES: dict[Scale, tuple[Config, float, float]] = {
    "paper": (PAPER, 1000.0, 1.0),
    "cpu": (CPU, 100.0, 0.02),
    "smoke": (SMOKE, 1.0, 1.0),
}
"""The training, nu and lambd."""
METHODS = ("SGD", "DessiLBI-1", "DessiLBI-10")


class GradientImages(Recipe):
    """SGD, and DessiLBI with kappa 1 and 10."""

    with_curves = True

    @staticmethod
    def _epochs(scale: Scale) -> tuple[int, int, int]:
        """A third, two thirds and the end."""
        last = SIZES[scale][0].epochs
        return last // 3, 2 * last // 3, last

    def settings(self, scale: Scale) -> list[Setting]:
        """One run each."""
        base, nu, lambd = SIZES[scale]
        ours = replace(COMPETITORS["dessilbi-mom-wd"], nu=nu, lambd=lambd)
        found = []
        for method in METHODS:
            _, _, kappa = method.partition("-")
            config = replace(
                base,
                name=f"gradients-{method.lower()}",
                optimizer=replace(ours, kappa=float(kappa)) if kappa else COMPETITORS["sgd-mom-wd"],
                keep=(0, *self._epochs(scale)),
            )
            found.append(Setting(labels={"method": method}, config=config))
        return found

    def tables(self, results: Results) -> list[Table]:
        """Accuracies of the runs behind the pictures."""
        title = "Runs behind the gradient images (the paper shows pictures and curves)"
        return [Table(self.name, title, accuracies(results, METHODS))]

    def draw(self, results: Results, out: Path, options: RunOptions) -> list[Path]:
        """Curves of training and test accuracy, and the gradient images where the runs are."""
        whose = {method: {"method": method} for method in METHODS}
        curves = {"train_accuracy": "training accuracy, %", "accuracy": "test accuracy, %"}
        panels = [Panel(y, y, lines_of(results, curve, whose)) for curve, y in curves.items()]
        files = draw_panels(panels, out / self.name, f"accuracy, {results.scale} scale")
        runs = first_runs(results, METHODS, options)
        if not runs:
            return files
        first = next(iter(runs.values()))
        data = load_data(first.config(), options.data_dir, options.download)
        image = next(iter(batches(data.test, 1, seed=0, epoch=0, shuffle=False)))[0][0]
        # The maps are summed behind the first ReLU: before it they are linear in the image, and
        # the gradient would not depend on it.
        relu = "relu" if results.scale == "paper" else "relu1"

        def look(model: nn.Module) -> Tensor:
            order = by_norm(model.get_parameter("conv1.weight"))
            return min_max(guided_gradients(model, relu, image)[order])

        frames = ("#800080", GREEN, BLACK)  # purple, green and black, as in the paper
        blocks: list[Images | None] = [
            Images("input", min_max(image.unsqueeze(0))),
            Images("initial weights", look(network_of(first, 0))),
            None,
            *images_of(runs, self._epochs(results.scale), frames, look),
        ]
        title = "guided gradients of the first layer's filters, ordered by norm from the upper left"
        return files + draw_images(blocks, out / f"{self.name}-images", title)

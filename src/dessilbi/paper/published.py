"""Every number of the paper's tables, as data, under its table's label in the paper's source.

What the paper calls sparsity, the fraction of non-zeros, is called density here. A dash of the
paper is ``None``. The paper prints no spreads; where it gives the same setting twice (kappa = 1,
nu = 100), the difference is the only measure of its noise, and stands here as the spread.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class PublishedTable:
    """A table of the paper."""

    label: str
    """Its label in the paper's source, without ``table:``."""
    title: str
    columns: tuple[str, ...]
    rows: Mapping[str, tuple[float | None, ...]]
    spreads: Mapping[str, float] = field(default_factory=dict)
    """Noise of a row, where the paper lets it be known."""

    def value(self, row: str, column: str) -> float | None:
        """A number as the paper prints it; ``None`` where it prints a dash."""
        return self.rows[row][self.columns.index(column)]


CLASSIFICATION: Final = PublishedTable(
    "supervised_imagenet_mnist_cifar",
    "Supplement of Table 1: accuracy on MNIST, CIFAR-10 and ImageNet-2012, 100 epochs",
    (
        "lenet-5 mnist",
        "resnet-20 cifar10",
        "alexnet top-1",
        "alexnet top-5",
        "resnet-18 top-1",
        "resnet-18 top-5",
    ),
    {
        "sgd-naive": (98.87, 86.46, None, None, 60.76, 79.18),
        "sgd-l1": (98.52, 67.60, 46.49, 65.45, 51.49, 72.45),
        "sgd-mom": (99.16, 89.44, 55.14, 78.09, 66.98, 86.97),
        "sgd-mom-wd": (99.23, 90.31, 56.55, 79.09, 69.76, 89.18),
        "sgd-nesterov": (99.23, 90.18, None, None, 70.19, 89.30),
        "adam": (99.19, 89.14, None, None, 59.66, 83.28),
        "adabound": (99.15, 87.89, None, None, None, None),
        "adagrad": (99.02, 88.17, None, None, None, None),
        "amsgrad": (99.14, 88.68, None, None, None, None),
        "radam": (99.08, 88.44, None, None, None, None),
        "dessilbi-naive": (99.02, 89.26, 55.06, 77.69, 65.26, 86.57),
        "dessilbi-mom": (99.19, 89.72, 56.23, 78.48, 68.55, 87.85),
        "dessilbi-mom-wd": (99.20, 89.95, 57.09, 79.86, 70.55, 89.56),
    },
)

IMAGENET: Final = PublishedTable(
    "supervised_imagenet",
    "Table 1: top-1 / top-5 accuracy on ImageNet-2012",
    CLASSIFICATION.columns[2:],
    {row: values[2:] for row, values in CLASSIFICATION.rows.items() if any(values[2:])},
)

# The same setting, kappa = 1 and nu = 100, stands in two tables: 93.46 / 93.39 and 92.71 / 92.45
# for the whole networks, 93.31 / 93.23 and 92.37 / 92.10 for the sparse ones.
_NOISE: Final = {
    "full/vgg-16": 0.07,
    "full/resnet-56": 0.26,
    "sparse/vgg-16": 0.08,
    "sparse/resnet-56": 0.27,
}

KAPPA: Final = PublishedTable(
    "ablation_k",
    "Best test accuracy on CIFAR-10 by kappa, nu = 100",
    ("kappa=1", "kappa=2", "kappa=5", "kappa=10", "sgd"),
    {
        "full/vgg-16": (93.46, 93.27, 92.77, 92.03, 93.57),
        "full/resnet-56": (92.71, 92.18, 91.50, 90.92, 93.08),
        "sparse/vgg-16": (93.31, 93.00, 92.36, 76.25, None),
        "sparse/resnet-56": (92.37, 91.85, 89.48, 87.02, None),
    },
    spreads=_NOISE,
)

NU: Final = PublishedTable(
    "ablation_n",
    "Best test accuracy on CIFAR-10 by nu, kappa = 1",
    (*(f"nu={nu}" for nu in (10, 20, 50, 100, 200, 500, 1000, 2000)), "sgd"),
    {
        "full/vgg-16": (93.66, 93.59, 93.57, 93.39, 93.38, 93.35, 93.43, 93.46, 93.57),
        "full/resnet-56": (93.12, 92.68, 92.78, 92.45, 92.95, 93.11, 93.16, 93.31, 93.08),
        "sparse/vgg-16": (93.39, 93.42, 93.39, 93.23, 93.21, 93.01, 92.68, 10.0, None),
        "sparse/resnet-56": (92.81, 92.19, 92.40, 92.10, 92.68, 92.81, 92.84, 88.96, None),
    },
    spreads=_NOISE,
)

EPOCHS: Final = (20, 40, 80, 160)
"""The epochs of the two tables of density and sparse accuracy along the training."""

_ALONG: Final = tuple(f"epoch {e} {what}" for e in EPOCHS for what in ("density", "accuracy"))

KAPPA_EPOCHS: Final = PublishedTable(
    "sparsek",
    "Density of Gamma and accuracy of the sparse model along the training, by kappa, nu = 100",
    _ALONG,
    {
        "vgg-16/kappa=1": (96.62, 71.51, 96.62, 76.92, 96.63, 77.48, 96.63, 93.31),
        "vgg-16/kappa=2": (51.86, 72.98, 71.99, 73.64, 75.69, 74.54, 75.72, 93.00),
        "vgg-16/kappa=5": (8.19, 10.00, 17.64, 34.25, 29.76, 69.92, 30.03, 92.36),
        "vgg-16/kappa=10": (0.85, 10.00, 6.62, 10.00, 12.95, 38.38, 13.26, 76.25),
        # 99.68 is probably a misprint for 96.68.
        "resnet-56/kappa=1": (96.79, 73.50, 96.87, 75.27, 96.69, 77.47, 99.68, 92.37),
        "resnet-56/kappa=2": (76.21, 72.85, 81.41, 74.72, 84.17, 75.64, 84.30, 91.85),
        "resnet-56/kappa=5": (36.58, 60.43, 53.07, 76.00, 57.48, 75.67, 57.74, 89.48),
        "resnet-56/kappa=10": (3.12, 10.20, 29.43, 53.36, 41.18, 74.56, 41.14, 87.02),
    },
)

NU_EPOCHS: Final = PublishedTable(
    "sparsen",
    "Density of Gamma and accuracy of the sparse model along the training, by nu, kappa = 1",
    _ALONG,
    {
        "vgg-16/nu=10": (96.64, 71.07, 96.64, 77.70, 96.65, 79.46, 96.65, 93.34),
        "vgg-16/nu=20": (96.64, 69.11, 96.64, 77.63, 96.65, 77.08, 96.65, 93.42),
        "vgg-16/nu=50": (96.64, 74.91, 96.65, 74.21, 96.65, 79.15, 96.65, 93.38),
        "vgg-16/nu=100": (96.64, 74.82, 96.64, 73.22, 96.64, 78.09, 96.64, 93.23),
        "vgg-16/nu=200": (91.69, 73.67, 94.06, 74.67, 94.15, 75.20, 94.15, 93.21),
        "vgg-16/nu=500": (18.20, 10.00, 59.94, 67.88, 82.03, 78.69, 82.32, 93.01),
        "vgg-16/nu=1000": (6.43, 10.00, 17.88, 10.00, 49.75, 61.31, 51.21, 92.68),
        "vgg-16/nu=2000": (0.22, 10.00, 6.89, 10.00, 18.15, 10.00, 19.00, 10.00),
        "resnet-56/nu=10": (99.97, 73.37, 99.95, 71.64, 99.74, 76.46, 99.74, 92.81),
        "resnet-56/nu=20": (99.97, 72.58, 99.84, 74.16, 99.69, 72.37, 99.72, 92.19),
        "resnet-56/nu=50": (99.96, 70.72, 99.89, 73.96, 99.79, 74.93, 99.77, 92.40),
        "resnet-56/nu=100": (96.31, 73.63, 96.63, 75.79, 96.55, 72.94, 96.57, 92.10),
        "resnet-56/nu=200": (91.98, 75.30, 94.38, 72.13, 94.87, 73.75, 94.88, 92.68),
        "resnet-56/nu=500": (74.44, 65.58, 90.00, 74.12, 92.96, 71.91, 92.99, 92.81),
        "resnet-56/nu=1000": (24.32, 10.85, 75.68, 70.23, 88.56, 79.67, 88.80, 92.48),
        "resnet-56/nu=2000": (0.65, 10.00, 26.66, 13.30, 74.98, 70.38, 75.92, 88.95),
    },
)

COST: Final = PublishedTable(
    "ccost",
    "Cost of a training step, VGG-16, batch 64, one GTX 2080",
    ("sgd-mom", "dessilbi-mom", "adam"),
    {
        "mean batch time, s": (0.0197, 0.0221, 0.0210),
        "memory, MB": (1161.0, 1459.0, 1267.0),
    },
)


def _layers(label: str, network: str, **layers: tuple[float, float]) -> PublishedTable:
    """Density and number of weights by layer."""
    densities, weights = zip(*layers.values(), strict=True)
    title = f"Density of each layer of {network} on MNIST after 100 epochs"
    rows = {"density": densities, "weights": weights}
    return PublishedTable(label, title, tuple(layers), rows)


LAYERS_LENET_3: Final = _layers(
    "layer sparsity_lenet",
    "LeNet-3",
    fc1=(0.049, 235_200),
    fc2=(0.087, 30_000),
    fc3=(0.398, 1_000),
)
LAYERS_CONV_2: Final = _layers(
    "layer sparsity_conv_2",
    "Conv-2",
    conv1=(0.9375, 576),
    conv2=(1.0, 36_864),
    fc1=(0.0067, 3_211_264),
    fc2=(0.0284, 65_536),
    fc3=(0.1551, 2_560),
)
LAYERS_CONV_4: Final = _layers(
    "layer sparsity_conv_4",
    "Conv-4",
    conv1=(0.921875, 576),
    conv2=(1.0, 36_864),
    conv3=(1.0, 73_728),
    conv4=(1.0, 147_456),
    fc1=(0.0040, 1_605_632),
    fc2=(0.0094, 65_536),
    fc3=(0.1004, 2_560),
)
OVERALL_DENSITY: Final = {"lenet-3": 0.055, "conv-2": 0.0185, "conv-4": 0.1378}
"""Density of all layers together, given in the text of the appendix on fine-tuning."""

LOTTERY: Final = PublishedTable(
    "lotterysetting",
    "Settings of the lottery figures",
    ("alpha", "nu", "kappa", "lambd", "momentum"),
    {
        "vgg-16": (0.1, 100.0, 1.0, 0.1, 0.9),
        "resnet-56": (0.1, 100.0, 1.0, 0.05, 0.9),
        "vgg-16-lasso": (0.1, 500.0, 1.0, 0.05, 0.9),
        "resnet-50-lasso": (0.1, 200.0, 1.0, 0.03, 0.9),
    },
)
"""All four use Nesterov; the first two the group Lasso by filter, the others the Lasso."""

TABLES: Final = {
    table.label: table
    for table in (
        IMAGENET, CLASSIFICATION, KAPPA, KAPPA_EPOCHS, NU, NU_EPOCHS, COST,
        LAYERS_LENET_3, LAYERS_CONV_2, LAYERS_CONV_4, LOTTERY,
    )
}  # fmt: skip
"""All tables by label."""

FIGURES: Final = (
    "mnist_visualization",
    "fig:imagenet training",
    "figure:train",
    "figure:spa",
    "figure:lotteryticketacc",
    "fig:imagenet-vis",
    "figure:ablation",
    "fig:finetunemnist",
    "figure:lotteryticketsparsity",
)
"""Labels of the figures. They print no numbers: only their shape can be compared."""

"""The optimizers of the paper's big comparison, with the numbers it gives for them.

The rows of Tab. ``supervised_imagenet_mnist_cifar``: rate 0.1 for SGD and DessiLBI, 0.001 for Adam
and its kin, momentum 0.9, weight decay 1e-4, l1 penalty 1e-3; kappa 1, nu 10, lambd 1. In all of
them the rate falls to a tenth every 30 epochs. On ImageNet the paper takes nu = 1000::

    dataclasses.replace(COMPETITORS["dessilbi-mom-wd"], nu=1000.0)
"""

from typing import Final

from dessilbi.lab.run.config import OptimizerConfig

_ADAM_LR: Final = 1e-3

COMPETITORS: Final[dict[str, OptimizerConfig]] = {
    "sgd-naive": OptimizerConfig(name="sgd", lr=0.1),
    "sgd-l1": OptimizerConfig(name="sgd-l1", lr=0.1, l1=1e-3),
    "sgd-mom": OptimizerConfig(name="sgd", lr=0.1, momentum=0.9),
    "sgd-mom-wd": OptimizerConfig(name="sgd", lr=0.1, momentum=0.9, weight_decay=1e-4),
    "sgd-nesterov": OptimizerConfig(name="sgd", lr=0.1, momentum=0.9, nesterov=True),
    "adam": OptimizerConfig(name="adam", lr=_ADAM_LR),
    "adabound": OptimizerConfig(name="adabound", lr=_ADAM_LR),
    "adagrad": OptimizerConfig(name="adagrad", lr=_ADAM_LR),
    "amsgrad": OptimizerConfig(name="amsgrad", lr=_ADAM_LR),
    "radam": OptimizerConfig(name="radam", lr=_ADAM_LR),
    "dessilbi-naive": OptimizerConfig(name="dessilbi", lr=0.1, nu=10.0, lambd=1.0),
    "dessilbi-mom": OptimizerConfig(name="dessilbi", lr=0.1, nu=10.0, lambd=1.0, momentum=0.9),
    "dessilbi-mom-wd": OptimizerConfig(
        name="dessilbi", lr=0.1, nu=10.0, lambd=1.0, momentum=0.9, weight_decay=1e-4
    ),
    # Not a row of that table: the counterpart of sgd-nesterov, used for the lottery figures.
    "dessilbi-nesterov": OptimizerConfig(
        name="dessilbi", lr=0.1, nu=10.0, lambd=1.0, momentum=0.9, nesterov=True
    ),
}

OPTIMIZERS: Final[dict[str, OptimizerConfig]] = COMPETITORS | {
    "adamw": OptimizerConfig(name="adamw", lr=1e-3, weight_decay=0.01),
    "muon": OptimizerConfig(name="muon", lr=1e-3, momentum=0.95, nesterov=True, weight_decay=0.01),
    "dessilbi-adamw": OptimizerConfig(base="adamw", lr=1e-3, weight_decay=0.01),
    "dessilbi-muon": OptimizerConfig(
        base="muon", lr=1e-3, momentum=0.95, nesterov=True, weight_decay=0.01
    ),
}
"""The same and what the paper does not compare; a twin around AdamW or Muon by tau and c."""

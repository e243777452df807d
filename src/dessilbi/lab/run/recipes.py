"""Named configurations for ``dessilbi train``: each a function that returns a whole Config."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from dessilbi._text import did_you_mean
from dessilbi.lab.run.config import (
    Config,
    ConfigError,
    DataConfig,
    ModelConfig,
    OptimizerConfig,
    ScheduleConfig,
    from_json,
)
from dessilbi.lab.run.methods import NestedWeights, NestedWidths

if TYPE_CHECKING:
    from collections.abc import Callable

# The paper's Mom-Wd with its defaults for MNIST and CIFAR-10.
_MOM_WD = OptimizerConfig(momentum=0.9, weight_decay=1e-4, nu=10.0, lambd=1.0)


def digits() -> Config:
    """A small conv net on scikit-learn's 8x8 digits: seconds, no download."""
    return Config(
        name="digits",
        optimizer=replace(_MOM_WD, nu=20.0, lambd=None, c=1.5),
        schedule=ScheduleConfig(kind="multistep", milestones=(10, 14)),
        epochs=16,
        batch_size=64,
    )


def lenet_300_100_mnist() -> Config:
    """LeNet-300-100 (the paper's LeNet-3) on MNIST, 30+3+3 epochs: 98 % on about 4 % of weights."""
    return Config(
        name="lenet-300-100-mnist",
        data=DataConfig(name="mnist", normalize=True),
        model=ModelConfig(name="lenet-300-100"),
        optimizer=_MOM_WD,
        schedule=ScheduleConfig(kind="multistep", milestones=(30, 33)),
        epochs=36,
    )


def lenet_300_100_mnist_short() -> Config:
    """The same in 3+3+3 epochs with a lower threshold."""
    return replace(
        lenet_300_100_mnist(),
        name="lenet-300-100-mnist-short",
        optimizer=replace(_MOM_WD, lambd=0.3),
        schedule=ScheduleConfig(kind="multistep", milestones=(3, 6)),
        epochs=9,
    )


def lenet_5_mnist() -> Config:
    """LeNet-5 on MNIST, 9 epochs, with a warm-up: without it about one seed in three collapses."""
    return Config(
        name="lenet-5-mnist",
        data=DataConfig(name="mnist"),
        model=ModelConfig(name="lenet-5", init="default"),
        optimizer=replace(_MOM_WD, lambd=0.7),
        schedule=ScheduleConfig(kind="multistep", milestones=(3, 6), warmup=1.0),
        epochs=9,
    )


def lenet_300_100_fashion_nested() -> Config:
    """LeNet-300-100 on Fashion-MNIST: one run, a network for every budget from 0.5 % on."""
    return Config(
        name="lenet-300-100-fashion-nested",
        data=DataConfig(name="fashion-mnist", normalize=True),
        model=ModelConfig(name="lenet-300-100"),
        optimizer=replace(_MOM_WD, nu=100.0, lambd=0.3),
        schedule=ScheduleConfig(kind="cosine"),
        method=NestedWeights(),
        epochs=12,
    )


def lenet_300_100_fashion_nested_drops() -> Config:
    """The same with the learning rate dropped twice, which gradual pruning gains less from."""
    return replace(
        lenet_300_100_fashion_nested(),
        name="lenet-300-100-fashion-nested-drops",
        schedule=ScheduleConfig(kind="multistep", milestones=(4, 8)),
        method=NestedWeights(full_fraction=0.05),
    )


def lenet_5_mnist_nested() -> Config:
    """LeNet-5 on MNIST, weight by weight: one run, a network for every budget."""
    fashion = lenet_300_100_fashion_nested()
    return replace(
        fashion,
        name="lenet-5-mnist-nested",
        data=DataConfig(name="mnist"),
        model=ModelConfig(name="lenet-5", init="default"),
        optimizer=replace(fashion.optimizer, penalty="lasso"),
        schedule=ScheduleConfig(kind="cosine", warmup=0.5),
        method=NestedWeights(draw_power=1.5),
        epochs=6,
    )


def vgg_4_cifar10_nested() -> Config:
    """A small VGG on CIFAR-10, filter by filter: one run, a network for every width."""
    return Config(
        name="vgg-4-cifar10-nested",
        data=DataConfig(name="cifar10", augment=False),
        model=ModelConfig(name="vgg-4"),
        optimizer=replace(_MOM_WD, lr=0.05, nu=20.0, lambd=None, c=1.0, exclude=("classifier",)),
        schedule=ScheduleConfig(kind="cosine"),
        method=NestedWidths(),
        epochs=8,
        batch_size=32,  # many steps: each width sees a part of them only
    )


def cifar10_fast() -> Config:
    """A small VGG on CIFAR-10 in bfloat16, one-cycle: 16 epochs of a minute or so on one core."""
    return Config(
        name="cifar10-fast",
        data=DataConfig(name="cifar10", shift=2, flip="alternating"),
        model=ModelConfig(name="vgg-7"),
        optimizer=OptimizerConfig(
            name="sgd", lr=0.15, momentum=0.9, nesterov=True, weight_decay=5e-4
        ),
        schedule=ScheduleConfig(kind="linear", warmup=3.0),
        epochs=16,
        label_smoothing=0.2,
        test_flips=True,
        precision="bf16",
    )


def resnet_20_cifar10() -> Config:
    """ResNet-20 on CIFAR-10 as in the paper's big table: Mom-Wd, 100 epochs; see --with."""
    return Config(
        name="resnet-20-cifar10",
        data=DataConfig(name="cifar10"),
        model=ModelConfig(name="resnet-20"),
        optimizer=_MOM_WD,
        schedule=ScheduleConfig(kind="step", step_size=30),
        epochs=100,
    )


def vgg_16_cifar10() -> Config:
    """VGG-16 on CIFAR-10 as in the paper's lottery figure: group Lasso, Nesterov, 160 epochs."""
    return Config(
        name="vgg-16-cifar10",
        data=DataConfig(name="cifar10"),
        model=ModelConfig(name="vgg-16"),
        optimizer=OptimizerConfig(
            momentum=0.9, nesterov=True, weight_decay=1e-4, nu=100.0, lambd=0.1
        ),
        schedule=ScheduleConfig(kind="multistep", milestones=(80, 120)),
        epochs=160,
    )


def resnet_56_cifar10() -> Config:
    """ResNet-56 on CIFAR-10 as in the paper's lottery figure."""
    vgg = vgg_16_cifar10()
    return replace(
        vgg,
        name="resnet-56-cifar10",
        model=ModelConfig(name="resnet-56"),
        optimizer=replace(vgg.optimizer, lambd=0.05),
    )


def char_gpt() -> Config:
    """A character GPT on tinyshakespeare, as nanoGPT's for a CPU: AdamW, a twin of its neurons."""
    return Config(
        name="char-gpt",
        data=DataConfig(name="tinyshakespeare", context=64, images=2400),
        model=ModelConfig(name="char-gpt"),
        optimizer=OptimizerConfig(base="adamw", lr=1e-3, weight_decay=0.1),
        schedule=ScheduleConfig(kind="cosine", warmup=0.5),
        epochs=10,  # of 200 steps
        batch_size=12,
    )


def char_gpt_adamw() -> Config:
    """The same by AdamW alone."""
    return replace(
        char_gpt(),
        name="char-gpt-adamw",
        optimizer=OptimizerConfig(name="adamw", lr=1e-3, weight_decay=0.1),
    )


RECIPES: dict[str, Callable[[], Config]] = {
    "digits": digits,
    "lenet-300-100-mnist": lenet_300_100_mnist,
    "lenet-300-100-mnist-short": lenet_300_100_mnist_short,
    "lenet-5-mnist": lenet_5_mnist,
    "lenet-300-100-fashion-nested": lenet_300_100_fashion_nested,
    "lenet-300-100-fashion-nested-drops": lenet_300_100_fashion_nested_drops,
    "lenet-5-mnist-nested": lenet_5_mnist_nested,
    "vgg-4-cifar10-nested": vgg_4_cifar10_nested,
    "cifar10-fast": cifar10_fast,
    "resnet-20-cifar10": resnet_20_cifar10,
    "vgg-16-cifar10": vgg_16_cifar10,
    "resnet-56-cifar10": resnet_56_cifar10,
    "char-gpt": char_gpt,
    "char-gpt-adamw": char_gpt_adamw,
}


def find_recipe(name: str) -> Config:
    """A recipe by name, or the configuration in a JSON file."""
    if name in RECIPES:
        return RECIPES[name]()
    if name.endswith(".json"):
        path = Path(name)
        if not path.is_file():
            raise ConfigError(f"there is no configuration file {name}")
        return from_json(path.read_text(), path)
    hint = did_you_mean(name, RECIPES, otherwise=";")
    raise ConfigError(
        f"unknown recipe {name!r}{hint} known: {', '.join(RECIPES)}, or the path of a config.json"
    )

"""The data and the network that a configuration asks for."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import nn

from dessilbi.graph.layout import NARROW
from dessilbi.lab.data import load_dataset
from dessilbi.lab.data.augment import PadCropFlip
from dessilbi.lab.data.load import dataset_info
from dessilbi.lab.models import make_model
from dessilbi.lab.run.config import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from dessilbi.lab.data import Dataset, Split
    from dessilbi.lab.data.augment import Augmentation
    from dessilbi.lab.run.config import Config, DataConfig


def load_data(
    config: Config, data_dir: Path | None, download: bool, device: torch.device | str = "cpu"
) -> Dataset:
    """The data set of a configuration, split as it says."""
    data = load_dataset(
        config.data.name,
        data_dir=data_dir,
        download=download,
        normalize=config.data.normalize,
        dtype=getattr(torch, config.dtype),
        device=torch.device(device),
        validation=config.data.validation,
        images=config.data.images,
        test_images=config.data.test_images,
        context=config.data.context,
    )
    if config.test_flips and data.is_text:
        raise ConfigError(f"test_flips mirrors images, and {config.data.name} is a text")
    return replace(data, augmentation=_augmentation(config.data, data.augmentation))


def _augmentation(config: DataConfig, usual: Augmentation | None) -> Augmentation | None:
    """The usual augmentation of a set, changed as a configuration says."""
    if config.shift is None and config.flip == "random":
        return usual
    if not (config.augment and isinstance(usual, PadCropFlip)):
        raise ConfigError(
            f"data.shift and data.flip change how images are cropped and flipped, and those of "
            f"{config.name} are not" + ("" if config.augment else " with data.augment=False")
        )
    pad = usual.pad if config.shift is None else config.shift
    return replace(usual, pad=pad, alternating=config.flip == "alternating")


def laid_out_for(model: nn.Module, data: Dataset, *, half: bool = False) -> Dataset:
    """The data with its images laid out in memory as a network can be trained on them.

    Args:
        model: the network.
        data: what it is trained on.
        half: whether passes are in half precision, which GPUs too are fast at channels-last.
    """
    if needs_channels_first(model):
        return data.laid_out(channels_last=False)
    return data.laid_out(channels_last=True) if half else data


def needs_channels_first(model: nn.Module) -> bool:
    """Whether a backward pass after channels-last images would write beyond its memory on a CPU.

    oneDNN's kernel for a strided 1x1 convolution of few channels does (torch 2.13); the process
    then dies, or goes on with wrong numbers.
    """
    return any(
        isinstance(m, nn.Conv2d)
        and m.kernel_size == (1, 1)
        and m.stride != (1, 1)
        and m.in_channels < NARROW
        for m in model.modules()
    )


def evaluated_split(data: Dataset, name: str | None = None) -> tuple[Split, str]:
    """The split that a run is evaluated on, and its name: validation if there is one, else test.

    Args:
        data: a data set.
        name: ``"test"`` or ``"validation"``, if it is to be that one.
    """
    if name == "test" or (name is None and data.validation is None):
        return data.test, "test"
    if data.validation is None:
        raise ConfigError("there are no validation images: the run held none out")
    return data.validation, "validation"


def fresh_network(config: Config, data: Dataset) -> nn.Module:
    """The network of a configuration as it is initialised; seeds torch's generator."""
    torch.manual_seed(config.seed)
    return _network(config, data.shape, data.num_classes)


def network_without_data(config: Config, *, seed: int | None = None) -> nn.Module:
    """The same made without reading the data, and without touching torch's generator.

    Args:
        config: whose network.
        seed: of the initial weights, if not the configuration's.
    """
    info = dataset_info(config.data.name, config.data.context)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed if seed is None else seed)
        # ImageNet's classes are known by its folders only.
        return _network(config, info.shape, len(info.classes) or 1000)


def task_of(shape: tuple[int, ...], classes: int) -> dict[str, int]:
    """What :func:`make_model` must know of a data set."""
    return {
        "num_classes": classes,
        "in_channels": shape[0] if len(shape) > 1 else 0,
        "input_size": shape[-1],
    }


def input_shape(config: Config) -> tuple[int, ...]:
    """The shape of an image, or a window of a text, without reading the data."""
    return dataset_info(config.data.name, config.data.context).shape


def example_inputs(shape: tuple[int, ...], dtype: torch.dtype, count: int = 1) -> Tensor:
    """Black images, or windows of a text's first character, as a network can read them.

    Args:
        shape: of one image or window.
        dtype: of images.
        count: how many.
    """
    return torch.zeros(count, *shape, dtype=torch.int64 if len(shape) == 1 else dtype)


def _network(config: Config, shape: tuple[int, ...], classes: int) -> nn.Module:
    return make_model(
        config.model.name,
        **task_of(shape, classes),
        init=config.model.init,
        dtype=getattr(torch, config.dtype),
    )

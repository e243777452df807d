"""The network of a run, with the data that it is judged on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from dessilbi.lab.config import ConfigError
from dessilbi.lab.data import load_dataset
from dessilbi.lab.models import make_model
from dessilbi.lab.rundir import LAST, RunError
from dessilbi.lab.snapshot import load_model

if TYPE_CHECKING:
    from pathlib import Path

    from torch import nn

    from dessilbi.lab.config import Config
    from dessilbi.lab.data import Dataset, Split
    from dessilbi.lab.rundir import RunDir


def load_data(
    config: Config, data_dir: Path | None, download: bool, device: torch.device | str = "cpu"
) -> Dataset:
    """The data set of a configuration, split as it says."""
    return load_dataset(
        config.data.name,
        data_dir=data_dir,
        download=download,
        normalize=config.data.normalize,
        dtype=getattr(torch, config.dtype),
        device=torch.device(device),
        validation=config.data.validation,
        images=config.data.images,
        test_images=config.data.test_images,
    )


def judged_split(data: Dataset, name: str | None = None) -> tuple[Split, str]:
    """What a run is judged on, and its name: held-out images if there are any, else the test set.

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
    """The network of a configuration as it is initialised."""
    channels, height, _ = data.shape
    torch.manual_seed(config.seed)
    return make_model(
        config.model.name,
        num_classes=data.num_classes,
        in_channels=channels,
        input_size=height,
        init=config.model.init,
        dtype=getattr(torch, config.dtype),
    )


def trained_network(run: RunDir, data: Dataset) -> nn.Module:
    """The network of a run with its last weights."""
    last = run.load(LAST)
    if last is None:
        raise RunError(f"{run.path} has no {LAST}; train it first")
    model = fresh_network(run.config(), data)
    load_model(model, last.part("model"))
    return model

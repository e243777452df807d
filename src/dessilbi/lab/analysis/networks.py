"""The trained network of a run, a subnetwork of it, and what compaction makes of that."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, NamedTuple

import torch

from dessilbi.compaction import CompactError, Size, compact
from dessilbi.lab.run import methods
from dessilbi.lab.run.checkpoint import load_model
from dessilbi.lab.run.directory import RunError
from dessilbi.lab.run.files import LAST
from dessilbi.lab.training.build import (
    example_inputs,
    fresh_network,
    input_shape,
    network_without_data,
)
from dessilbi.lab.training.callbacks import make_nested
from dessilbi.lab.training.evaluate import recalibration_inputs
from dessilbi.lab.training.optimizers import make_optimizer
from dessilbi.nested import NestedWidths
from dessilbi.subnet import recalibrate_batchnorm
from dessilbi.subnet.project import masked_weights, zero_outside

if TYPE_CHECKING:
    from torch import Tensor, nn

    from dessilbi.lab.data import Dataset
    from dessilbi.lab.run.directory import Checkpoint, RunDir
    from dessilbi.path import Mask


def trained_network(
    run: RunDir,
    data: Dataset | None = None,
    mask: Mask | None = None,
    checkpoint: Checkpoint | None = None,
) -> nn.Module:
    """The network of a run as it was trained.

    Args:
        run: whose network.
        data: what it was trained on, if it has been read.
        mask: of nested training by width, the network that is to be masked: a width that has left
            has weights of its own.
        checkpoint: of the run; the last by default.
    """
    checkpoint = checkpoint or run.load(LAST)
    if checkpoint is None:
        raise RunError(f"{run.path} has no {LAST}; train it first")
    config = run.config()
    model = network_without_data(config) if data is None else fresh_network(config, data)
    load_model(model, checkpoint.part("model"))
    if mask is None or not isinstance(config.method, methods.NestedWidths):
        return model
    shape = input_shape(config)
    example = example_inputs(shape, getattr(torch, config.dtype), 2)
    optimizer = make_optimizer(model, config.optimizer, shape)
    nested = make_nested(config, model, optimizer, 1, example)
    assert isinstance(nested, NestedWidths)
    nested.load_state_dict(checkpoint.part("nested"))
    left = {name.split("/")[0] for name in checkpoint.part("nested/branches")}
    for width in nested.widths[: len(left)]:
        if nested.mask(width) == mask:
            return nested.network(width, small=False)
    nested.close()
    return model


def network_at(run: RunDir, mask: Mask, data: Dataset, *, recalibrate: bool = True) -> nn.Module:
    """The network that a mask leaves of a finished run, zero outside, in evaluation mode.

    With ``recalibrate`` its BatchNorm statistics are measured anew, on the training images that
    every command takes for this.
    """
    model = trained_network(run, data, mask).eval()
    zero_outside(masked_weights(model, mask))
    if recalibrate:
        recalibrate_batchnorm(model, recalibration_inputs(data.train))
    return model


class Shipped(NamedTuple):
    """What ``dessilbi compact`` makes of a masked network."""

    model: nn.Module
    size: Size
    refused: str = ""
    """Why it cannot be compacted, if so; model and size are then those of the masked network."""


def shipped(masked: nn.Module, mask: Mask, image: Tensor) -> Shipped:
    """The compact network as the command makes it, which times nothing that changes its size."""
    try:
        with warnings.catch_warnings():  # the size says it
            warnings.filterwarnings("ignore", "nothing was removed")
            small = compact(masked, mask, image, streams="keep", latency=False)
    except CompactError as error:
        return Shipped(masked, Size.of(masked, (image,)), str(error))
    return Shipped(small.model, small.report.compact)

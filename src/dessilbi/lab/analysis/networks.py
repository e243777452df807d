"""The trained network of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dessilbi.lab.run.checkpoint import load_model
from dessilbi.lab.run.directory import RunError
from dessilbi.lab.run.files import LAST
from dessilbi.lab.training.build import fresh_network, network_without_data
from dessilbi.nested.branches import own_weights

if TYPE_CHECKING:
    from torch import Tensor, nn

    from dessilbi.lab.data import Dataset
    from dessilbi.lab.run.directory import Checkpoint, RunDir
    from dessilbi.path import Mask


def trained_network(
    run: RunDir, data: Dataset | None = None, mask: Mask | None = None
) -> nn.Module:
    """The network of a run with its last weights, or with those that are to be masked."""
    last = run.load(LAST)
    if last is None:
        raise RunError(f"{run.path} has no {LAST}; train it first")
    config = run.config()
    model = network_without_data(config) if data is None else fresh_network(config, data)
    load_model(model, last.part("model") if mask is None else weights_under(last, mask))
    return model


def weights_under(checkpoint: Checkpoint, mask: Mask) -> dict[str, Tensor]:
    """The weights of the network that a mask leaves.

    They are the whole network's, unless nested training gave this width its own.
    """
    whole = checkpoint.part("model")
    return whole | own_weights(checkpoint.part("nested"), mask, whole)

"""Filters that can only be removed together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from dessilbi.graph.ties import tied_channels

if TYPE_CHECKING:
    from torch import nn


def tied_filters(model: nn.Module, example_input: Any) -> list[list[str]]:
    """Sets of weights, by name: slice i along dimension 0 of all weights of a set is one channel.

    Channels that cannot leave are left out, and so are sets to which a weight belongs with a part
    of its slices only (a concatenation) or in another order.
    """
    weights = {name: p for name, p in model.named_parameters() if p.ndim > 1}
    found = []
    for one in tied_channels(model, example_input):
        writers = [m for m in one.members if m.dim == 0 and m.parameter in weights]
        if (
            one.free
            and len(writers) > 1
            and all(torch.equal(m.index, writers[0].index) for m in writers)
            and all(m.index.numel() == len(weights[m.parameter]) == one.channels for m in writers)
        ):
            found.append([m.parameter for m in writers])
    return found

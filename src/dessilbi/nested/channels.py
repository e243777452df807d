"""The order in which channels leave a network: those whose filters are small go first.

All filters that write a channel have its budget rank.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from dessilbi.path.layers import make_layers
from dessilbi.subnet.scores import rank_shares

from .ranking import WHOLE, budget_ranks, cumulative_share

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from dessilbi.graph.ties import Tied
    from dessilbi.path import Layer

    from .slicing import Slicer

Writers = list[tuple[int, "Tensor"]]
"""The layers that write some channels, by number, and the filters of each channel."""


class ChannelRanking:
    """The channels of a network that can leave, and how they are ranked.

    Args:
        layers: those whose filters may leave.
        slicer: the networks of fewer channels.
    """

    def __init__(self, layers: Sequence[Layer], slicer: Slicer) -> None:
        self._layers, self._slicer = layers, slicer
        self._numbers = {layer.name: i for i, layer in enumerate(layers)}
        self._writers = [self._written_by(one) for one in slicer.sets]
        """By set of channels; empty if they stay."""
        self._cut = [writers for writers in self._writers if writers]
        if not self._cut:
            raise ValueError("no layer that is ranked can be made narrower")
        self._channels = make_layers(
            (f"channels {n}", (len(writers[0][1]), self._weights_of_a_channel(writers)), 0)
            for n, writers in enumerate(self._cut)
        )
        """The sets that are cut, as layers to be ranked: a channel is a group of all the weights
        that write it."""

    def _written_by(self, one: Tied) -> Writers:
        """Who writes these channels; none if a layer that is not ranked does, and so keeps them."""
        writing = [m for m in one.members if m.dim == 0 and self._is_filters(m.parameter)]
        if any(m.parameter not in self._numbers for m in writing):
            return []
        return [(self._numbers[m.parameter], m.index) for m in writing]

    def _is_filters(self, name: str) -> bool:
        p = self._slicer.params.get(name)
        return p is not None and p.ndim > 1

    def _weights_of_a_channel(self, writers: Writers) -> int:
        return sum(self._layers[i].group_size * rows.shape[1] for i, rows in writers)

    @torch.no_grad()
    def ranks(
        self,
        weights: Mapping[str, Tensor],
        min_density: float,
        known: Sequence[Tensor] = (),
        first: Sequence[int] = (),
    ) -> list[Tensor]:
        """By layer, the rank of each filter: by size, every set of channels for itself.

        Args:
            weights: by the layer's name.
            min_density: the width of rank 0; every set keeps a channel at least.
            known: the ranking until now.
            first: ranks of it whose channels come first for good, those of the lowest before all.
        """
        sizes = [layer.norms(weights[layer.name].detach()) for layer in self._layers]
        scores = [
            rank_shares(torch.stack([sizes[i][rows].square().sum(1) for i, rows in writers]).sum(0))
            for writers in self._cut
        ]
        if first:
            scores = [
                rank_shares(score + _counted(known[writers[0][0]][writers[0][1][:, 0]], first))
                for score, writers in zip(scores, self._cut, strict=True)
            ]
        # A filter that is never cut is in every width, and takes no part in the ranking.
        ranks = [torch.zeros_like(size, dtype=torch.uint8) for size in sizes]
        found = budget_ranks(scores, self._channels, min_density, 1)
        for writers, rank in zip(self._cut, found, strict=True):
            for i, rows in writers:
                ranks[i][rows] = rank[:, None]
        return ranks

    def shares(self, ranks: Sequence[Tensor]) -> NDArray[np.float64]:
        """By rank, the width of its network."""
        weights = np.zeros(WHOLE + 1)
        for layer, writers in zip(self._channels, self._cut, strict=True):
            i, rows = writers[0]
            channels = ranks[i][rows[:, 0]].cpu().numpy()
            weights += layer.group_size * np.bincount(channels, minlength=WHOLE + 1)
        return cumulative_share(weights)

    def kept(self, ranks: Sequence[Tensor], rank: int) -> list[Tensor]:
        """By set of channels, which are in the network of a rank."""
        return [
            (ranks[writers[0][0]][writers[0][1][:, 0]] <= rank).cpu()
            if writers
            else torch.ones(one.channels, dtype=torch.bool)
            for one, writers in zip(self._slicer.sets, self._writers, strict=True)
        ]

    def dependents(self) -> dict[str, NDArray[np.int32]]:
        """Biases and BatchNorm parameters: the filter that each element leaves with, or -1.

        Filters are numbered through all layers, as in a path.
        """
        found: dict[str, NDArray[np.int32]] = {}
        for one, writers in zip(self._slicer.sets, self._writers, strict=True):
            for member in one.members if writers else ():
                p = self._slicer.params.get(member.parameter)
                if p is not None and p.ndim == 1:
                    i, rows = writers[0]
                    numbers = found.setdefault(
                        member.parameter, np.full(len(p), -1, dtype=np.int32)
                    )
                    numbers[member.index.numpy()] = self._layers[i].offset + rows.numpy()[:, :1]
        return found


def _counted(ranks: Tensor, networks: Sequence[int]) -> Tensor:
    """How many of some networks, given by their ranks, have a channel."""
    return sum((ranks <= rank for rank in networks), torch.zeros_like(ranks))

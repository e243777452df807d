"""How much of a network is left when some groups of weights leave it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from dessilbi.graph.copies import with_known_norms
from dessilbi.graph.ties import tied_channels
from dessilbi.optim.prox import along

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor, nn

    from dessilbi.path import Layer


@dataclass(frozen=True)
class _Channels:
    """Channels that leave when all the filters that write them have."""

    start: int
    """Number of the first of them."""
    writers: list[tuple[int, Tensor]]
    """Layers by number, and which filters write each channel."""
    dependents: list[tuple[str, Tensor]]
    """Biases and norms, and which elements go with each channel."""


class CompactSize:
    """The size of the compact network, as a function of the groups that stay.

    A filter that is off leaves, and so do the weights of the next layers that read its channel. It
    is counted where its channel stays: because the network holds it, or because another layer
    writes to the same residual stream. Single weights are counted where they are not zero.

    Args:
        model: the network.
        layers: the weights that are counted, and their groups.
        example_input: a batch to follow through the network, or a tuple of arguments whose first is
            one. Without it no channel is known: the weights of the groups that stay are counted.
        prices: by layer, what a weight counts; 1 where it is not named.
    """

    def __init__(
        self,
        model: nn.Module,
        layers: Sequence[Layer],
        example_input: Any = None,
        prices: Mapping[str, float] | None = None,
    ) -> None:
        self._layers = layers
        self._prices = [(prices or {}).get(layer.name, 1.0) for layer in layers]
        self._sides: list[dict[int, Tensor]] = [{} for _ in layers]
        """By layer and dimension, the channel of each slice, or -1 where none is known."""
        self._sets: list[_Channels] = []
        self._known = example_input is not None
        self._lengths: dict[str, int] = {}
        """Of the biases and norms that leave with channels."""
        self._count = 0
        if self._known:
            self._read(model, example_input)

    def _read(self, model: nn.Module, example_input: Any) -> None:
        numbers = {layer.name: i for i, layer in enumerate(self._layers)}
        params = dict(model.named_parameters())
        for one in tied_channels(with_known_norms(model), example_input):
            members = [m for m in one.members if m.parameter in params]  # norms may have none
            weights = [m for m in members if params[m.parameter].ndim > 1]
            writing = [m for m in weights if m.dim == 0]
            ranked = all(
                m.parameter in numbers and self._layers[numbers[m.parameter]].group_dim == 0
                for m in writing
            )
            if not (one.free and writing and ranked):
                continue
            channels = torch.arange(self._count, self._count + one.channels)
            for m in weights:
                if m.parameter in numbers:
                    i = numbers[m.parameter]
                    known = self._sides[i].setdefault(
                        m.dim, torch.full((self._layers[i].shape[m.dim],), -1)
                    )
                    known[m.index] = channels[:, None]
            dependents = [m for m in members if params[m.parameter].ndim == 1]
            self._lengths |= {m.parameter: len(params[m.parameter]) for m in dependents}
            self._sets.append(
                _Channels(
                    self._count,
                    [(numbers[m.parameter], m.index) for m in writing],
                    [(m.parameter, m.index) for m in dependents],
                )
            )
            self._count += one.channels

    @property
    def additive(self) -> bool:
        """Whether every group counts what it counts, whichever others stay."""
        single = all(layer.group_dim is None for layer in self._layers)
        return not self._known or (single and not self._sets)

    @property
    def total(self) -> float:
        """The size of the whole network."""
        return sum(
            layer.numel * price for layer, price in zip(self._layers, self._prices, strict=True)
        )

    def price(self, layer: int) -> float:
        """What a group of a layer counts, if sizes are additive."""
        return self._layers[layer].group_size * self._prices[layer]

    def __call__(self, kept: Sequence[Tensor]) -> float:
        """The size that is left.

        Args:
            kept: by layer, which groups stay.
        """
        stays = self._stays(kept)
        size = 0.0
        for layer, groups, sides, price in zip(
            self._layers, kept, self._sides, self._prices, strict=True
        ):
            slices = {dim: stays[channels] for dim, channels in sides.items()}
            if layer.group_dim is None:
                weights = groups.view(layer.shape)
                for dim, bits in slices.items():
                    weights = weights & along(bits, weights.ndim, dim)
                size += price * int(weights.sum())
                continue
            if not self._known:
                slices[layer.group_dim] = groups
            shape = [int(slices[d].sum()) if d in slices else n for d, n in enumerate(layer.shape)]
            size += price * math.prod(shape)
        return size

    def _stays(self, kept: Sequence[Tensor]) -> Tensor:
        """By channel, whether any filter that writes it stays; the last is for -1."""
        stays = torch.zeros(self._count + 1, dtype=torch.bool)
        stays[-1] = True
        for one in self._sets:
            for i, index in one.writers:
                stays[one.start : one.start + len(index)] |= kept[i][index].any(1)
        return stays

    def dependents(self, kept: Sequence[Tensor]) -> dict[str, Tensor]:
        """Masks of biases and norms: what belongs to a channel that leaves must not go on acting.

        Args:
            kept: by layer, which groups stay.
        """
        found = {name: torch.ones(n, dtype=torch.bool) for name, n in self._lengths.items()}
        stays = self._stays(kept)
        for one in self._sets:
            for name, index in one.dependents:
                bits = stays[one.start : one.start + len(index)]
                found[name][index] = bits[:, None].expand_as(index)
        return found

"""Channels that must stay or leave together.

A tensor that flows through a network has channels: dimension 1 of a feature map, the last one of
what a linear layer gives. Layers that mix channels (convolutions, linear layers) begin new ones;
layers that work on each alone pass them on; a sum ties those of its two sides. Channels that are
tied form a *class*: the filter that writes one, the normalisation that scales it and the weights
that read it are cut together or not at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, eq=False)
class Flow:
    """The channels of one tensor."""

    shape: tuple[int, ...]
    dim: int
    """Where the channels are."""
    ids: Tensor
    """Number of each channel's class."""
    constant: Tensor
    """Float64 by channel: the value that it has everywhere and always, NaN if there is none."""

    @property
    def known(self) -> Tensor:
        """Which channels are constant."""
        return ~self.constant.isnan()

    def __len__(self) -> int:
        return len(self.ids)


class Classes:
    """Classes under construction: numbers, and which of them are the same."""

    def __init__(self) -> None:
        self._parent: list[int] = []

    def new(self, count: int) -> Tensor:
        """Numbers of classes that did not exist yet."""
        first = len(self._parent)
        self._parent.extend(range(first, first + count))
        return torch.arange(first, first + count)

    def unite(self, some: Tensor, others: Tensor) -> None:
        """Make two lists of classes the same, one by one."""
        for a, b in zip(some.tolist(), others.tolist(), strict=True):
            ra, rb = self._root(a), self._root(b)
            self._parent[max(ra, rb)] = min(ra, rb)

    def roots(self) -> Tensor:
        """One number for each class, by all of its numbers."""
        return torch.tensor([self._root(i) for i in range(len(self._parent))], dtype=torch.long)

    def _root(self, i: int) -> int:
        parent = self._parent
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i


class KeptChannels:
    """Which classes stay; they are only ever added, and to keep one more is always exact."""

    def __init__(self, classes: Classes) -> None:
        self._roots = classes.roots()
        self._kept = torch.zeros(len(self._roots), dtype=torch.bool)
        self._carriers = torch.zeros_like(self._kept)

    def of(self, flow: Flow) -> Tensor:
        """Which channels of a tensor stay."""
        return self._kept[self._roots[flow.ids]]

    def carriers(self, flow: Flow) -> Tensor:
        """Which channels stay only to carry the constants of others."""
        return self._carriers[self._roots[flow.ids]]

    def add(self, flow: Flow, which: Tensor) -> None:
        """Keep the classes of some channels."""
        self._kept[self._roots[flow.ids[which]]] = True

    def add_all(self, flow: Flow) -> None:
        """Keep all channels of a tensor."""
        self._kept[self._roots[flow.ids]] = True

    def add_carrier(self, flow: Flow, channel: int) -> None:
        """Keep a dead channel for its constant."""
        root = self._roots[flow.ids[channel]]
        self._carriers[root] |= not self._kept[root]
        self._kept[root] = True

    @property
    def count(self) -> int:
        """How many classes stay."""
        return int(self._kept.sum())

    @property
    def carrier_count(self) -> int:
        """How many stay for their constant only."""
        return int(self._carriers.sum())

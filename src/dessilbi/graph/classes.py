"""Classes: positions of tensors that must stay or leave together.

Every position of a parameter's dimension gets a number. Where tensors meet value by value their
numbers are tied; what cannot leave is held. A class is all numbers that are tied to each other: the
filter that writes a channel, the normalisation that scales it and the weights that read it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor


class Classes:
    """Numbers under construction, which of them are tied, and which are held."""

    def __init__(self) -> None:
        self._count = 0
        self._edges: list[Tensor] = []
        self._held: list[Tensor] = []

    def new(self, count: int) -> Tensor:
        """Numbers that did not exist yet."""
        first, self._count = self._count, self._count + count
        return torch.arange(first, self._count)

    def tie(self, some: Tensor, others: Tensor) -> None:
        """Make two tensors of numbers the same, one by one; shapes broadcast."""
        shape = torch.broadcast_shapes(some.shape, others.shape)  # type: ignore[no-untyped-call]
        a, b = some.expand(shape).reshape(-1), others.expand(shape).reshape(-1)
        differ = a != b
        if bool(differ.any()):
            # Each pair once, as one number.
            pairs = torch.unique(a[differ] * self._count + b[differ])
            self._edges.append(torch.stack([pairs // self._count, pairs % self._count]))

    def hold(self, numbers: Tensor) -> None:
        """These cannot leave."""
        self._held.append(torch.unique(numbers))

    def roots(self) -> Tensor:
        """One number for each class, the lowest of it, by all of its numbers."""
        root = torch.arange(self._count)
        if not self._edges:
            return root
        a, b = torch.cat(self._edges, 1)
        while True:
            lowest = torch.minimum(root[a], root[b])
            before = root.clone()
            root.scatter_reduce_(0, root[a], lowest, "amin")
            root.scatter_reduce_(0, root[b], lowest, "amin")
            root = root[root]
            if torch.equal(root, before):
                return root

    def held(self, roots: Tensor) -> Tensor:
        """By number, whether its class is held."""
        found = torch.zeros(self._count, dtype=torch.bool)
        if self._held:
            found[roots[torch.cat(self._held)]] = True
        return found[roots]


class Kept:
    """Which classes stay; they are only ever added, and to keep one more is always exact."""

    def __init__(self, classes: Classes) -> None:
        self.roots = classes.roots()
        self._kept = classes.held(self.roots)
        self._carriers = torch.zeros_like(self._kept)

    def of(self, ids: Tensor) -> Tensor:
        """Which positions stay."""
        return self._kept[self.roots[ids]]

    def carriers(self, ids: Tensor) -> Tensor:
        """Which positions stay only to carry the constants of others."""
        return self._carriers[self.roots[ids]]

    def add(self, ids: Tensor) -> None:
        """Keep the classes of some positions."""
        self._kept[self.roots[ids]] = True

    def add_carrier(self, number: Tensor) -> None:
        """Keep a dead channel for its constant."""
        root = self.roots[number]
        self._carriers[root] |= not self._kept[root]
        self._kept[root] = True

    @property
    def count(self) -> int:
        """How many classes stay."""
        return int((self._kept & (self.roots == torch.arange(len(self.roots)))).sum())

    @property
    def carrier_count(self) -> int:
        """How many stay for their constant only."""
        return int(self._carriers.sum())

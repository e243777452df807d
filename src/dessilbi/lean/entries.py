"""Which weights of a layer there are, and what each of them reads.

A convolution by entries: an output is the sum of entries, each a value times the input some pixels
on. Its gradient by the input is of the same kind, with inputs and outputs exchanged and the window
turned round.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from ._kernel import gather, rank

if TYPE_CHECKING:
    from torch import Tensor

Shape = tuple[int, int, int, int]


@dataclass(frozen=True)
class Lists:
    """Entries by row, as the kernel takes them."""

    first: Tensor
    """Where each row begins, and the last one ends; int64."""
    count: Tensor
    """How many entries of each row there are; int32."""
    pixels: Tensor
    """What an entry reads: pixels from the beginning of a padded image; int32."""


class Ranked:
    """The weights of a layer that are there at small budgets, by level.

    In each row the lower levels come first, so that what is there at a level is the beginning of
    every row: choosing one takes no longer than there are rows.

    Args:
        levels: uint8, shaped as the weight of a linear layer or a convolution.
        highest: the last level that is wanted.
    """

    def __init__(self, levels: Tensor, highest: int) -> None:
        outputs, inputs = levels.shape[:2]
        height, width = (*levels.shape[2:], 1, 1)[:2]
        self.shape = (outputs, inputs, height, width)
        self._levels = highest + 1
        flat = levels.flatten()
        index = (flat <= highest).nonzero().flatten()
        output = index // (inputs * height * width)
        self._by_output = _Rows(output, flat[index], outputs, self._levels)
        self.index = index[self._by_output.order]
        """Their places in the flat weight, in the order of the values."""
        self._level = flat[self.index]
        self._known: dict[tuple[int, int, bool], Tensor] = {}

    @cached_property
    def _places(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Output, input, row and column of every entry."""
        _, inputs, height, width = self.shape
        rest = self.index // width
        channel = rest // height
        return channel // inputs, channel % inputs, rest % height, self.index % width

    @cached_property
    def _by_input(self) -> _Rows:
        return _Rows(self._places[1], self._level, self.shape[1], self._levels)

    @property
    def turned_order(self) -> Tensor:
        """The entries by input."""
        return self._by_input.order

    def rows(self, *, turned: bool) -> _Rows:
        """Where outputs, or inputs, begin and end."""
        return self._by_input if turned else self._by_output

    def pixels(self, height: int, width: int, *, turned: bool) -> Tensor:
        """What the entries read of images of a padded size."""
        key = (height, width, turned)
        if key not in self._known:
            writes, reads, i, j = self._places
            if turned:
                reads, i, j = writes, self.shape[2] - 1 - i, self.shape[3] - 1 - j
            pixels = ((reads * height + i) * width + j).int()
            self._known[key] = pixels[self.turned_order] if turned else pixels
        return self._known[key]

    def at(self, level: int) -> Sparse:
        """Those that are there at a level."""
        return Sparse(self, *(rows.up_to[level] for rows in (self._by_output, self._by_input)))

    @cached_property
    def moving(self) -> Moving:
        """One for all levels, for passes that are recorded."""
        return Moving(self)


class Sparse:
    """The weights of a layer up to a level; values are in the order of the ranking's index."""

    def __init__(self, ranked: Ranked, by_output: Tensor, by_input: Tensor) -> None:
        self.shape = ranked.shape
        self._ranked = ranked
        self._count = (by_output, by_input)

    def lists(self, height: int, width: int, *, turned: bool = False) -> Lists:
        """The entries over images of a padded size.

        Args:
            height: of the padded image.
            width: of the padded image.
            turned: by input, as the gradient needs them.
        """
        pixels = self._ranked.pixels(height, width, turned=turned)
        return Lists(self._ranked.rows(turned=turned).first, self._count[turned], pixels)

    def turned(self, values: Tensor) -> Tensor:
        """Values in the order of the turned lists."""
        return gather(values, self._ranked.turned_order)


class Moving(Sparse):
    """The same in memory that stays while the level changes."""

    def __init__(self, ranked: Ranked) -> None:
        rows = [ranked.rows(turned=turned) for turned in (False, True)]
        super().__init__(ranked, *(r.up_to[0].clone() for r in rows))
        self._up_to = [r.up_to for r in rows]
        self._values: Tensor | None = None

    def to(self, level: int, weight: Tensor) -> tuple[Moving, Tensor]:
        """Itself at a level, and the values of a weight's entries."""
        for count, up_to in zip(self._count, self._up_to, strict=True):
            count.copy_(up_to[level])
        if self._values is None:
            self._values = weight.new_empty(len(self._ranked.index))
        torch.index_select(weight.flatten(), 0, self._ranked.index, out=self._values)
        return self, self._values


class _Rows:
    """Entries sorted by row and level: their order, where rows begin, how many a level has."""

    def __init__(self, row: Tensor, level: Tensor, rows: int, levels: int) -> None:
        self.order, self.up_to, self.first = rank(row, level.contiguous(), rows, levels)

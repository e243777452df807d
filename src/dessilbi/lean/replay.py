"""Passes that are made many times with weights that stay in their place: recorded, then played."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ._library import Recorder

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from .layer import Gradients, Weight
    from .program import OnePass, Program

_MOST = 2**28
"""Bytes that a recording may hold. Where more flows, python takes a small part of the time, and a
recording, which keeps what a pass would let go, too much memory."""


class Replays:
    """Recorded passes of a program.

    A batch of another shape, such as the last one of an epoch, is run without; weights that moved,
    and batches of a new shape that keep coming, are recorded anew.

    Args:
        program: what is run.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self._recorded: _Recorded | None = None
        self._others = 0
        """Batches of another shape in a row."""
        self._too_large: torch.Size | None = None
        """Of a batch."""

    def run(
        self, x: Tensor, weights: Mapping[str, Weight], asked: frozenset[str]
    ) -> _Recorded | None:
        """A pass; ``None`` if it is none for a recording."""
        if self._recorded is not None:
            if self._recorded.fits(x, weights, asked):
                self._others = 0
                return self._recorded.again()
            self._others += 1
            if self._recorded.batch.shape != x.shape and self._others < 3:
                return None
        self._others = 0
        self._recorded = None
        if x.shape != self._too_large and all(
            layer.recordable(weights) for layer in self._program.layers
        ):
            recorded = _Recorded(self._program, x, weights, asked)
            if recorded.bytes <= _MOST:
                self._recorded = recorded
                return recorded
            self._too_large = x.shape
        return None


class _Recorded:
    """One recording, and the pass that it was last played for."""

    def __init__(
        self, program: Program, x: Tensor, weights: Mapping[str, Weight], asked: frozenset[str]
    ) -> None:
        self.batch, self._asked = x, asked
        with Recorder() as self._forward:
            self._done: OnePass = program.run_once(x, weights, asked)
        self._names = [name for layer in program.layers for name in layer.weights]
        self._places = self._where(weights)
        self.kept = self._done.kept
        self.output = self._done.output.clone()
        self._given = torch.empty_like(self._done.output)
        self._backward: Recorder | None = None
        self._gradients: Gradients = {}

    @property
    def bytes(self) -> int:
        """What is held; the backward pass holds about as much again."""
        return sum(t.nbytes for t in self._forward.kept)

    def _where(self, weights: Mapping[str, Weight]) -> list[Any]:
        return [_place(weights[name]) for name in self._names]

    def fits(self, x: Tensor, weights: Mapping[str, Weight], asked: frozenset[str]) -> bool:
        """Whether this would read what it should."""
        return (
            x.data_ptr() == self.batch.data_ptr()
            and x.shape == self.batch.shape
            and asked == self._asked
            and self._where(weights) == self._places
        )

    def again(self) -> _Recorded:
        """The forward pass of what is in its memory now."""
        self._forward.play()
        self.output = self._done.output.clone()
        return self

    def backward(self, gradient: Tensor) -> Gradients:
        """See :class:`Pass`."""
        self._given.copy_(gradient)
        if self._backward is None:
            with Recorder() as recorder:
                self._gradients = self._done.backward(self._given)
            self._backward = recorder
        else:
            self._backward.play()
        return {name: found.clone() for name, found in self._gradients.items()}


def _place(weight: Weight) -> tuple[Any, ...]:
    """What must be the same for a recording to read the right memory."""
    if isinstance(weight, torch.Tensor):
        return weight.data_ptr(), weight.shape, weight.stride()
    entries, values = weight
    return entries, values.data_ptr()

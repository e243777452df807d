"""What a layer of a program is, and what it is given.

Tensors have their examples last in memory, ``[channel, row, column, image]`` or ``[feature,
example]``, and are dense.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from . import _kernel
from .entries import Moving

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from .entries import Sparse

    Weight = Tensor | tuple[Sparse, Tensor]
    Gradients = dict[str, Tensor]


class UnsuitedError(RuntimeError):
    """A network, or what it is given, is none for the kernels."""


def examples_last(x: Tensor) -> Tensor:
    """The layout of a program's tensors."""
    return x.movedim(0, -1).contiguous() if x.ndim > 1 else x


def examples_first(x: Tensor) -> Tensor:
    """The reverse, a view: how torch has it."""
    return x.movedim(-1, 0) if x.ndim > 1 else x


@dataclass
class Wanted:
    """What a backward pass is asked for, and the gradients of weights that it finds."""

    inputs: bool
    """Whether the layer's inputs need gradients."""
    weights: frozenset[str]
    found: Gradients = field(default_factory=dict)

    def wants(self, name: str | None) -> bool:
        """Whether the gradient of a weight is asked for."""
        return name is not None and name in self.weights

    def give(self, name: str | None, gradient: Tensor | None) -> None:
        """The gradient of a weight, if it is wanted; several uses of one are added up."""
        if name is not None and name in self.weights and gradient is not None:
            old = self.found.get(name)
            self.found[name] = gradient if old is None else _kernel.total(old, gradient)


@dataclass(frozen=True)
class Layer:
    """One step of a program; the numbers are those of its values."""

    inputs: tuple[int, ...]
    output: int

    @property
    def weights(self) -> tuple[str, ...]:
        """Names of the weights that it takes."""
        return ()

    def recordable(self, weights: Mapping[str, Weight]) -> bool:
        """Whether passes are calls of kernels alone, which can be recorded."""
        return False

    def forward(self, weights: Mapping[str, Weight], *x: Any) -> tuple[Any, Any]:
        """The result, and what the backward pass needs."""
        raise AssertionError

    def backward(
        self, weights: Mapping[str, Weight], kept: Any, dy: Tensor, wanted: Wanted
    ) -> tuple[Tensor | None, ...]:
        """Gradients of the inputs; those of weights go to ``wanted``."""
        raise AssertionError


def plain(weights: Mapping[str, Weight], names: tuple[str, ...]) -> bool:
    """Whether these are what the kernels read as they are."""
    return all(
        w.is_contiguous() if isinstance(w, torch.Tensor) else isinstance(w[0], Moving)
        for w in (weights[name] for name in names)
    )


def dense(weights: Mapping[str, Weight], name: str) -> Tensor:
    """A weight that must be all there."""
    weight = weights[name]
    if not isinstance(weight, torch.Tensor):
        raise UnsuitedError(f"only some of {name!r} are there, which no kernel here knows")
    return weight.contiguous()


def of_dimension(ndim: int, values: Any) -> Any:
    """Values that must be tensors of so many dimensions."""
    if any(not isinstance(v, torch.Tensor) or v.ndim != ndim for v in values):
        raise UnsuitedError(f"expected tensors of {ndim} dimensions")
    return values

"""What is known of a tensor in the graph: who its positions belong to, and what is constant.

A *factor* is a tensor of numbers (:mod:`.classes`) with as many dimensions as the value has; where
it does not depend on a dimension its size there is 1. A position of the value is there if all its
factors' classes stay. So a feature map has one factor, over its channels; the heads of an attention
layer are one over heads and their features; a matrix has two, over its rows and over its columns. A
dimension without a factor is never cut.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, cast

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from torch import Tensor

    from .classes import Classes

Shape = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Leaf:
    """A parameter or buffer of the network, as the graph reads it."""

    name: str
    tensor: Tensor
    ids: tuple[Tensor | None, ...]
    """By dimension, the number of each slice; none where there is only one slice."""


@dataclass(frozen=True, eq=False)
class Value:
    """A tensor in the graph."""

    shape: Shape
    factors: tuple[Tensor, ...] = ()
    constant: Tensor | None = None
    """Float64, broadcastable to the shape: what a position always is, NaN where that varies with
    the input; ``None`` if it varies everywhere."""
    leaf: Leaf | None = None
    """Of a parameter or buffer as it is."""
    numeric: Callable[[], Tensor] | None = field(default=None, repr=False)
    """The tensor itself, if it depends on parameters only."""
    sums_to_one: bool = False
    """Along the last dimension, as a softmax does."""

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def fixed(self) -> bool:
        """Whether it depends on parameters only."""
        return self.numeric is not None

    def known(self) -> Tensor | None:
        """What is constant, also of a parameter."""
        if self.constant is None and self.numeric is not None:
            made = self.numeric().detach()
            return made.cpu().double() if made.is_floating_point() else None
        return self.constant


def broadcast(*shapes: Iterable[int]) -> Shape:
    """The shape that tensors of these have together."""
    return tuple(torch.broadcast_shapes(*map(tuple, shapes)))  # type: ignore[no-untyped-call]


def support(factor: Tensor) -> set[int]:
    """The dimensions that a factor depends on."""
    return {d for d, n in enumerate(factor.shape) if n > 1}


def collapsed(grid: Tensor) -> Tensor:
    """The same with size 1 in every dimension that it does not depend on."""
    for d, n in enumerate(grid.shape):
        if n > 1:
            first = grid.narrow(d, 0, 1)
            if bool((grid == first).all()):
                grid = first
    return grid


def settled(constant: Tensor | None, factors: Iterable[Tensor], shape: Shape) -> Tensor | None:
    """Constants that are the same along all dimensions without a factor; others vary."""
    if constant is None or not bool(constant.isfinite().any()):
        return None
    cut: set[int] = set().union(*map(support, factors))
    constant = constant.expand(broadcast(constant.shape, (1,) * len(shape)))
    for d, n in enumerate(constant.shape):
        if n > 1 and d not in cut:
            first = constant.narrow(d, 0, 1)
            same = ((constant == first) & first.isfinite()).all(d, keepdim=True)
            constant = torch.where(same, first, torch.nan)
    constant = torch.where(constant.isfinite(), constant, torch.nan)
    return constant if bool(constant.isfinite().any()) else None


def axis(classes: Classes, value: Value, dim: int) -> Tensor:
    """The numbers along one dimension, which from here on is cut on its own.

    Where nothing is known of it, new ones that are held.
    """
    dim %= value.ndim
    mine = [f for f in value.factors if f.shape[dim] > 1]
    if not mine:
        ids = classes.new(value.shape[dim])
        classes.hold(ids)
        return ids
    first = None
    for factor in mine:
        flat = factor.movedim(dim, 0).reshape(factor.shape[dim], -1)
        classes.tie(flat, flat[:, :1])
        if first is not None:
            classes.tie(first, flat[:, 0])
        first = flat[:, 0] if first is None else first
    return cast("Tensor", first)


def along(ids: Tensor, ndim: int, dim: int) -> Tensor:
    """Numbers of one dimension as a factor."""
    shape = [1] * ndim
    shape[dim] = len(ids)
    return ids.reshape(shape)


def uniform(classes: Classes, value: Value, dims: Iterable[int]) -> Value:
    """The value when some dimensions are not cut: what depends on them alone is held."""
    over = {d % value.ndim for d in dims} if value.ndim else set()
    factors = []
    for factor in value.factors:
        touched = support(factor) & over
        if not touched:
            factors.append(factor)
            continue
        first = factor
        for d in touched:
            first = first.narrow(d, 0, 1)
        if support(first):
            classes.tie(factor, first)
            factors.append(first)
        else:
            classes.hold(factor)
    constant = settled(value.constant, factors, value.shape)
    return replace(value, factors=tuple(factors), constant=constant)


def hold(classes: Classes, value: Value) -> None:
    """None of a value's positions can leave."""
    for factor in value.factors:
        classes.hold(factor)


def aligned(tensor: Tensor, ndim: int) -> Tensor:
    """With leading dimensions of size 1, as in broadcasting."""
    return tensor.reshape((1,) * (ndim - tensor.ndim) + tuple(tensor.shape))


def merged(classes: Classes, values: Sequence[Value], shape: Shape) -> tuple[Tensor, ...]:
    """The factors of what several values give that meet value by value."""
    ndim = len(shape)
    found: list[Tensor] = []
    # Those that depend on the input first: parameters follow them.
    for value in sorted(values, key=lambda v: v.fixed):
        for factor in value.factors:
            new = aligned(factor, ndim)
            rest = []
            for known in found:
                if not support(known) & support(new):
                    rest.append(known)
                elif value.fixed and support(new) < support(known):
                    # One scale for all heads: what is left of the factor are the heads.
                    classes.hold(new)
                    new = _without(classes, known, support(new))
                else:
                    classes.tie(known, new)
                    new = known if len(support(known)) <= len(support(new)) else new
            found = [*rest, new]
    return tuple(
        left for factor in found if (left := _fitted(classes, factor, values, ndim)) is not None
    )


def _without(classes: Classes, factor: Tensor, dims: Iterable[int]) -> Tensor:
    """A factor that does not depend on some dimensions."""
    first = factor
    for d in dims:
        first = first.narrow(d, 0, 1)
    classes.tie(factor, first)
    return first


def _fitted(classes: Classes, factor: Tensor, values: Sequence[Value], ndim: int) -> Tensor | None:
    """A factor when a value that cannot be cut along some of its dimensions takes part."""
    for value in values:
        over = support(factor)
        full = over & {d + ndim - value.ndim for d, n in enumerate(value.shape) if n > 1}
        own = [aligned(f, ndim) for f in value.factors]
        if not full or any(support(f) & over for f in own):
            continue
        first = factor
        for d in full:
            first = first.narrow(d, 0, 1)
        if not support(first):
            classes.hold(factor)
            return None
        classes.tie(factor, first)
        factor = first
    return factor

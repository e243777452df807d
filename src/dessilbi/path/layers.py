"""The layers of a path: which weights have a twin, and how they fall into groups.

A *group* is what enters or leaves the support of Gamma as one: a filter under the group Lasso, a
single weight under the Lasso. Groups of all layers are numbered through, layer after layer.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from dessilbi._text import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor

    from dessilbi.optim.prox import PenaltyKind


@dataclass(frozen=True)
class Layer:
    """One weight tensor with a twin."""

    name: str
    """As ``model.named_parameters()`` calls it."""
    shape: tuple[int, ...]
    penalty: PenaltyKind
    """``"lasso"`` or ``"group_lasso"``."""
    group_dim: int | None
    """Dimension whose slices are the groups; ``None`` for the Lasso."""
    groups: int
    offset: int
    """Number of the layer's first group among the groups of all layers."""
    tied: str | None = field(default=None, compare=False)
    """The first of the layers whose groups of equal number enter together with these, at their
    joint norm; ``None`` if each layer's enter alone."""

    @property
    def exact(self) -> bool:
        """Whether entries and leaves are known to the step, not only between two marks."""
        return self.penalty == "group_lasso"

    @property
    def numel(self) -> int:
        """Number of weights."""
        return math.prod(self.shape)

    @property
    def group_size(self) -> int:
        """Number of weights of one group."""
        return self.numel // self.groups if self.groups else 0

    @property
    def rows(self) -> int:
        """How many norms are kept: one a group, and for the Lasso one a slice along dim 0."""
        return self.groups if self.exact else (self.shape[0] if self.shape else 1)

    @property
    def slice(self) -> slice:
        """Its groups among the groups of all layers."""
        return slice(self.offset, self.offset + self.groups)

    def expand(self, active: Tensor) -> Tensor:
        """A vector over groups as a tensor shaped as the weights."""
        if self.group_dim is None:
            return active.reshape(self.shape).clone()
        shape = [n if d == self.group_dim else 1 for d, n in enumerate(self.shape)]
        return active.reshape(shape).expand(self.shape).contiguous()

    def groups_in(self, kept: Tensor) -> Tensor:
        """The inverse of :meth:`expand`: which groups a mask of the weights keeps."""
        if self.group_dim is None:
            return kept.flatten()
        return kept.movedim(self.group_dim, 0).flatten(1).any(1)

    def norms(self, x: Tensor) -> Tensor:
        """Euclidean norms of a tensor shaped as the weights: one for each of :attr:`rows`."""
        dim = self.group_dim or 0
        if x.ndim < 2:
            return x.abs().flatten()
        norms: Tensor = torch.linalg.vector_norm(x.movedim(dim, 0).flatten(1), dim=1)
        return norms

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        values = asdict(self)
        return {**values, "coupled": values.pop("tied")}  # as version 1 of the file calls it

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Layer:
        """The inverse of :meth:`to_json`."""
        values = {**values, "shape": tuple(values["shape"]), "tied": values.get("coupled")}
        values.pop("coupled", None)
        return cls(**values)


def make_layers(
    described: Iterable[tuple[str, tuple[int, ...], int | None]],
) -> tuple[Layer, ...]:
    """Layers from names, shapes and group dimensions (``None``: Lasso), numbered through."""
    layers: list[Layer] = []
    offset = 0
    for name, shape, dim in described:
        penalty: PenaltyKind = "lasso" if dim is None else "group_lasso"
        groups = math.prod(shape) if dim is None else shape[dim]
        layers.append(Layer(name, shape, penalty, dim, groups, offset))
        offset += groups
    return tuple(layers)


def tied_sets(layers: Iterable[Layer]) -> list[tuple[Layer, ...]]:
    """Layers whose groups of equal number can only be kept together; most are alone."""
    found: dict[str, list[Layer]] = {}
    for layer in layers:
        found.setdefault(layer.tied or layer.name, []).append(layer)
    return [tuple(together) for together in found.values()]


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    """An error message for a name that does not exist, with the nearest one that does."""
    known = list(known)
    hint = did_you_mean(str(name), known, otherwise=f"; known: {', '.join(known) or 'none'}")
    return f"unknown {what} {name!r}{hint}"

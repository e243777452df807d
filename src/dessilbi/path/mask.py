"""Which weights are kept: a named, validated set of boolean tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from dessilbi.graph.names import named_weights

from . import _file, _mask_make, _mask_prune
from .layers import unknown
from .names import weights_with_twin
from .sharded import Whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path
    from typing import Literal

    from torch import Tensor

FORMAT, VERSION = "dessilbi-mask", 1

most_weights = _mask_make.most_weights


@dataclass(frozen=True, eq=False, repr=False)
class Mask(Mapping[str, torch.Tensor]):
    """Boolean tensors by parameter name, True where a weight is kept.

    Parameters that a mask does not name are not masked. Tensors are copied to the CPU and must not
    be written to.

    Example:
        >>> a, b = (Mask({"w": torch.tensor(t)}) for t in ([True, False], [True, True]))
        >>> a.density, a.issubset(b), (a & b) == a
        (0.5, True, True)
    """

    tensors: Mapping[str, Tensor]

    def __post_init__(self) -> None:
        copies = {}
        for name, t in self.tensors.items():
            if not isinstance(t, torch.Tensor) or t.dtype is not torch.bool:
                found = t.dtype if isinstance(t, torch.Tensor) else type(t).__name__
                raise ValueError(f"mask of {name!r} must be a bool tensor, got {found}")
            copies[name] = t.detach().to("cpu", copy=True).contiguous()
        object.__setattr__(self, "tensors", MappingProxyType(copies))

    @classmethod
    def of(cls, mask: Mapping[str, Tensor]) -> Mask:
        """A mask as it is, or made of boolean tensors by name, such as ``opt.mask()``."""
        return mask if isinstance(mask, Mask) else cls(mask)

    # ------------------------------------------------------------------ counting

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the masked parameters."""
        return tuple(self.tensors)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the masked parameters."""
        return {name: tuple(t.shape) for name, t in self.tensors.items()}

    @property
    def kept(self) -> int:
        """Number of weights that are kept."""
        return sum(int(t.sum()) for t in self.tensors.values())

    @property
    def total(self) -> int:
        """Number of weights that the mask speaks about."""
        return sum(t.numel() for t in self.tensors.values())

    @property
    def density(self) -> float:
        """Fraction of weights that is kept."""
        return self.kept / self.total if self.total else 0.0

    def layer_densities(self) -> dict[str, float]:
        """Fraction kept, by parameter."""
        return {n: int(t.sum()) / t.numel() if t.numel() else 0.0 for n, t in self.tensors.items()}

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.tensors:
            raise KeyError(unknown("parameter", name, self.tensors))
        return self.tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)

    def __repr__(self) -> str:
        return f"Mask({len(self.tensors)} tensors, {self.kept} of {self.total} weights kept)"

    # ------------------------------------------------------------------ as sets

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Mask):
            return NotImplemented
        return self.shapes == other.shapes and all(
            torch.equal(t, other.tensors[name]) for name, t in self.tensors.items()
        )

    __hash__ = None  # type: ignore[assignment]  # compared by content, which takes a while

    def __and__(self, other: Mask) -> Mask:
        return self._combined(other, torch.logical_and)

    def __or__(self, other: Mask) -> Mask:
        return self._combined(other, torch.logical_or)

    def issubset(self, other: Mask) -> bool:
        """Whether every weight that this mask keeps is kept by the other."""
        return (self & other) == self

    def _combined(self, other: Mask, how: Callable[[Tensor, Tensor], Tensor]) -> Mask:
        _check_shapes(self.shapes, other.shapes, "the other mask")
        _check_shapes(other.shapes, self.shapes, "this mask")
        return Mask({name: how(t, other.tensors[name]) for name, t in self.tensors.items()})

    # ------------------------------------------------------------------ a model

    def check(self, model: nn.Module) -> None:
        """Raise ValueError unless the model has every masked parameter, in the same shape."""
        shapes = {name: tuple(p.shape) for name, p in named_weights(model).items()}
        _check_shapes(self.shapes, shapes, "the model")

    @classmethod
    def from_prune(cls, model: nn.Module) -> Mask:
        """The masks of a model under :mod:`torch.nn.utils.prune`."""
        return cls(_mask_prune.read(model))

    def to_prune(self, model: nn.Module) -> None:
        """Prune the model in place with :func:`torch.nn.utils.prune.custom_from_mask`."""
        self.check(model)
        _mask_prune.apply(model, self.tensors)

    # ------------------------------------------------------------------ baselines

    @classmethod
    def random(
        cls,
        where: nn.Module | Mapping[str, Sequence[int]] | Mask,
        density: float | None = None,
        *,
        layer_densities: Mapping[str, float] | None = None,
        group_dims: Mapping[str, int] | None = None,
        generator: torch.Generator | None = None,
    ) -> Mask:
        """Weights drawn at random, as many as the density allows, exactly.

        Args:
            where: a model (its weights that get a twin by default), shapes by name, or a mask.
            density: fraction of all weights, wherever they fall.
            layer_densities: fraction of each tensor instead, such as ``mask.layer_densities()``.
            group_dims: dimension by name whose slices are kept or dropped as a whole, for tensors
                to be drawn by filter.
            generator: where randomness comes from.
        """
        if isinstance(where, nn.Module):
            shapes = {name: tuple(p.shape) for name, p in weights_with_twin(where).items()}
        elif isinstance(where, Mask):
            shapes = where.shapes
        else:
            shapes = {name: tuple(shape) for name, shape in where.items()}
        for given in (layer_densities or {}, group_dims or {}):
            for name in given:
                if name not in shapes:
                    raise ValueError(unknown("parameter", name, shapes))
        return cls(_mask_make.random(shapes, density, layer_densities, group_dims or {}, generator))

    @classmethod
    def magnitude(
        cls,
        model: nn.Module,
        density: float,
        scope: Literal["global", "layer"] = "global",
        names: Iterable[str] | None = None,
    ) -> Mask:
        """The largest weights of a model, as many as the density allows.

        Args:
            model: its weights are ranked by absolute value, those that tie by place.
            density: fraction to keep.
            scope: ``"global"``, of all weights; ``"layer"``, of each tensor.
            names: parameters to mask; by default those that get a twin by default.
        """
        if names is None:
            weights = weights_with_twin(model)
        else:
            known = named_weights(model)
            names = list(names)
            for name in names:
                if name not in known:
                    raise ValueError(unknown("parameter", name, known))
            weights = {name: known[name] for name in names}
        return cls(_mask_make.magnitude(dict(Whole(weights)), density, scope))

    # ------------------------------------------------------------------ keeping

    def save(self, file: str | Path) -> int:
        """Write the mask, a bit a weight, whole or not at all; returns the file's size."""
        packed = {name: np.packbits(t.numpy().reshape(-1)) for name, t in self.tensors.items()}
        shapes = [[name, list(shape)] for name, shape in self.shapes.items()]
        return _file.write(file, FORMAT, VERSION, {"shapes": shapes}, packed)

    @classmethod
    def load(cls, file: str | Path) -> Mask:
        """Read a mask; raises :class:`FormatError` for a damaged, foreign or newer file."""
        values, packed = _file.read(file, FORMAT, VERSION)
        try:
            tensors = {
                name: torch.from_numpy(
                    np.unpackbits(packed[name], count=math.prod(shape)).astype(np.bool_)
                ).reshape(shape)
                for name, shape in values["shapes"]
            }
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise _file.FormatError(
                f"{file} is damaged: its parts do not fit together ({error!r})"
            ) from error
        return cls(tensors)


def _check_shapes(
    ours: Mapping[str, tuple[int, ...]], theirs: Mapping[str, tuple[int, ...]], who: str
) -> None:
    for name, shape in ours.items():
        if name not in theirs:
            raise ValueError(f"{who} lacks a masked parameter: {unknown('name', name, theirs)}")
        if theirs[name] != shape:
            raise ValueError(
                f"mask of {name!r} has shape {shape}, but {who} has {theirs[name]} there; "
                "was it made for another network?"
            )

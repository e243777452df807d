"""Whether two networks are the same function, as far as inputs can tell."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map

from .errors import CompactError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

TOLERANCES = {torch.float64: 1e-10, torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 5e-2}
"""Largest difference that counts as rounding, relative to the largest output."""
EXAMPLES = 4
"""Random examples that a check looks at, at least."""


@dataclass(frozen=True)
class Difference:
    """How far the outputs of two networks are apart."""

    inputs: str
    """random or given"""
    dtype: str
    absolute: float
    relative: float
    """To the largest output of the masked model."""

    def __str__(self) -> str:
        return f"{self.relative:.1e} relative in {self.dtype} on {self.inputs} inputs"


def difference(
    small: Callable[..., Any],
    masked: Callable[..., Any],
    batches: Iterable[tuple[Any, ...]],
    kind: str,
) -> Difference:
    """The largest difference over batches; networks are to be in evaluation mode."""
    absolute = scale = 0.0
    dtype = "float32"
    with torch.no_grad():
        for arguments in batches:
            # Copies: a network may write to its input.
            wanted = _tensors(masked(*deepcopy(arguments)))
            found = _tensors(small(*deepcopy(arguments)))
            if [t.shape for t in wanted] != [t.shape for t in found]:
                raise CompactError(
                    f"the compact model gives outputs of shape {[tuple(t.shape) for t in found]}, "
                    f"the masked model {[tuple(t.shape) for t in wanted]}"
                )
            for a, b in zip(found, wanted, strict=True):
                if not bool(b.isfinite().all()):
                    raise CompactError(
                        "the masked model's output is not finite, so nothing can be compared; "
                        "look at its weights and BatchNorm statistics"
                    )
                dtype = str(b.dtype).removeprefix("torch.")
                if b.numel():
                    gap = (a.double() - b.double()).abs().nan_to_num(torch.inf)
                    absolute = max(absolute, float(gap.max()))
                    scale = max(scale, float(b.abs().max()))
    return Difference(kind, dtype, absolute, absolute / scale if scale else absolute)


def require_small(found: Difference, tolerance: float) -> None:
    """Raise unless a difference is rounding."""
    if not found.relative <= tolerance:
        raise CompactError(
            f"the compact model is not the masked model: their outputs differ by {found}, "
            f"tolerance {tolerance:g}; please report the network. Your model is as it was. If the "
            "network is known to be badly conditioned, pass a larger tolerance="
        )


def random_like(arguments: tuple[Any, ...], examples: int = EXAMPLES, seed: int = 0) -> Any:
    """Arguments of the same shapes with normal numbers; integers are drawn from those given."""
    generator = torch.Generator().manual_seed(seed)
    count = len(arguments[0])

    def one(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        batch = value.ndim > 0 and len(value) == count
        shape = (examples, *value.shape[1:]) if batch else tuple(value.shape)
        if value.is_floating_point():
            drawn = torch.randn(shape, generator=generator, dtype=torch.float64)
            return drawn.to(value.device, value.dtype)
        if not batch:
            return value
        return value[torch.randint(count, (examples,), generator=generator).to(value.device)]

    return tree_map(one, arguments)


def in_double(arguments: Any) -> Any:
    """Floating-point tensors in float64, everything else as it is."""
    return tree_map(
        lambda v: v.double() if isinstance(v, Tensor) and v.is_floating_point() else v, arguments
    )


def _tensors(output: Any) -> list[Tensor]:
    return [value for value in tree_flatten(output)[0] if isinstance(value, Tensor)]

"""Whether two networks are the same function, as far as inputs can tell."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from .errors import CompactError
from .example import Example

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

TOLERANCES = {torch.float64: 1e-10, torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 5e-2}
"""Largest difference that counts as rounding, relative to the largest output."""
FLOOR = 1e-6
"""Outputs that are all smaller are zero up to rounding."""
EXAMPLES = 4
"""Random examples that a check looks at, at least."""


@dataclass(frozen=True)
class Difference:
    """How far the outputs of two networks are apart."""

    inputs: str
    """random or given"""
    dtype: str
    """Of the coarsest output; float64 if none is a floating-point tensor, as all must be equal."""
    absolute: float
    relative: float
    """To the largest output of the masked model."""

    def __str__(self) -> str:
        return f"{self.relative:.1e} relative in {self.dtype} on {self.inputs} inputs"


def difference(
    small: Callable[..., Any],
    masked: Callable[..., Any],
    batches: Iterable[tuple[Any, ...] | Example],
    kind: str,
    *,
    choices: bool = True,
) -> Difference:
    """The largest difference over batches; networks are to be in evaluation mode.

    Args:
        small: the one.
        masked: the other, which is right.
        batches: arguments to call them with.
        kind: random or given.
        choices: whether outputs without rounding (classes, comparisons) must be equal.

    Raises:
        CompactError: the outputs cannot be compared, or differ where there is no rounding.
    """
    absolute = scale = 0.0
    dtype = torch.float64
    with torch.no_grad():
        for arguments in batches:
            # Copies: a network may write to its input.
            wanted, found = (_tensors(_called(net, arguments)) for net in (masked, small))
            if [t.shape for t in wanted] != [t.shape for t in found]:
                raise CompactError(
                    f"the compact model gives outputs of shape {[tuple(t.shape) for t in found]}, "
                    f"the masked model {[tuple(t.shape) for t in wanted]}"
                )
            if not wanted:
                raise CompactError(
                    "the masked model's output holds no tensor that can be compared; let its "
                    "forward return tensors, in tuples, lists, dicts or dataclasses"
                )
            for a, b in zip(found, wanted, strict=True):
                if not bool(b.isfinite().all()):
                    raise CompactError(
                        "the masked model's output is not finite, so nothing can be compared; "
                        "look at its weights and BatchNorm statistics"
                    )
                if not (b.is_floating_point() or b.is_complex()):
                    if choices and not torch.equal(a, b):
                        raise CompactError(
                            "the compact model is not the masked model: their outputs of "
                            f"{b.dtype} differ on {kind} inputs; please report the network. Your "
                            "model is as it was"
                        )
                    continue
                real = b.abs()
                dtype = max(dtype, real.dtype, key=TOLERANCES.__getitem__)
                if b.numel():
                    gap = (_precisely(a) - _precisely(b)).abs().nan_to_num(torch.inf)
                    absolute = max(absolute, float(gap.max()))
                    scale = max(scale, float(real.max()))
    name = str(dtype).removeprefix("torch.")
    return Difference(kind, name, absolute, absolute / (max(scale, FLOOR) if scale else 1.0))


def require_small(found: Difference, tolerance: float) -> None:
    """Raise unless a difference is rounding."""
    if not found.relative <= tolerance:
        raise CompactError(
            f"the compact model is not the masked model: their outputs differ by {found}, "
            f"tolerance {tolerance:g}; please report the network. Your model is as it was. If the "
            "network is known to be badly conditioned, pass a larger tolerance="
        )


def random_like(
    arguments: tuple[Any, ...] | Example, examples: int = EXAMPLES, seed: int = 0
) -> Any:
    """Arguments of the same shapes with normal numbers; integers are drawn from those given."""
    if isinstance(arguments, Example):
        return _random(arguments, examples, seed)
    return _random(Example(arguments), examples, seed).args


def _random(example: Example, examples: int, seed: int) -> Example:
    generator = torch.Generator().manual_seed(seed)
    count = example.examples

    def one(value: Tensor) -> Tensor:
        batch = value.ndim > 0 and len(value) == count
        shape = (examples, *value.shape[1:]) if batch else tuple(value.shape)
        if value.is_floating_point():
            drawn = torch.randn(shape, generator=generator, dtype=torch.float64)
            return drawn.to(value.device, value.dtype)
        if not batch:
            return value
        return value[torch.randint(count, (examples,), generator=generator).to(value.device)]

    return example.map(one)


@torch.no_grad()
def of_another_size(model: Callable[..., Any], example: Example) -> Example | None:
    """Random arguments of another size, fewer positions or tokens, if the network takes them."""
    floating = example.first.is_floating_point()
    first = 2 if floating and example.first.ndim > 2 else 1
    if example.first.ndim <= first:
        return None
    sizes = example.first.shape[first:]

    def one(value: Tensor) -> Tensor:
        for d, n in enumerate(value.shape):
            if d >= first and n in sizes and n > 3:
                value = value.narrow(d, 0, max(n * 3 // 4, 1))
        return value

    other = _random(example.map(one), max(example.examples, 1), 1)
    try:
        _called(model, other)
    except Exception:  # whatever a network's own code raises
        return None
    return other


@torch.no_grad()
def drawn_examples(model: Callable[..., Any], arguments: tuple[Any, ...] | Example) -> int:
    """How many random examples a network takes: some others, or only as many as are given.

    Args:
        model: some tie the number of examples to other sizes, as a graph network does whose second
            argument is an adjacency matrix, or a recurrent one with a hidden state.
        arguments: an example that it runs on.

    Raises:
        CompactError: it does not run on random numbers.
    """
    example = arguments if isinstance(arguments, Example) else Example(arguments)
    given = example.examples
    others = EXAMPLES + (given == EXAMPLES)
    try:
        _called(model, random_like(example, others))
    except Exception:  # whatever a network's own code raises
        try:
            _called(model, random_like(example, given))
        except Exception as error:
            raise CompactError(
                "the network does not run on random inputs of the shapes of example_input: "
                f"{type(error).__name__}: {error}"
            ) from error
        return given
    return others


def in_double(arguments: Any) -> Any:
    """Floating-point tensors in float64, everything else as it is."""

    def one(value: Any) -> Any:
        floating = isinstance(value, Tensor) and value.is_floating_point()
        return value.double() if floating else value

    return arguments.map(one) if isinstance(arguments, Example) else tree_map(one, arguments)


@torch.no_grad()
def coarsest(network: Callable[..., Any], example: Example) -> torch.dtype:
    """The coarsest precision that a network computes in: some name one in their code."""
    seen = _Precisions()
    with seen:
        _called(network, example)
    return max(seen.found, key=TOLERANCES.__getitem__)


class _Precisions(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The precisions that floating-point numbers are rounded to."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found = {torch.float64}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor) and result.dtype in TOLERANCES:
            self.found.add(result.dtype)
        return result


def _called(network: Callable[..., Any], arguments: tuple[Any, ...] | Example) -> Any:
    # Copies: a network may write to its input.
    arguments = deepcopy(arguments)
    return arguments.call(network) if isinstance(arguments, Example) else network(*arguments)


def _precisely(value: Tensor) -> Tensor:
    return value.to(torch.complex128 if value.is_complex() else torch.float64)


def _tensors(output: Any) -> list[Tensor]:
    found = []
    if isinstance(output, Mapping):  # caches of keys and values hold what was cut
        output = {k: v for k, v in output.items() if k != "past_key_values"}
    for value in tree_flatten(output)[0]:
        if isinstance(value, Tensor):
            found.append(value)
        elif is_dataclass(value) and not isinstance(value, type):
            # torch looks only into those that are registered.
            found += _tensors([getattr(value, field.name) for field in fields(value)])
    return found

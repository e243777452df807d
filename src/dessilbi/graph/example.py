"""What a network is called with: positional arguments, or keyword arguments."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from .errors import CompactError


@dataclass(frozen=True)
class Example:
    """Arguments of a call."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "kwargs", dict(self.kwargs or {}))

    @classmethod
    def of(cls, example_input: Any) -> Example:
        """Of a batch, a tuple of positional arguments or a mapping of keyword arguments."""
        if isinstance(example_input, Example):
            return example_input
        if isinstance(example_input, Mapping):
            found = cls((), {str(k): v for k, v in example_input.items()})
        elif isinstance(example_input, tuple):
            found = cls(example_input)
        else:
            found = cls((example_input,))
        found._check()
        return found

    def _check(self) -> None:
        first = next(iter((*self.args, *(self.kwargs or {}).values())), None)
        if not isinstance(first, Tensor) or first.ndim < 2:
            raise CompactError(
                "example_input must be a batch (a tensor with a batch dimension and channels), a "
                "tuple of arguments whose first is one, or a dict of keyword arguments"
            )
        if len(first) == 0:
            raise CompactError("example_input must have at least one example, got an empty batch")

    @property
    def first(self) -> Tensor:
        """The batch."""
        found = next(iter((*self.args, *(self.kwargs or {}).values())))
        assert isinstance(found, Tensor)
        return found

    @property
    def examples(self) -> int:
        """How many there are."""
        return len(self.first)

    def call(self, model: Any) -> Any:
        """The network's output."""
        return model(*self.args, **(self.kwargs or {}))

    def map(self, function: Any) -> Example:
        """The same with other tensors."""

        def one(value: Any) -> Any:
            return function(value) if isinstance(value, Tensor) else value

        return Example(tree_map(one, self.args), tree_map(one, dict(self.kwargs or {})))

    def copied(self) -> Example:
        """A deep copy: networks may write to their inputs."""
        return deepcopy(self)

    def tensors(self) -> list[Tensor]:
        """All of them."""
        leaves = tree_leaves((self.args, dict(self.kwargs or {})))
        return [t for t in leaves if isinstance(t, Tensor)]

    def with_one_more(self) -> Example:
        """With the first example twice."""
        examples = self.examples
        return self.map(lambda a: torch.cat([a[:1], a]) if a.ndim and len(a) == examples else a)

    @torch.no_grad()
    def at_least_two(self, model: Any) -> Example:
        """With at least two examples: with one, a reshape over the batch looks like any other."""
        examples = self.examples
        if examples > 1:
            return self
        doubled = self.map(lambda a: torch.cat([a, a]) if a.ndim and len(a) == examples else a)
        try:
            doubled.copied().call(model)
        except Exception:  # a network that takes only one, or whose other arguments fit only one
            return self
        return doubled


def as_arguments(example_input: Any) -> tuple[Any, ...]:
    """The positional arguments of a network that is called with no others."""
    example = Example.of(example_input)
    if example.kwargs:
        raise CompactError("example_input must be a batch or a tuple of positional arguments here")
    return example.args

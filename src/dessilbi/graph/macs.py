"""How many multiply-adds a network takes, and each of its weights takes part in."""

from __future__ import annotations

import math
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from .example import Example
from .names import named_weights

if TYPE_CHECKING:
    from collections.abc import Iterator


def count_macs_per_weight(model: nn.Module, example_input: Any) -> dict[str, float]:
    """Multiply-adds that one weight of each layer takes part in, for one example.

    A linear weight is used once, or once a token; a convolution's once for every output position;
    a transposed convolution's once for every input position. Padding counts as if it were data, as
    usual. A weight that is used in several places counts in each.

    Args:
        model: run once in evaluation mode; modes are restored.
        example_input: a batch (its first dimension counts examples), a tuple of arguments whose
            first is one, or a dict of keyword arguments.

    Returns:
        By the parameter's name, for weights that are multiplied: of convolutions and linear layers,
        whatever calls them. Products of two tensors that both depend on the input are missing.

    Example:
        >>> count_macs_per_weight(nn.Sequential(nn.Conv2d(1, 4, 3)), torch.zeros(2, 1, 5, 5))
        {'0.weight': 9.0}
    """
    return count_macs(model, example_input)[0]


@torch.no_grad()
def count_macs(model: nn.Module, example_input: Any) -> tuple[dict[str, float], float]:
    """The same, and the multiply-adds of products that no weight takes part in, as in attention."""
    example = _example(example_input)
    weights = named_weights(model)
    modes = [(module, module.training) for module in model.modules()]
    counter = _Counter({p.untyped_storage().data_ptr(): n for n, p in weights.items() if p.numel()})
    try:
        model.eval()
        with _plain_attention(), counter:
            example.copied().call(model)
    finally:
        for module, mode in modes:
            module.training = mode
    found = {
        name: counter.uses[name] / example.examples / weights[name].numel()
        for name in weights
        if name in counter.uses
    }
    return found, counter.others / example.examples


def _example(example_input: Any) -> Example:
    arguments = example_input if isinstance(example_input, tuple) else (example_input,)
    if not isinstance(example_input, dict | Example) and (
        not arguments or not isinstance(arguments[0], Tensor) or arguments[0].ndim == 0
    ):
        raise ValueError("example_input must be a batch, or a tuple whose first entry is one")
    if isinstance(example_input, Example):
        return example_input
    example = Example((), example_input) if isinstance(example_input, dict) else Example(arguments)
    if example.examples == 0:
        raise ValueError("example_input must have at least one example, got an empty batch")
    return example


@contextmanager
def _plain_attention() -> Iterator[None]:
    """Without torch's fused transformer layers, which call no product."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Multiply-adds of every product, by the weight that takes part in it."""

    def __init__(self, owners: dict[int, str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.owners = owners
        self.uses: dict[str, float] = {}
        self.others = 0.0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func._schema.name.rpartition("::")[2]
        if name == "convolution":
            x, weight = args[0], args[1]
            transposed = bool(args[6])
            # Of a transposed one every input, else every output, meets a kernel.
            positions = x.numel() / x.shape[1] if transposed else result.numel() / result.shape[1]
            self._add(positions * weight.numel(), weight)
        elif name in ("mm", "addmm"):
            a, b = args[-2:]
            self._add(a.shape[0] * a.shape[1] * b.shape[1], a, b)
        elif name in ("bmm", "baddbmm"):
            a, b = args[-2:]
            self._add(a.numel() * b.shape[2], a, b)
        elif name.startswith("_scaled_dot_product"):
            q, k, v = args[:3]
            pairs = math.prod(q.shape[:-1]) * k.shape[-2]
            self.others += pairs * (q.shape[-1] + v.shape[-1])
        return result

    def _add(self, macs: float, *factors: Tensor) -> None:
        for factor in factors:
            owner = self.owners.get(factor.untyped_storage().data_ptr())
            if owner is not None:
                self.uses[owner] = self.uses.get(owner, 0.0) + macs
                return
        self.others += macs

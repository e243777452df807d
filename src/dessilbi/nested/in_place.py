"""The weights of a subnetwork in the parameters themselves, and gradients that add up."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from dessilbi.optim.dtensor import is_dtensor, local
from dessilbi.path.sharded import resharded

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from torch import Tensor, nn


@contextmanager
def masked_in_place(
    model: nn.Module, outside: Mapping[Tensor, Tensor], copied: Iterable[Tensor]
) -> Iterator[None]:
    """Parameters are zero where they are outside, and so are their gradients; then all is back.

    Args:
        model: the network.
        outside: by parameter, where it is not part of the subnetwork.
        copied: buffers that are to be as they were.
    """
    swapped = [(p, p.data) for p in outside if not is_dtensor(p)] + [(b, b.data) for b in copied]
    parts = [(p, local(p.detach()), local(out)) for p, out in outside.items() if is_dtensor(p)]
    resharded(model)
    for tensor, data in swapped:
        out = outside.get(tensor)
        tensor.data = data.clone() if out is None else data.masked_fill(out, 0)
    # FSDP gathers from the memory that it knows.
    dense = [part.clone() for _, part, _ in parts]
    for _, part, out in parts:
        part.masked_fill_(out, 0)
    torch.clear_autocast_cache()  # it knows tensors by their identity, not by what is in them
    try:
        yield
        for p, out in outside.items():
            if p.grad is not None:  # what was not there has no gradient, for clipping as well
                local(p.grad).masked_fill_(local(out), 0)
    finally:
        for tensor, data in swapped:
            tensor.data = data
        for (_, part, _), weights in zip(parts, dense, strict=True):
            part.copy_(weights)
        resharded(model)
        torch.clear_autocast_cache()


@contextmanager
def added_gradients(model: nn.Module) -> Iterator[None]:
    """Gradients within are those of this pass alone, and are added to those before it."""
    # DistributedDataParallel's may be views of its buckets, which the pass fills again.
    before = [
        (p, p.grad if p.grad is None or p.grad._base is None else p.grad.clone())
        for p in model.parameters()
    ]
    model.zero_grad(set_to_none=True)
    try:
        yield
    finally:
        for p, g in before:
            if g is not None:
                p.grad = g if p.grad is None else g.add_(p.grad)

"""What is faster on this machine, where more than one way is exact.

Residual streams whose masks disagree: a branch may have dead filters where the stream it is added
to has live channels. Computing those filters as zeros keeps the plain sum; leaving them out makes
the convolution smaller but the sum an indexed one. Memory format: convolutions of few channels lose
much time to reordering their inputs, which they need not if channels come last. Both depend on
shapes, threads and the machine, so whole networks are timed against each other.
"""

from __future__ import annotations

import time
from copy import deepcopy
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import fx, nn

from dessilbi.graph.compare import random_like
from dessilbi.graph.matrix import GroupedConvolution, Matrix
from dessilbi.graph.steps import Join
from dessilbi.graph.values import broadcast

from .latency import side_by_side, steady_clock

if TYPE_CHECKING:
    from dessilbi.graph.analysis import Analysis
    from dessilbi.graph.classes import Kept
    from dessilbi.graph.example import Example

BATCH = 32
"""Examples that networks are timed on: enough to be like any larger batch."""
_LONGEST = 0.5
"""Seconds that a call that is timed may take."""
MARGIN = 0.98
"""What is less plain must take less than this share of the time."""


def scatterable(analysis: Analysis, kept: Kept) -> list[dict[str, int]]:
    """Sums with a branch whose dead channels the stream keeps, by the shape of the sum.

    Returns:
        For each shape, the side of the branch by the name of the sum.
    """
    found: dict[tuple[int, ...], dict[str, int]] = {}
    for node, step in analysis.steps.items():
        if not isinstance(step, Join) or step.how != "add" or node.kwargs:
            continue
        if step.constant is not None or len(step.output.factors) != 1:
            continue
        (factor,) = step.output.factors
        stays = kept.of(factor).reshape(-1)
        alive = {}
        for side in (1, 0):
            value = step.sides[side]
            if (
                value.shape != step.output.shape
                or len(value.factors) != 1
                or value.factors[0].shape != factor.shape
                or sum(n > 1 for n in factor.shape) != 1
                or not _is_branch(analysis, node.all_input_nodes[side])
            ):
                continue
            varies = torch.ones_like(stays)
            if value.constant is not None:
                shape = broadcast(value.constant.shape, factor.shape)
                varies = value.constant.isnan().expand(shape).reshape(-1)
            if 0 < (count := int((stays & varies).sum())) < int(stays.sum()):
                alive[side] = count
        if alive:
            side = min(alive, key=lambda one: alive[one])
            found.setdefault(step.output.shape[1:], {})[node.name] = side
    return list(found.values())


def _is_branch(analysis: Analysis, node: object) -> bool:
    """Whether nobody else reads what leads from a convolution or linear layer to here."""
    while isinstance(node, fx.Node) and len(node.users) == 1:
        step = analysis.steps.get(node)
        if isinstance(step, Matrix):
            return not isinstance(step, GroupedConvolution)
        inputs = [a for a in node.all_input_nodes if a.op != "get_attr"]
        if len(inputs) != 1 or isinstance(step, Join):
            return False
        node = inputs[0]
    return False


def may_be_channels_last(model: nn.Module, example: Example) -> bool:
    """Whether the memory format means anything to a network."""
    return (
        example.first.ndim == 4
        and not any(p.ndim == 5 for p in model.parameters())
        and any(isinstance(m, nn.Conv2d) for m in model.modules())
    )


def is_channels_last(model: nn.Module) -> bool:
    """Whether a network has its channels last already."""
    return any(
        p.is_contiguous(memory_format=torch.channels_last) and not p.is_contiguous()
        for p in model.parameters()
        if p.ndim == 4
    )


@torch.no_grad()
def batch_to_time(model: nn.Module, example: Example) -> int:
    """How many examples a network is timed on: fewer than usual if they take long."""
    one = random_like(example, 2)
    one.call(model)
    start = time.perf_counter()
    one.call(model)
    each = (time.perf_counter() - start) / 2
    return max(2, min(BATCH, int(_LONGEST / max(each, 1e-9))))


def is_faster(
    new: nn.Module,
    old: nn.Module,
    example: Example,
    formats: tuple[bool, bool],
) -> bool:
    """Whether one network is faster than another.

    Args:
        new: the one that is less plain.
        old: the other.
        example: what they are called with.
        formats: for each, whether its feature maps have their channels last.
    """
    calls = [
        partial(example.call, _formatted(m, f)) for m, f in zip((new, old), formats, strict=True)
    ]
    try:
        times = side_by_side(calls, repetitions=7, seconds=3.0, clock=steady_clock)
    except RuntimeError:  # a view that needs the other memory format
        return False
    return times[0].median < MARGIN * times[1].median


def _formatted(model: nn.Module, channels_last: bool) -> nn.Module:
    if not channels_last:
        return model
    made: nn.Module = deepcopy(model).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return made

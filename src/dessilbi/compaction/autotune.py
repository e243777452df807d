"""What is faster on this machine, where more than one way is exact.

Residual streams whose masks disagree: a branch may have dead filters where the stream it is added
to has live channels. Computing those filters as zeros keeps the plain sum; leaving them out makes
the convolution smaller but the sum an indexed one. Memory format: convolutions of few channels lose
much time to reordering their inputs, which they need not if channels come last. Both depend on
shapes, threads and the machine, so whole networks are timed against each other.
"""

from __future__ import annotations

import operator
from copy import deepcopy
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import fx, nn

from dessilbi.graph.binary_ops import BinaryOp
from dessilbi.graph.matrix_layers import GroupedConvolution, MatrixLayer
from dessilbi.graph.steps import Passthrough, PerChannel

from .latency import side_by_side, steady_clock

if TYPE_CHECKING:
    from dessilbi.graph.analysis import Analysis
    from dessilbi.graph.channels import KeptChannels

BATCH = 32
"""Examples that networks are timed on: enough to be like any larger batch."""
MARGIN = 0.98
"""What is less plain must take less than this share of the time."""


def scatterable(analysis: Analysis, kept: KeptChannels) -> list[dict[str, int]]:
    """Sums with a branch whose dead channels the stream keeps, by the shape of the sum.

    Returns:
        For each shape, the side of the branch by the name of the sum.
    """
    found: dict[tuple[int, ...], dict[str, int]] = {}
    for step in analysis.steps.values():
        if (
            not isinstance(step, BinaryOp)
            or step.constant is not None
            or step.how is not operator.add
        ):
            continue
        shapes = {step.sides[0].shape, step.sides[1].shape, step.output.shape}
        stays = kept.of(step.output)
        alive = {
            side: int((stays & ~step.sides[side].known).sum())
            for side in (1, 0)
            if _is_branch(analysis, step.node.args[side])
        }
        alive = {side: count for side, count in alive.items() if 0 < count < int(stays.sum())}
        if alive and len(shapes) == 1 and step.output.dim == 1:
            side = min(alive, key=lambda one: alive[one])
            found.setdefault(step.output.shape[1:], {})[step.node.name] = side
    return list(found.values())


def _is_branch(analysis: Analysis, node: object) -> bool:
    """Whether nobody else reads what leads from a convolution or linear layer to here."""
    while isinstance(node, fx.Node) and len(node.users) == 1:
        step = analysis.steps[node]
        if isinstance(step, MatrixLayer):
            return not isinstance(step, GroupedConvolution) and step.tracked
        if not isinstance(step, PerChannel | Passthrough):
            return False
        node = node.all_input_nodes[0]
    return False


def may_be_channels_last(model: nn.Module, arguments: tuple[Any, ...]) -> bool:
    """Whether the memory format means anything to a network."""
    return (
        arguments[0].ndim == 4
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


def is_faster(
    new: nn.Module,
    old: nn.Module,
    arguments: tuple[Any, ...],
    formats: tuple[bool, bool],
) -> bool:
    """Whether one network is faster than another.

    Args:
        new: the one that is less plain.
        old: the other.
        arguments: what they are called with.
        formats: for each, whether its feature maps have their channels last.
    """
    calls = [
        partial(_formatted(m, f), *arguments) for m, f in zip((new, old), formats, strict=True)
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

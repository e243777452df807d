"""Sums and products of two tensors: where residual streams meet their branches.

Both sides have the same channels, so they are tied: a channel leaves only if nobody behind the join
needs it. Two things are cheaper. A side whose channels are all constant is not computed at all. And
a branch may compute only those of its channels that vary, which are then added by index
(*scatter*), instead of all that the stream has.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

import torch

from .plan import NodeCut
from .steps import Step

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor, fx

    from .channels import Classes, Flow, KeptChannels
    from .steps import Draft


def combined(how: Callable[[Tensor, Tensor], Tensor], left: Tensor, right: Tensor) -> Tensor:
    """Constants of a sum, difference, product or quotient."""
    result = how(left, right)
    if how is operator.mul:  # nothing times anything
        result = torch.where((left == 0) | (right == 0), 0.0, result)
    return torch.where(result.isinf(), torch.nan, result)


class BinaryOp(Step):
    """Two tensors with the same channels; the first of ``sides`` that varies leads."""

    def __init__(
        self,
        node: fx.Node,
        how: Callable[[Tensor, Tensor], Tensor],
        sides: tuple[Flow, Flow],
        shape: tuple[int, ...],
        classes: Classes,
        scattered: int | None = None,
    ) -> None:
        self.how, self.sides = how, sides
        self.scattered = scattered
        """The side that has only some of the channels, if one has."""
        self.constant = self._constant_side(shape)
        """The side that is not computed, if one is not."""
        lead = 0
        if self.constant is not None:
            lead, self.scattered = 1 - self.constant, None
        elif scattered is not None:
            lead = 1 - scattered
        else:
            classes.unite(sides[0].ids, sides[1].ids)
        self.lead = lead
        flow = type(sides[0])(
            shape,
            sides[0].dim,
            sides[lead].ids,
            combined(how, sides[0].constant, sides[1].constant),
        )
        self.output = flow
        super().__init__(node, flow)

    def _constant_side(self, shape: tuple[int, ...]) -> int | None:
        for side in (1, 0):
            if bool(self.sides[side].known.all()) and self.sides[1 - side].shape == shape:
                return side
        return None

    def reads(self, kept: KeptChannels) -> list[fx.Node]:
        """Without a side that is constant."""
        if self.constant is None:
            return list(self.node.all_input_nodes)
        lead = self.node.args[self.lead]
        assert isinstance(lead, torch.fx.Node)
        return [lead]

    def need(self, kept: KeptChannels) -> None:
        """Of a scattered side the channels that vary; tied sides need nothing said."""
        if self.scattered is not None:
            side = self.sides[self.scattered]
            kept.add(side, kept.of(self.output) & ~side.known)

    def complete(self, kept: KeptChannels) -> None:
        """What a scattered side still has must be in the sum."""
        if self.scattered is not None:
            kept.add(self.output, kept.of(self.sides[self.scattered]))

    def write(self, kept: KeptChannels, draft: Draft) -> None:
        """A constant instead of a side, a scatter instead of a sum, or nothing."""
        stays, name = kept.of(self.output), self.node.name
        if self.constant is not None:
            value = self.sides[self.constant].constant[stays]
            neutral = 1.0 if self.how in (operator.mul, operator.truediv) else 0.0
            commutes = self.constant == 1 or self.how in (operator.add, operator.mul)
            if commutes and bool((value == neutral).all()):
                draft.nodes[name] = NodeCut("skip", positions=(self.lead,))
                return
            width = int(stays.sum())
            draft.nodes[name] = NodeCut("constant", positions=(self.constant,), width=width)
            shape = [1] * len(self.output.shape)
            shape[self.output.dim] = width
            draft.values[constant_name(name)] = value.reshape(shape)
        elif self.scattered is not None:
            side = self.sides[self.scattered]
            has = kept.of(side)
            shift = side.constant.masked_fill(has, 0.0)[stays]
            index = has[stays].nonzero().flatten()
            moves = bool((shift != 0).any())
            draft.nodes[name] = NodeCut(
                "scatter",
                positions=(self.lead, self.scattered),
                index=tuple(index.tolist()),
                width=int(stays.sum()),
                shift=moves,
            )
            draft.values[f"{scatter_name(name)}.index"] = index
            if moves:
                shape = [1] * len(self.output.shape)
                shape[self.output.dim] = len(shift)
                draft.values[f"{scatter_name(name)}.shift"] = shift.reshape(shape)


def constant_name(node: str) -> str:
    """The buffer in the stead of a constant side."""
    return f"constant_{node}"


def scatter_name(node: str) -> str:
    """The module in the stead of a sum."""
    return f"scatter_{node}"

"""Nodes of the graph that decide which channels are needed, and what they change in the result.

Every step answers the same questions: given the classes that stay behind it, which must stay before
it (``need``), what else must stay to be exact (``complete``), what changes (``write``). Layers with
a matrix of weights are in :mod:`.matrix`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from .values import broadcast

if TYPE_CHECKING:
    from torch import Tensor, fx

    from .classes import Kept
    from .values import Leaf, Value


@dataclass
class Draft:
    """A plan under construction, with the values of what changes."""

    values: dict[str, Tensor] = field(default_factory=dict)
    """Float64, by the names of the smaller network's parameters."""
    biases: dict[str, str] = field(default_factory=dict)
    """Weights whose layer gets a bias, and the node that uses it."""
    groups: dict[str, tuple[Tensor, int, int, str]] = field(default_factory=dict)
    """Weights of grouped convolutions: input channels that stay, groups, groups left, node."""


class Step:
    """A node of the graph."""

    def __init__(self, node: fx.Node) -> None:
        self.node = node

    def need(self, kept: Kept) -> None:
        """Keep the channels that are read, given those that are kept behind this step."""

    def complete(self, kept: Kept) -> None:
        """Keep what else it takes; called when nothing is needed any more."""

    def write(self, kept: Kept, draft: Draft) -> None:
        """Say what changes."""


class Norm(Step):
    """A BatchNorm with statistics of its own."""

    def __init__(self, node: fx.Node, ids: Tensor, leaves: list[Leaf | None]) -> None:
        super().__init__(node)
        self.ids, self.leaves = ids, leaves
        self.constant: Tensor | None = None

    def write(self, kept: Kept, draft: Draft) -> None:
        """A carrier is told its constant as the shift, so that it is the same when training."""
        stays = kept.of(self.ids)
        if self.constant is None or any(leaf is None for leaf in self.leaves):
            return
        carriers = kept.carriers(self.ids)[stays] & ~self.constant[stays].isnan()
        if not bool(carriers.any()):
            return
        numbers: tuple[float | Tensor, ...] = (0.0, self.constant[stays][carriers], 0.0, 1.0)
        for leaf, number in zip(self.leaves, numbers, strict=True):
            assert leaf is not None
            cut = leaf.tensor.detach().cpu().double()[stays]
            cut[carriers] = torch.as_tensor(number, dtype=torch.float64)
            draft.values[leaf.name] = cut


class Join(Step):
    """A sum, difference, product or quotient of two tensors.

    A side whose values are all constant need not be computed. And a branch may compute only those
    of its channels that vary, which are then added by index (*scatter*), instead of all that the
    stream has.
    """

    def __init__(
        self,
        node: fx.Node,
        how: str,
        sides: tuple[Value, Value],
        output: Value,
        scattered: int | None = None,
    ) -> None:
        super().__init__(node)
        self.how, self.sides, self.output, self.scattered = how, sides, output, scattered

    @property
    def constant(self) -> int | None:
        """The side that is constant everywhere, if one is."""
        for i in (1, 0):
            side, other = self.sides[i], self.sides[1 - i]
            known = side.constant
            whole = other.shape == self.output.shape
            if known is not None and whole and not bool(known.isnan().any()):
                return i
        return None

    def need(self, kept: Kept) -> None:
        """Of a scattered side the channels that vary; tied sides need nothing said."""
        if self.scattered is not None:
            kept.add(self.branch[kept.of(self.stream) & self.varies])

    def complete(self, kept: Kept) -> None:
        """What a scattered side still has must be in the sum."""
        if self.scattered is not None:
            kept.add(self.stream[kept.of(self.branch)])

    # ------------------------------------------------------------------ of a scattered sum

    @property
    def branch(self) -> Tensor:
        """The numbers of the side that is added by index."""
        assert self.scattered is not None
        (factor,) = self.sides[self.scattered].factors
        return factor.reshape(-1)

    @property
    def stream(self) -> Tensor:
        """The numbers of the other side."""
        (factor,) = self.output.factors
        return factor.reshape(-1)

    @property
    def shift(self) -> Tensor:
        """What each channel of the branch adds if it is not computed; NaN if it varies."""
        assert self.scattered is not None
        side = self.sides[self.scattered]
        if side.constant is None:
            return torch.full((len(self.branch),), torch.nan, dtype=torch.float64)
        (factor,) = side.factors
        shape = broadcast(side.constant.shape, factor.shape)
        return side.constant.expand(shape).reshape(-1)

    @property
    def varies(self) -> Tensor:
        """Channels of the branch that have to be computed."""
        return self.shift.isnan()

"""Layers with a matrix of weights, which read channels and write new ones: convolution, linear.

A channel that is constant is not needed as a tensor: what it contributes is known. Where no zeros
are padded (and in linear layers) that is a bias. A padded convolution sees it stop at the border:
there one constant channel stays, the *carrier*, and takes over the weights of all others in
proportion to their constants.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from .steps import Draft, Step

if TYPE_CHECKING:
    from torch import Tensor, fx

    from .classes import Kept
    from .values import Leaf, Value

SMALLEST_CARRIER = 1e-3
"""A carrier's constant may be this much smaller than the largest that it carries."""


class Weights:
    """A layer's weights in float64: rows by columns by positions of the kernel."""

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None,
        groups: int = 1,
        padded: bool = False,
        turned: bool = False,
    ) -> None:
        rows, local = weight.shape[:2]
        self.weight = weight
        self.groups, self.padded = groups, padded
        self.columns = rows if turned else local * groups
        flat = weight.reshape(rows, local, -1)
        reads, sums = (flat != 0).any(2), flat.sum(2) if flat.shape[2] > 1 else flat[..., 0]
        if groups > 1:
            reads, sums = self._spread(reads), self._spread(sums)
        self.reads = reads
        """Whether a row has a weight on a column."""
        self.sums = sums
        """Weights summed over the kernel: what a column adds to a row for each unit."""
        self.bias = torch.zeros(rows, dtype=torch.float64) if bias is None else bias

    def _spread(self, local: Tensor) -> Tensor:
        """Columns of a group as columns of all inputs."""
        rows, width = local.shape
        whole = local.new_zeros(rows, width * self.groups)
        each = rows // self.groups
        for g in range(self.groups):
            own = slice(g * each, (g + 1) * each)
            whole[own, g * width : (g + 1) * width] = local[own]
        return whole


class Matrix(Step):
    """An ungrouped convolution or a linear layer."""

    output: Value
    bias: Leaf | None = None
    bias_fixed: bool = False
    """Whether constants can be put into its bias, which may have to be added."""
    shared: bool = False
    """Whether weight or bias have other uses: they must not be changed for this one."""

    def __init__(
        self,
        node: fx.Node,
        inputs: Tensor,
        written: Tensor,
        known: Tensor | None,
        weights: Weights | None,
        weight: Leaf | None,
        columns: int,
        rows: int,
    ) -> None:
        super().__init__(node)
        self.inputs, self.written, self.weights = inputs, written, weights
        self.constant = torch.full((len(inputs),), torch.nan).double() if known is None else known
        self.leaf, self.columns, self.rows = weight, columns, rows

    def constants(self) -> Tensor:
        """Constants of the rows, given those of the columns."""
        w = self._weights
        varies = self.constant.isnan()
        if w.padded:
            varies = varies | (self.constant != 0)
        rows = w.bias + w.sums @ self.constant.nan_to_num(0.0)
        return rows.masked_fill((w.reads & varies).any(1), torch.nan)

    @property
    def _weights(self) -> Weights:
        assert self.weights is not None
        return self.weights

    @property
    def _placeable(self) -> bool:
        """Whether what constants contribute can be put anywhere."""
        if self.shared or self.leaf is None:
            return False
        return self._weights.padded or self.bias_fixed

    def need(self, kept: Kept) -> None:
        """Inputs that vary and that a kept row has a weight on."""
        varies = self.constant.isnan()
        if not self._placeable:
            varies = varies | (self.constant != 0)
        kept.add(self.inputs[self._read(kept) & varies])

    def complete(self, kept: Kept) -> None:
        """A carrier, if constants are left out that a padded convolution reads."""
        left_out = self._left_out(kept)
        if self._weights.padded and bool(left_out.any()) and self._carrier(kept) is None:
            size = self.constant.abs().nan_to_num(0.0)
            kept.add_carrier(self.inputs[int((size * left_out).argmax())])

    def write(self, kept: Kept, draft: Draft) -> None:
        """Put what is left out where it belongs."""
        left_out = self._left_out(kept)
        if not bool(left_out.any()):
            return
        w, leaf = self._weights, self.leaf
        assert leaf is not None
        rows, columns = kept.of(self.written), kept.of(self.inputs)
        if w.padded:
            carrier = self._carrier(kept)
            assert carrier is not None
            share = self.constant[left_out] / self.constant[carrier]
            weight = w.weight[rows][:, columns]
            carried = w.weight[rows][:, left_out]
            weight[:, int(columns[:carrier].sum())] += torch.einsum("oi...,i->o...", carried, share)
            draft.values[leaf.name] = weight if self.columns == 1 else weight.transpose(0, 1)
            return
        bias = w.bias[rows] + w.sums[rows][:, left_out] @ self.constant[left_out]
        if self.bias is None:
            draft.biases[leaf.name] = self.node.name
            draft.values[bias_name(leaf.name)] = bias
        else:
            draft.values[self.bias.name] = bias

    def _read(self, kept: Kept) -> Tensor:
        return self._weights.reads[kept.of(self.written)].any(0)

    def _left_out(self, kept: Kept) -> Tensor:
        """Inputs that do not stay although their constant counts."""
        counts = ~self.constant.isnan() & (self.constant != 0)
        return self._read(kept) & ~kept.of(self.inputs) & counts

    def _carrier(self, kept: Kept) -> int | None:
        """The kept input with the largest constant, if that is large enough."""
        size = self.constant.abs().nan_to_num(0.0)
        best = int((size * kept.of(self.inputs)).argmax())
        largest = float((size * self._left_out(kept)).max())
        stays = bool(kept.of(self.inputs)[best])
        return best if stays and float(size[best]) > SMALLEST_CARRIER * largest else None


class GroupedConvolution(Matrix):
    """A convolution in groups, depthwise ones among them.

    Groups leave as a whole; those that stay must be equal, so the fuller ones decide. There is no
    carrier: it would have to be in every group.
    """

    @property
    def groups(self) -> int:
        """Before the cut."""
        given: Any = self.node.args[6] if len(self.node.args) > 6 else self.node.kwargs["groups"]
        return int(given)

    def need(self, kept: Kept) -> None:
        """Inputs that vary, and constants that end at a padded border."""
        known = ~self.constant.isnan()
        if self._weights.padded or not self._placeable:
            known = known & (self.constant == 0)
        kept.add(self.inputs[self._read(kept) & ~known])

    def complete(self, kept: Kept) -> None:
        """Keep more channels until the groups that stay are equal."""
        rows, columns = self._by_group(kept)
        stays = rows.any(1) | columns.any(1)
        if not bool(stays.any()):
            return
        for ids, have in ((self.written, rows), (self.inputs, columns)):
            most = max(int(have.sum(1).max()), 1)
            for g in stays.nonzero().flatten().tolist():
                missing = most - int(have[g].sum())
                spare = (~have[g]).nonzero().flatten()[:missing] + g * have.shape[1]
                if missing:
                    kept.add(ids[spare])

    def write(self, kept: Kept, draft: Draft) -> None:
        """Cut whole groups, and all others alike."""
        rows, columns = kept.of(self.written), kept.of(self.inputs)
        if bool(rows.all()) and bool(columns.all()):
            return
        assert self.leaf is not None
        left = int(self._by_group(kept)[1].any(1).sum())
        draft.groups[self.leaf.name] = (
            columns.nonzero().flatten(), self.groups, left, self.node.name
        )  # fmt: skip
        left_out = self._left_out(kept)
        if not self._weights.padded and bool(left_out.any()):
            super().write(kept, draft)

    def _by_group(self, kept: Kept) -> tuple[Tensor, Tensor]:
        return kept.of(self.written).view(self.groups, -1), kept.of(self.inputs).view(
            self.groups, -1
        )


def bias_name(weight: str) -> str:
    """The bias that goes with a weight."""
    return f"{weight.removesuffix('weight')}bias"


def cut_rows_and_columns(weight: Tensor, rows: Tensor, columns: Tensor, groups_left: int) -> Tensor:
    """Rows and columns of a grouped convolution's weight; columns count all inputs."""
    local = weight.shape[1]
    # In groups a row holds weights on its own group's columns only.
    per_group = len(columns) // groups_left
    own = (columns % local).view(groups_left, per_group)
    group = torch.arange(groups_left).repeat_interleave(len(rows) // groups_left)
    return weight[rows[:, None], own[group]]

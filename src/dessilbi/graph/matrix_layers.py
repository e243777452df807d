"""Layers with a matrix of weights, which read channels and begin new ones: convolution, linear.

A channel that is constant is not needed as a tensor: what it contributes is known. Where no zeros
are padded (and in linear layers) that is a bias. A padded convolution sees it stop at the border:
there one constant channel stays, the *carrier*, and takes over the weights of all others in
proportion to their constants.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from .plan import LayerCut
from .steps import Step

if TYPE_CHECKING:
    from torch import Tensor, fx

    from .channels import Flow, KeptChannels
    from .steps import Draft

Matrix = nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d

SMALLEST_CARRIER = 1e-3
"""A carrier's constant may be this much smaller than the largest that it carries."""


class MatrixWeights:
    """A layer's weights in float64: rows by columns by positions of the kernel."""

    def __init__(self, module: Matrix, padded: bool) -> None:
        weight = module.weight.detach().cpu().double()
        self.module = module
        self.padded = padded
        self.groups = int(getattr(module, "groups", 1))
        self.weight = weight
        rows, local = weight.shape[:2]
        each = rows // self.groups
        self.columns = local * self.groups
        flat = weight.reshape(rows, local, -1)
        reads, sums = (flat != 0).any(2), flat.sum(2) if flat.shape[2] > 1 else flat[..., 0]
        if self.groups > 1:
            reads, sums = self._spread(reads, each), self._spread(sums, each)
        self.reads = reads
        """Whether a row has a weight on a column."""
        self.sums = sums
        """Weights summed over the kernel: what a column adds to a row for each unit."""
        bias: Tensor | None = module.bias  # torch's annotation does not know that there may be none
        self.has_bias = bias is not None
        self.bias = torch.zeros(rows, dtype=torch.float64)
        if bias is not None:
            self.bias += bias.detach().cpu().double()

    def _spread(self, local: Tensor, each: int) -> Tensor:
        """Columns of a group as columns of all inputs."""
        whole = local.new_zeros(len(local), self.columns)
        width = local.shape[1]
        for g in range(self.groups):
            rows = slice(g * each, (g + 1) * each)
            whole[rows, g * width : (g + 1) * width] = local[rows]
        return whole

    def constants(self, inputs: Tensor) -> Tensor:
        """Constants of the rows, given those of the columns."""
        varies = inputs.isnan()
        if self.padded:
            varies = varies | (inputs != 0)
        rows = self.bias + self.sums @ inputs.nan_to_num(0.0)
        return rows.masked_fill((self.reads & varies).any(1), torch.nan)


class MatrixLayer(Step):
    """An ungrouped convolution or a linear layer."""

    def __init__(
        self,
        node: fx.Node,
        weights: MatrixWeights,
        source: Flow,
        flow: Flow,
        tracked: bool = True,
    ) -> None:
        super().__init__(node, flow)
        self.weights = weights
        self.source = source
        self.output = flow
        self.tracked = tracked
        """False if the layer reads another dimension than the one whose channels are known."""

    def need(self, kept: KeptChannels) -> None:
        """Inputs that vary and that a kept row has a weight on."""
        if self.tracked:
            kept.add(self.source, self._read(kept) & ~self.source.known)
        else:
            kept.add_all(self.source)

    def complete(self, kept: KeptChannels) -> None:
        """A carrier, if constants are left out that a padded convolution reads."""
        left_out = self._left_out(kept)
        if self.weights.padded and bool(left_out.any()) and self._carrier(kept) is None:
            size = self.source.constant.abs().nan_to_num(0.0)
            kept.add_carrier(self.source, int((size * left_out).argmax()))

    def write(self, kept: KeptChannels, draft: Draft) -> None:
        """Cut rows and columns, and put the constants where they belong."""
        rows = kept.of(self.output)
        columns = kept.of(self.source) if self.tracked else torch.ones(self.weights.columns).bool()
        left_out = self._left_out(kept)
        if bool(rows.all()) and bool(columns.all()):
            return
        weight, bias = self.weights.weight[rows][:, columns], self.weights.bias[rows]
        constant = self.source.constant
        if bool(left_out.any()) and self.weights.padded:
            carrier = self._carrier(kept)
            assert carrier is not None
            share = constant[left_out] / constant[carrier]
            index = int(columns[:carrier].sum())
            carried = self.weights.weight[rows][:, left_out]
            weight[:, index] += torch.einsum("oi...,i->o...", carried, share)
        elif bool(left_out.any()):
            bias = bias + self.weights.sums[rows][:, left_out] @ constant[left_out]
        self._write(draft, rows, columns, weight, bias, 1)

    def _write(
        self, draft: Draft, rows: Tensor, columns: Tensor, weight: Tensor, bias: Tensor, left: int
    ) -> None:
        name, module = str(self.node.target), self.weights.module
        has_bias = self.weights.has_bias or bool((bias != 0).any())
        draft.layers[name] = LayerCut(
            "linear" if isinstance(module, nn.Linear) else "convolution",
            tuple(rows.nonzero().flatten().tolist()),
            tuple(columns.nonzero().flatten().tolist()),
            self.weights.groups,
            left,
            has_bias,
        )
        draft.values[f"{name}.weight"] = weight
        if has_bias:
            draft.values[f"{name}.bias"] = bias

    def _read(self, kept: KeptChannels) -> Tensor:
        return self.weights.reads[kept.of(self.output)].any(0)

    def _left_out(self, kept: KeptChannels) -> Tensor:
        """Inputs that do not stay although their constant counts."""
        if not self.tracked:
            return torch.zeros(self.weights.columns, dtype=torch.bool)
        constant = self.source.constant
        return self._read(kept) & ~kept.of(self.source) & self.source.known & (constant != 0)

    def _carrier(self, kept: KeptChannels) -> int | None:
        """The kept input with the largest constant, if that is large enough."""
        size = self.source.constant.abs().nan_to_num(0.0)
        best = int((size * kept.of(self.source)).argmax())
        largest = float((size * self._left_out(kept)).max())
        stays = bool(kept.of(self.source)[best])
        return best if stays and float(size[best]) > SMALLEST_CARRIER * largest else None


class GroupedConvolution(MatrixLayer):
    """A convolution in groups, depthwise ones among them.

    Groups leave as a whole; those that stay must be equal, so the fuller ones decide. There is no
    carrier: it would have to be in every group.
    """

    def need(self, kept: KeptChannels) -> None:
        """Inputs that vary, and constants that end at a padded border."""
        known = self.source.known
        if self.weights.padded:
            known = known & (self.source.constant == 0)
        kept.add(self.source, self._read(kept) & ~known)

    def complete(self, kept: KeptChannels) -> None:
        """Keep more channels until the groups that stay are equal."""
        rows, columns = self._by_group(kept)
        stays = rows.any(1) | columns.any(1)
        if not bool(stays.any()):
            return
        for flow, have in ((self.output, rows), (self.source, columns)):
            most = max(int(have.sum(1).max()), 1)
            for g in stays.nonzero().flatten().tolist():
                missing = most - int(have[g].sum())
                spare = (~have[g]).nonzero().flatten()[:missing] + g * have.shape[1]
                if missing:
                    kept.add(flow, spare)

    def write(self, kept: KeptChannels, draft: Draft) -> None:
        """Cut whole groups, and all others alike."""
        rows, columns = kept.of(self.output), kept.of(self.source)
        if bool(rows.all()) and bool(columns.all()):
            return
        left = int(self._by_group(kept)[1].any(1).sum())
        bias = self.weights.bias[rows]
        left_out = self._left_out(kept) & (not self.weights.padded)
        if bool(left_out.any()):
            bias = bias + self.weights.sums[rows][:, left_out] @ self.source.constant[left_out]
        weight = cut_rows_and_columns(
            self.weights.weight, rows.nonzero().flatten(), columns.nonzero().flatten(), left
        )
        self._write(draft, rows, columns, weight, bias, left)

    def _by_group(self, kept: KeptChannels) -> tuple[Tensor, Tensor]:
        groups = self.weights.groups
        return kept.of(self.output).view(groups, -1), kept.of(self.source).view(groups, -1)


def cut_rows_and_columns(weight: Tensor, rows: Tensor, columns: Tensor, groups_left: int) -> Tensor:
    """Rows and columns of a convolution's or linear layer's weight; columns count all inputs."""
    local = weight.shape[1]
    if groups_left == 1 and int(columns.max()) < local:
        return weight[rows][:, columns]
    # In groups a row holds weights on its own group's columns only.
    per_group = len(columns) // groups_left
    own = (columns % local).view(groups_left, per_group)
    group = torch.arange(groups_left).repeat_interleave(len(rows) // groups_left)
    return weight[rows[:, None], own[group]]

"""The nodes of a graph as steps that know which channels they need, and how they are cut.

Every step answers the same questions: given the channels that stay behind it, which must stay
before it (``need``), what else must stay to be exact (``complete``), what changes (``write``).
Layers with a matrix of weights are in :mod:`.matrix_layers`, sums of two tensors in
:mod:`.binary_ops`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from .plan import LayerCut, NodeCut

if TYPE_CHECKING:
    from torch import Tensor, fx

    from .channels import Flow, KeptChannels


@dataclass
class Draft:
    """A plan under construction, with the values of what changes."""

    layers: dict[str, LayerCut] = field(default_factory=dict)
    nodes: dict[str, NodeCut] = field(default_factory=dict)
    values: dict[str, Tensor] = field(default_factory=dict)
    """Float64, by the names of the smaller network's state."""


class Step:
    """A node that gives numbers, or a tensor whose channels come from nowhere."""

    def __init__(self, node: fx.Node, flow: Flow | None = None) -> None:
        self.node = node
        self.flow = flow

    def reads(self, kept: KeptChannels) -> list[fx.Node]:
        """The nodes whose results are still used."""
        return list(self.node.all_input_nodes)

    def need(self, kept: KeptChannels) -> None:
        """Keep the channels that are read, given those that are kept behind this step."""

    def complete(self, kept: KeptChannels) -> None:
        """Keep what else it takes; called when nothing is needed any more."""

    def write(self, kept: KeptChannels, draft: Draft) -> None:
        """Say what changes."""


class Opaque(Step):
    """Something that needs every channel of its inputs and gives every one of its own."""

    def __init__(
        self, node: fx.Node, sources: list[Flow], flow: Flow | None, reason: str | None
    ) -> None:
        super().__init__(node, flow)
        self.sources = sources
        self.reason = reason
        """Why, for the report; ``None`` for the network's own inputs and outputs."""

    def need(self, kept: KeptChannels) -> None:
        """Keep everything."""
        for flow in self.sources:
            kept.add_all(flow)
        if self.flow is not None:
            kept.add_all(self.flow)


class Passthrough(Step):
    """Each channel goes through by itself: activation, pooling, dropout, a slice of the map."""


class Flatten(Step):
    """Channels become as many features each as the map has positions."""

    def __init__(self, node: fx.Node, flow: Flow, by_dimension: bool) -> None:
        super().__init__(node, flow)
        self.by_dimension = by_dimension

    def write(self, kept: KeptChannels, draft: Draft) -> None:
        """A reshape names sizes, which change; a flatten does not."""
        if not self.by_dimension:
            draft.nodes[self.node.name] = NodeCut("flatten")


class Concat(Step):
    """The channels of several tensors, one after another."""

    def __init__(self, node: fx.Node, sources: list[Flow], flow: Flow) -> None:
        super().__init__(node, flow)
        self.sources = sources

    def reads(self, kept: KeptChannels) -> list[fx.Node]:
        """Without the inputs that have no channel left."""
        return [self.node.all_input_nodes[i] for i in self._alive(kept)]

    def write(self, kept: KeptChannels, draft: Draft) -> None:
        """Leave out the inputs that vanished."""
        alive = self._alive(kept)
        if len(alive) < len(self.sources):
            draft.nodes[self.node.name] = NodeCut("cat", positions=tuple(alive))

    def _alive(self, kept: KeptChannels) -> list[int]:
        return [i for i, source in enumerate(self.sources) if bool(kept.of(source).any())]


class PerChannel(Step):
    """A layer with one parameter of each kind for a channel: BatchNorm, PReLU."""

    def __init__(self, node: fx.Node, module: nn.Module, flow: Flow) -> None:
        super().__init__(node, flow)
        self.module = module
        self.channels = flow

    def write(self, kept: KeptChannels, draft: Draft) -> None:
        """Cut every parameter and statistic alike."""
        stays = kept.of(self.channels)
        carriers = kept.carriers(self.channels)[stays] & self.channels.known[stays]
        if bool(stays.all()) and not bool(carriers.any()):
            return
        name = str(self.node.target)
        draft.layers[name] = LayerCut("per-channel", tuple(stays.nonzero().flatten().tolist()))
        cut = {
            key: tensor.detach().cpu().double()[stays]
            for key, tensor in self.module.state_dict().items()
            if tensor.ndim == 1 and len(tensor) == len(stays)
        }
        if isinstance(self.module, _BatchNorm) and self.module.affine:
            # A carrier is told its constant as the shift, so that it is the same when training.
            for key, value in (("weight", 0.0), ("running_mean", 0.0), ("running_var", 1.0)):
                cut[key][carriers] = value
            cut["bias"][carriers] = self.channels.constant[stays][carriers]
        draft.values |= {f"{name}.{key}": tensor for key, tensor in cut.items()}


def after_norm(module: _BatchNorm, constant: Tensor) -> Tensor:
    """Constants behind a BatchNorm layer in evaluation mode."""
    assert module.running_mean is not None
    assert module.running_var is not None
    mean, var = (t.detach().cpu().double() for t in (module.running_mean, module.running_var))
    normal = (constant - mean) / torch.sqrt(var + module.eps)
    if not module.affine:
        return normal
    scale, shift = (t.detach().cpu().double() for t in (module.weight, module.bias))
    # A scale of zero makes a constant of anything.
    return torch.where(scale == 0, shift, normal * scale + shift)


def after_prelu(module: nn.PReLU, constant: Tensor) -> Tensor:
    """Constants behind a PReLU layer."""
    slope = module.weight.detach().cpu().double()
    return torch.where(constant >= 0, constant, slope * constant)

"""From the graph of a network to its steps: every node is classified, or kept whole."""

from __future__ import annotations

import math
import operator
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import fx, nn

from . import operations as ops
from .binary_ops import BinaryOp
from .channels import Classes, Flow
from .errors import CompactError
from .inplace import overwritten
from .matrix_layers import GroupedConvolution, MatrixLayer, MatrixWeights
from .steps import Concat, Flatten, Opaque, Passthrough, PerChannel, Step, after_norm, after_prelu

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from .tracing import Traced


class Analysis:
    """The steps of a network, in order, and the classes of its channels.

    Args:
        traced: the network, its masked weights zero.
        scattered: by the name of a sum, the side that computes only what varies.
        constants: whether dead channels are looked for; without, only the ties are found.
    """

    def __init__(
        self,
        traced: Traced,
        scattered: Mapping[str, int] | None = None,
        *,
        constants: bool = True,
    ) -> None:
        self.traced = traced
        self.scattered = scattered or {}
        self.constants = constants
        self.classes = Classes()
        self.steps: dict[fx.Node, Step] = {}
        self._busy = _busy_modules(traced)
        _refuse(traced)
        for node in traced.nodes:
            self.steps[node] = self._step(node)

    def flow(self, node: object) -> Flow | None:
        """The channels of a node's result."""
        return self.steps[node].flow if isinstance(node, fx.Node) else None

    @property
    def opaque(self) -> list[Opaque]:
        """Steps that could not be looked into."""
        return [s for s in self.steps.values() if isinstance(s, Opaque) and s.reason is not None]

    # ------------------------------------------------------------------ one node

    def _step(self, node: fx.Node) -> Step:
        if node.op == "placeholder":
            return Opaque(node, [], self._new(node), None)
        if node.op == "output":
            return Opaque(node, self._flows(node), None, None)
        if node.op == "get_attr":
            return Step(node)
        flows = self._flows(node)
        if not flows:
            # Numbers, or a tensor that no known channel goes into.
            return (
                Opaque(node, [], self._new(node), None)
                if node in self.traced.results
                else Step(node)
            )
        if ops.reads_sizes(node):
            if ops.reads_size_of(node, flows[0].dim):
                return Opaque(node, flows, None, "asks how many channels there are")
            return Step(node)
        module = self.traced.called(node)
        found = None
        if module is not None and str(node.target) in self._busy:
            return self._opaque(node, flows, self._busy[str(node.target)])
        # A class derived from a layer may do anything with its weights.
        foreign = module is not None and not type(module).__module__.startswith("torch.nn.")
        if node in self.traced.results and not foreign:
            found = (
                self._matrix_layer(node, module)
                or self._per_channel(node, module)
                or self._passthrough(node, module)
                or self._flatten(node, module)
                or self._concat(node)
                or self._binary_op(node)
            )
        return found or self._opaque(
            node, flows, f"{_what(node, module)} is not known channel-wise"
        )

    def _matrix_layer(self, node: fx.Node, module: nn.Module | None) -> Step | None:
        source = self._only(node)
        if source is None or not isinstance(module, (*ops.CONVOLUTIONS, nn.Linear)):
            return None
        linear = isinstance(module, nn.Linear)
        weights = MatrixWeights(
            module, not isinstance(module, nn.Linear) and ops.pads_with_zeros(module)
        )
        shape = self.traced.results[node].shape
        if len(shape) != len(source.shape) or (not linear and len(shape) != weights.weight.ndim):
            return None  # without a batch dimension
        tracked = source.dim == (len(shape) - 1 if linear else 1)
        inputs = source.constant if tracked else torch.full((weights.columns,), torch.nan).double()
        flow = Flow(
            shape,
            len(shape) - 1 if linear else 1,
            self.classes.new(len(weights.bias)),
            self._known(weights.constants(inputs)),
        )
        if weights.groups == 1:
            return MatrixLayer(node, weights, source, flow, tracked)
        if not tracked:
            return None
        if weights.groups == weights.columns == len(weights.bias):  # depthwise
            flow = replace(flow, ids=source.ids)
        return GroupedConvolution(node, weights, source, flow)

    def _per_channel(self, node: fx.Node, module: nn.Module | None) -> Step | None:
        source = self._only(node)
        if source is None or source.dim != 1:
            return None
        if isinstance(module, ops.NORMS):
            if module.running_mean is None:
                return None  # uses the statistics of the batch
            constant = after_norm(module, source.constant)
        elif isinstance(module, nn.PReLU):
            constant = after_prelu(module, source.constant)
            if module.num_parameters == 1:
                return Passthrough(node, self._passed(node, source, constant))
        else:
            return None
        flow = self._passed(node, source, constant)
        assert module is not None
        return PerChannel(node, module, flow)

    def _passthrough(self, node: fx.Node, module: nn.Module | None) -> Step | None:
        source = self._only(node)
        if source is None:
            return None
        shape = self.traced.results[node].shape
        with_number = ops.operation(node) in ops.BINARY and len(node.args) == 2 and not node.kwargs
        if (
            isinstance(module, ops.POINTWISE_MODULES)
            or ops.operation(node) in ops.POINTWISE
            or with_number
        ) and shape == source.shape:
            value = ops.with_value(node, module, node.all_input_nodes[0], source.constant)
            value = torch.where(source.known, value, torch.nan)
            return Passthrough(node, self._passed(node, source, value))
        border = ops.spatial(node, module) if source.dim == 1 else None
        if border is not None and shape[:2] == source.shape[:2]:
            value = source.constant
            if not math.isnan(border):
                value = torch.where(value == border, value, torch.nan)
            return Passthrough(node, self._passed(node, source, value))
        joins_positions = (
            ops.joins_by_dimension(node, module)
            and source.dim == 1
            and len(shape) > 2
            and shape[:2] == source.shape[:2]
        )
        if joins_positions or ops.acts_beyond(node, source.dim, len(source.shape)):
            return Passthrough(node, self._passed(node, source, source.constant))
        return None

    def _flatten(self, node: fx.Node, module: nn.Module | None) -> Step | None:
        source = self._only(node, first=True)
        if source is None or not ops.is_flatten(node, module):
            return None
        shape, before = self.traced.results[node].shape, source.shape
        if shape != (before[0], math.prod(before[1:])):
            return None
        positions = math.prod(before[1:]) // max(len(source), 1)
        if source.dim == 1:
            ids = source.ids.repeat_interleave(positions)
            constant = source.constant.repeat_interleave(positions)
        elif source.dim == len(before) - 1:
            ids, constant = source.ids.repeat(positions), source.constant.repeat(positions)
        else:
            return None
        flow = Flow(shape, 1, ids, constant)
        return Flatten(node, flow, ops.joins_by_dimension(node, module))

    def _concat(self, node: fx.Node) -> Step | None:
        if ops.operation(node) not in (torch.cat, torch.concat, torch.concatenate) or not node.args:
            return None
        parts = node.args[0]
        if not isinstance(parts, list | tuple) or len(set(map(id, parts))) < len(parts):
            return None
        flows = [flow for flow in map(self.flow, parts) if flow is not None]
        shape = self.traced.results[node].shape
        dim = ops.argument(node, None, 1, "dim", 0)
        if len(flows) < len(parts) or not isinstance(dim, int):
            return None
        if any(f.dim != dim % len(shape) for f in flows):
            return None
        flow = Flow(
            shape,
            flows[0].dim,
            torch.cat([f.ids for f in flows]),
            torch.cat([f.constant for f in flows]),
        )
        return Concat(node, flows, flow)

    def _binary_op(self, node: fx.Node) -> Step | None:
        how = ops.BINARY.get(ops.operation(node))
        if how is None or len(node.args) != 2 or node.kwargs:
            return None
        left, right = (self.flow(a) for a in node.args)
        if left is None or right is None or node.args[0] is node.args[1]:
            return None
        alike = (len(left.shape), left.dim, len(left)) == (len(right.shape), right.dim, len(right))
        if not alike:
            return None
        return BinaryOp(
            node,
            how,
            (left, right),
            self.traced.results[node].shape,
            self.classes,
            self.scattered.get(node.name),
        )

    def _opaque(self, node: fx.Node, flows: list[Flow], why: str) -> Opaque:
        return Opaque(node, flows, self._new(node), f"{node.name}: {why}")

    # ------------------------------------------------------------------ flows

    def _flows(self, node: fx.Node) -> list[Flow]:
        return [flow for flow in map(self.flow, node.all_input_nodes) if flow is not None]

    def _only(self, node: fx.Node, *, first: bool = False) -> Flow | None:
        """The flow of a node that reads one tensor (and, for ``first``, maybe numbers)."""
        inputs = node.all_input_nodes
        leads = bool(inputs) and node.args[:1] == (inputs[0],)
        if len(inputs) == 1 and ops.operation(node) in ops.BINARY:
            leads = True  # ``2 * x`` has its tensor second
        if not leads or (len(inputs) > 1 and not first):
            return None
        if sum(i in self.traced.results for i in inputs) != 1:
            return None
        return self.flow(inputs[0])

    def _new(self, node: fx.Node) -> Flow | None:
        """Channels that begin here and are all kept."""
        seen = self.traced.results.get(node)
        if seen is None or len(seen.shape) < 2:
            return None
        ids = self.classes.new(seen.shape[1])
        return Flow(seen.shape, 1, ids, torch.full((len(ids),), torch.nan, dtype=torch.float64))

    def _passed(self, node: fx.Node, source: Flow, constant: Tensor) -> Flow:
        shape = self.traced.results[node].shape
        return Flow(shape, source.dim, source.ids, self._known(constant))

    def _known(self, constant: Tensor) -> Tensor:
        if not self.constants:
            return torch.full_like(constant, torch.nan)
        return torch.where(constant.isfinite(), constant, torch.nan)


def _refuse(traced: Traced) -> None:
    if (node := overwritten(traced)) is not None:
        raise CompactError(
            f"{node.name} writes in place to a tensor that is read again afterwards; "
            "make it work out of place (inplace=False, x = x + y)"
        )
    for node in traced.nodes:
        if ops.is_random(node):
            raise CompactError(
                f"{node.name} drops values at random also in evaluation, so there is no one "
                "function to keep; pass training=self.training"
            )


def _busy_modules(traced: Traced) -> dict[str, str]:
    """Layers that cannot be cut for one use alone, and why."""
    calls = Counter(str(n.target) for n in traced.nodes if n.op == "call_module")
    owners: dict[int, set[str]] = {}
    for name in calls:
        for p in traced.module.get_submodule(name).parameters():
            owners.setdefault(id(p), set()).add(name)
    for node in traced.nodes:
        if node.op == "get_attr":
            tensor = operator.attrgetter(str(node.target))(traced.module)
            owners.setdefault(id(tensor), set()).add(str(node.target))
    found = {}
    for name, count in calls.items():
        module = traced.module.get_submodule(name)
        if count > 1 and module.state_dict():
            found[name] = f"{name} is called {count} times with the same weights"
        elif any(len(owners[id(p)]) > 1 for p in module.parameters()):
            found[name] = f"{name} shares its weights with another layer"
    return found


def _what(node: fx.Node, module: nn.Module | None) -> str:
    if module is not None:
        return type(module).__name__
    return str(getattr(node.target, "__name__", node.target))

"""A graph of operators as a module that can be copied, saved and trained."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import Tensor, fx, nn
from torch.utils._pytree import treespec_dumps, treespec_loads

if TYPE_CHECKING:
    from collections.abc import Iterable


class OperatorGraph(fx.GraphModule):
    """A network as the operators that it calls, with the arguments and outputs that it had."""

    def __deepcopy__(self, memo: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of torch's own specs of arguments
            return super().__deepcopy__(memo)

    def __reduce__(self) -> Any:
        root = nn.Module()
        root.__dict__.update(
            {k: v for k, v in self.__dict__.items() if k in ("_parameters", "_buffers", "_modules",
                                                             "training")}
        )  # fmt: skip
        codegen: Any = self._graph._codegen
        names, in_spec, out_spec = codegen.pytree_info
        info = (names, treespec_dumps(in_spec), treespec_dumps(out_spec))
        calls = [_written(node) for node in self._graph.nodes]
        return _restored, (root, calls, info, type(self).__name__)


@dataclass(frozen=True)
class _Name:
    """Stands for a node, or an operator, in a file."""

    name: str


def _written(node: fx.Node) -> tuple[Any, ...]:
    def named(n: fx.Node) -> Any:
        return _Name(n.name)

    args, kwargs = fx.node.map_arg(node.args, named), fx.node.map_arg(node.kwargs, named)
    target = node.target
    shown = _Name(str(target)) if isinstance(target, torch._ops.OpOverload) else target
    return node.op, node.name, shown, _plain(args), _plain(kwargs)


def _plain(value: Any) -> Any:
    """Lists as lists: those of a graph cannot be changed, nor saved."""
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        made = [_plain(v) for v in value]
        return tuple(made) if isinstance(value, tuple) else made
    return value


def _restored(
    root: nn.Module, calls: Iterable[tuple[Any, ...]], info: Any, name: str
) -> OperatorGraph:
    graph = fx.Graph()
    nodes: dict[str, fx.Node] = {}

    def read(value: Any) -> Any:
        if isinstance(value, _Name):
            return nodes[value.name]
        if isinstance(value, dict):
            return {k: read(v) for k, v in value.items()}
        if isinstance(value, list | tuple):
            made = [read(v) for v in value]
            return tuple(made) if isinstance(value, tuple) else made
        return value

    for op, own, target, args, kwargs in calls:
        if isinstance(target, _Name):
            found: Any = torch.ops
            for part in target.name.split("."):
                found = getattr(found, part)
            target = found
        nodes[own] = graph.create_node(op, target, read(args), read(kwargs), own)
    names, in_spec, out_spec = info
    graph.set_codegen(CodeGen(fx.graph._PyTreeInfo(
        names, treespec_loads(in_spec), treespec_loads(out_spec)
    )))  # fmt: skip
    return OperatorGraph(root, graph, name)


class CodeGen(fx.graph._PyTreeCodeGen):
    """How arguments and outputs are taken apart; never changes."""

    def __deepcopy__(self, memo: object) -> CodeGen:
        return self


def copied_graph(old: fx.Graph) -> fx.Graph:
    """A graph that can be changed."""
    graph = fx.Graph()
    graph.output(graph.graph_copy(old, {}))
    codegen: Any = old._codegen
    graph.set_codegen(CodeGen(codegen.pytree_info))
    return graph


# ---------------------------------------------------------------------- parts with a mode, or state


class ScatterAdd(nn.Module):
    """``stream``, plus ``branch`` at the channels ``index``, plus a constant by channel.

    Args:
        index: the stream's channel of each of the branch's.
        shift: what the channels that the branch does not compute add; ``None`` for nothing.
        dim: dimension of the channels.
    """

    index: Tensor
    shift: Tensor | None

    def __init__(self, index: Tensor, shift: Tensor | None, dim: int = 1) -> None:
        super().__init__()
        self.dim = dim
        self.register_buffer("index", index)
        self.register_buffer("shift", shift)

    def forward(self, stream: Tensor, branch: Tensor) -> Tensor:
        """The sum."""
        branch = branch.to(stream.dtype)  # another one under autocast, which sums by index refuse
        if self.shift is None:
            return stream.index_add(self.dim, self.index, branch)
        # Into the tensor just made: another one of this size can cost more than the sum itself.
        return (stream + self.shift.to(stream.dtype)).index_add_(self.dim, self.index, branch)


class BatchNorm(nn.Module):
    """A BatchNorm that knows its mode; scale, shift and statistics are the graph's."""

    def __init__(self, momentum: float, eps: float) -> None:
        super().__init__()
        self.momentum, self.eps = momentum, eps

    def forward(self, x: Tensor, *tensors: Tensor | None) -> Tensor:
        """By the batch's statistics in training, by its own in evaluation."""
        weight, bias, mean, var = tensors
        return F.batch_norm(x, mean, var, weight, bias, self.training, self.momentum, self.eps)


class Dropout(nn.Module):
    """Dropout that knows its mode."""

    def __init__(self, p: float, kind: str) -> None:
        super().__init__()
        self.p, self.kind = p, kind

    def forward(self, x: Tensor) -> Tensor:
        """With values dropped, in training."""
        dropped: Tensor = getattr(torch, self.kind)(x, self.p, self.training)
        return dropped


def picked(x: Tensor, dim: int, index: list[int]) -> Tensor:
    """Some positions along a dimension."""
    return x.index_select(dim, torch.tensor(index, device=x.device))

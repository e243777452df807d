"""A plan applied to the graph of a network: the smaller network, with whatever weights."""

from __future__ import annotations

import hashlib
from copy import copy, deepcopy
from typing import TYPE_CHECKING

import torch
from torch import Tensor, fx, nn

from dessilbi.graph.binary_ops import constant_name, scatter_name
from dessilbi.graph.errors import CompactError
from dessilbi.graph.inplace import work_out_of_place
from dessilbi.graph.matrix_layers import cut_rows_and_columns

if TYPE_CHECKING:
    from dessilbi.graph.plan import LayerCut, NodeCut, Plan


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


def fingerprint(module: fx.GraphModule) -> str:
    """A network's operations, names and shapes in sixteen digits, whatever its weights."""
    lines = [f"{n.op} {n.name} {_target(n)} {n.args} {n.kwargs}" for n in module.graph.nodes]
    lines += [f"{name} {tuple(t.shape)}" for name, t in module.state_dict().items()]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def _target(node: fx.Node) -> str:
    return str(getattr(node.target, "__name__", node.target))


def build(plan: Plan, module: fx.GraphModule) -> fx.GraphModule:
    """The smaller network; weights that the plan cuts are cut, not yet corrected for constants.

    Args:
        plan: what changes.
        module: the whole network's graph; it is left alone, modules that change are copied.
    """
    if fingerprint(module) != plan.network:
        raise CompactError(
            "the plan was made for another network: operations or shapes are different ones; "
            "build the original with the code and arguments that it had"
        )
    small = fx.GraphModule(deepcopy(module), deepcopy(module.graph), type(module).__name__)
    for name, cut in plan.layers.items():
        parent, _, own = name.rpartition(".")
        setattr(small.get_submodule(parent), own, _cut_layer(small.get_submodule(name), cut))
    nodes = {node.name: node for node in small.graph.nodes}
    for name, change in plan.nodes.items():
        _cut_node(small, nodes[name], change)
    work_out_of_place(small)
    small.graph.eliminate_dead_code()
    small.graph.lint()
    small.recompile()
    small.delete_all_unused_submodules()
    _forget_unused_tensors(small)
    return small


@torch.no_grad()
def _cut_layer(old: nn.Module, cut: LayerCut) -> nn.Module:
    new = copy(old)  # shallow: tensors are replaced below, never written to
    new._parameters, new._buffers = dict(old._parameters), dict(old._buffers)
    rows = len(cut.rows)
    for name, tensor in [*old.named_parameters(recurse=False), *old.named_buffers(recurse=False)]:
        made = cut_tensor(cut, name, tensor)
        if isinstance(tensor, nn.Parameter):
            new._parameters[name] = nn.Parameter(made, tensor.requires_grad)
        else:
            new._buffers[name] = made
    weight = new._parameters["weight"]
    if cut.bias and new._parameters["bias"] is None:
        assert weight is not None
        new._parameters["bias"] = nn.Parameter(weight.new_zeros(rows), weight.requires_grad)
    for name, size in _sizes(old, cut).items():
        setattr(new, name, size)
    return new


def _sizes(layer: nn.Module, cut: LayerCut) -> dict[str, int]:
    """What a layer remembers of its shape."""
    rows, columns = len(cut.rows), len(cut.columns)
    if cut.kind == "per-channel":
        return {"num_parameters" if isinstance(layer, nn.PReLU) else "num_features": rows}
    if cut.kind == "linear":
        return {"out_features": rows, "in_features": columns}
    return {"out_channels": rows, "in_channels": columns, "groups": cut.groups_left}


def cut_tensor(cut: LayerCut, name: str, tensor: Tensor) -> Tensor:
    """The part of a layer's tensor, or of one that goes with it, that stays."""
    rows = torch.tensor(cut.rows, dtype=torch.long)
    if cut.kind != "per-channel" and name == "weight":
        columns = torch.tensor(cut.columns, dtype=torch.long)
        if int(rows.max()) >= tensor.shape[0] or int(columns.max()) >= tensor.shape[1] * cut.groups:
            raise CompactError(
                f"the plan keeps row {int(rows.max())} and column {int(columns.max())} of a weight "
                f"of shape {tuple(tensor.shape)}; it was made for another network"
            )
        found = cut_rows_and_columns(tensor.detach(), rows, columns, cut.groups_left)
    elif tensor.ndim == 1 and len(tensor) > int(rows.max()):
        found = tensor.detach()[rows]
    else:
        found = tensor.detach()  # num_batches_tracked
    return found.clone().contiguous()


def _cut_node(small: fx.GraphModule, node: fx.Node, cut: NodeCut) -> None:
    graph = small.graph
    if cut.kind == "flatten":
        node.op, node.target = "call_function", torch.flatten
        node.args, node.kwargs = (node.args[0], 1), {}
    elif cut.kind == "cat":
        parts = node.args[0]
        assert isinstance(parts, list | tuple)
        node.args = ([parts[at] for at in cut.positions], *node.args[1:])
    elif cut.kind == "skip":
        replacement = node.args[cut.positions[0]]
        assert isinstance(replacement, fx.Node)
        node.replace_all_uses_with(replacement)
        graph.erase_node(node)
    elif cut.kind == "constant":
        name = constant_name(node.name)
        small.register_buffer(name, torch.empty(0))
        with graph.inserting_before(node):
            value = graph.get_attr(name)
        node.update_arg(cut.positions[0], value)
    else:
        name = scatter_name(node.name)
        shift = torch.empty(0) if cut.shift else None
        home = next(iter(small.parameters()), torch.empty(0)).device
        small.add_submodule(name, ScatterAdd(torch.tensor(cut.index, device=home), shift))
        lead, side = (node.args[at] for at in cut.positions)
        with graph.inserting_before(node):
            added = graph.call_module(name, (lead, side))
        node.replace_all_uses_with(added)
        graph.erase_node(node)


def _forget_unused_tensors(small: fx.GraphModule) -> None:
    """Drop parameters that nothing reads any more, of layers that were looked into."""
    used = {str(n.target) for n in small.graph.nodes if n.op in ("get_attr", "call_module")}
    for name, module in small.named_modules():
        if any(name == u or name.startswith(f"{u}.") for u in used):
            continue
        for own in [*module._parameters, *module._buffers]:
            if (f"{name}.{own}" if name else own) not in used:
                module._parameters.pop(own, None)
                module._buffers.pop(own, None)


@torch.no_grad()
def set_state(small: nn.Module, values: dict[str, Tensor]) -> None:
    """Put values into a network, in its own dtypes; buffers of constants take their shape."""
    home = next(iter(small.parameters()), None)
    for name, value in values.items():
        parent, _, own = name.rpartition(".")
        owner = small.get_submodule(parent)
        old = getattr(owner, own)
        if own == "shift" or own.startswith("constant_"):
            dtype = value.dtype if home is None else home.dtype
            setattr(owner, own, value.to(old.device if home is None else home.device, dtype))
        else:
            if old.shape != value.shape:
                raise CompactError(
                    f"{name} has shape {tuple(value.shape)}, but the plan gives it "
                    f"{tuple(old.shape)}: plan and weights do not belong together"
                )
            old.copy_(value)

"""The smaller network as a graph of operators, for code that names sizes."""

from __future__ import annotations

import operator
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx, nn

from dessilbi.graph.analysis import Analysis  # noqa: TC001
from dessilbi.graph.errors import CompactError
from dessilbi.graph.matrix import bias_name
from dessilbi.graph.plan import NodeCut
from dessilbi.graph.resize import left, resized
from dessilbi.graph.rules import operator_name
from dessilbi.graph.steps import Join

from .liveness import live_nodes, parts_left
from .modules_form import cut_tensor
from .operator_graph import BatchNorm, Dropout, OperatorGraph, ScatterAdd, copied_graph, picked

if TYPE_CHECKING:
    from dessilbi.graph.classes import Kept
    from dessilbi.graph.plan import Plan
    from dessilbi.graph.reading import Network


# ---------------------------------------------------------------------- what changes


def node_cuts(analysis: Analysis, kept: Kept) -> tuple[dict[str, NodeCut], dict[str, Tensor]]:
    """The calls of a graph that change, and the values of the constants in them."""
    cuts: dict[str, NodeCut] = {}
    values: dict[str, Tensor] = {}
    live = live_nodes(analysis, kept, vanish=True)
    for node in analysis.network.nodes:
        if node not in live or node.op != "call_function":
            continue
        step = analysis.steps.get(node)
        cut = None
        if isinstance(step, Join) and (step.constant is not None or step.scattered is not None):
            cut = _join(step, kept, values)
        elif operator_name(node) in ("cat", "concat", "concatenate"):
            alive = parts_left(analysis, kept, node)
            if len(alive) < len(node.args[0]):  # type: ignore[arg-type]
                cut = NodeCut("cat", positions=tuple(alive))
        else:
            cut = resized(analysis, kept, node)
        if cut is not None:
            cuts[node.name] = cut
    return cuts, values


def _join(step: Join, kept: Kept, values: dict[str, Tensor]) -> NodeCut | None:
    node = step.node
    if step.constant is not None:
        if node.kwargs:
            return None
        side = step.constant
        value = step.sides[side]
        assert value.constant is not None
        number = value.constant
        for d in range(number.ndim):
            stays = left(kept, step.output, d - number.ndim + step.output.ndim)
            if stays is not None and number.shape[d] > 1:
                number = number.index_select(d, stays.nonzero().flatten())
        neutral = 1.0 if step.how in ("mul", "div") else 0.0
        commutes = side == 1 or step.how in ("add", "mul")
        if commutes and bool((number == neutral).all()):
            return NodeCut("skip", positions=(1 - side,))
        values[constant_name(node.name)] = number
        return NodeCut("constant", positions=(side,))
    side = step.scattered if step.scattered is not None else 1
    has, stays = kept.of(step.branch), kept.of(step.stream)
    shift = step.shift.nan_to_num(0.0).masked_fill(has, 0.0)[stays]
    index = has[stays].nonzero().flatten()
    moves = bool((shift != 0).any())
    (factor,) = step.output.factors
    dim = next(d for d, n in enumerate(factor.shape) if n > 1)
    if moves:
        shape = [1] * factor.ndim
        shape[dim] = len(shift)
        values[f"{scatter_name(node.name)}.shift"] = shift.reshape(shape)
    return NodeCut(
        "scatter",
        positions=(1 - side, side),
        index=tuple(index.tolist()),
        numbers={"dim": dim},
        shift=moves,
    )


def constant_name(node: str) -> str:
    """The buffer in the stead of a constant side."""
    return f"constant_{node}"


def scatter_name(node: str) -> str:
    """The module in the stead of a sum."""
    return f"scatter_{node}"


# ---------------------------------------------------------------------- building


def build_graph(plan: Plan, network: Network, model: nn.Module) -> fx.GraphModule:
    """The smaller network; weights that the plan cuts are cut, not yet corrected for constants.

    Args:
        plan: what changes.
        network: the whole network's graph; it is left alone.
        model: the whole network.
    """
    graph = copied_graph(network.module.graph)
    nodes = {node.name: node for node in graph.nodes}
    tensors: dict[str, Any] = {}
    made: dict[int, Any] = {}
    for node in network.nodes:
        if node.op != "get_attr":
            continue
        name = str(node.target)
        if any(name.startswith(f"{one}.") for one in network.whole.values()):
            continue  # comes with its module
        found: Any = network.module
        for part in name.split("."):
            found = getattr(found, part)
        if not isinstance(found, Tensor):
            tensors[name] = deepcopy(found)
            continue
        if id(found) not in made:
            cut = plan.tensors.get(name)
            new = found.detach().clone() if cut is None else cut_tensor(cut, found)
            is_parameter = isinstance(found, nn.Parameter)
            made[id(found)] = nn.Parameter(new, found.requires_grad) if is_parameter else new
        tensors[name] = made[id(found)]
    unknown = [n for n in (*plan.nodes, *plan.biases) if n not in nodes and n not in tensors]
    if unknown:
        raise CompactError(f"the network has no {unknown[0]!r}: it is another one than the plan's")
    for name in plan.biases:
        weight = tensors[name]
        tensors[bias_name(name)] = nn.Parameter(
            weight.new_zeros(_rows(graph, name, weight)), weight.requires_grad
        )
    root = nn.Module()
    for name, tensor in tensors.items():
        _put(root, name, tensor)
    for name in network.whole.values():
        _put(root, name, deepcopy(model.get_submodule(name)))
    for name in plan.biases:
        _use_bias(graph, name)
    for name, change in plan.nodes.items():
        _cut_node(root, graph, nodes[name], change)
    for node in list(graph.nodes):
        _with_mode(root, graph, node, network.whole)
    small = OperatorGraph(root, graph, type(model).__name__)
    small.graph.eliminate_dead_code()
    used = {str(n.target) for n in small.graph.nodes if n.op == "get_attr"}
    for name in [n for n in tensors if n not in used and n in _tensors(small)]:
        owner, _, own = name.rpartition(".")
        home = small.get_submodule(owner)
        home._parameters.pop(own, None)
        home._buffers.pop(own, None)
    small.delete_all_unused_submodules()
    small.recompile()
    return small


def _tensors(model: nn.Module) -> set[str]:
    named = [*model.named_parameters(remove_duplicate=False)]
    return {n for n, _ in [*named, *model.named_buffers(remove_duplicate=False)]}


def _put(root: nn.Module, name: str, item: Any) -> None:
    *path, own = name.split(".")
    home = root
    for part in path:
        if part not in home._modules:
            home.add_module(part, nn.Module())
        home = home.get_submodule(part)
    if isinstance(item, nn.Parameter):
        home.register_parameter(own, item)
    elif isinstance(item, Tensor):
        home.register_buffer(own, item)
    elif isinstance(item, nn.Module):
        home.add_module(own, item)
    else:
        setattr(home, own, item)


def _rows(graph: fx.Graph, name: str, weight: Tensor) -> int:
    user = _user(graph, name)
    transposed = operator_name(user).startswith("conv_transpose")
    return int(weight.shape[1 if transposed else 0])


def _user(graph: fx.Graph, name: str) -> fx.Node:
    users: list[fx.Node] = [
        u for n in graph.nodes if n.op == "get_attr" and n.target == name for u in n.users
    ]
    return users[0]


def _use_bias(graph: fx.Graph, name: str) -> None:
    user = _user(graph, name)
    with graph.inserting_before(user):
        bias = graph.get_attr(bias_name(name))
    user.args = (*user.args[:2], bias, *user.args[3:])


def _cut_node(root: nn.Module, graph: fx.Graph, node: fx.Node, cut: NodeCut) -> None:
    if cut.kind == "numbers":
        _renumber(node, cut)
    elif cut.kind == "cat":
        parts: Any = node.args[0]
        node.args = ([parts[at] for at in cut.positions], *node.args[1:])
    elif cut.kind == "skip":
        node.replace_all_uses_with(node.all_input_nodes[cut.positions[0]])
        graph.erase_node(node)
    elif cut.kind == "constant":
        name = constant_name(node.name)
        root.register_buffer(name, torch.empty(0))
        with graph.inserting_before(node):
            value = graph.get_attr(name)
        node.replace_input_with(node.all_input_nodes[cut.positions[0]], value)
    else:
        name = scatter_name(node.name)
        home = next(iter(root.parameters()), torch.empty(0)).device
        shift = torch.empty(0) if cut.shift else None
        index = torch.tensor(cut.index, device=home)
        root.add_module(name, ScatterAdd(index, shift, int(cut.numbers["dim"])))
        lead, side = (node.all_input_nodes[at] for at in cut.positions)
        with graph.inserting_before(node):
            added = graph.call_module(name, (lead, side))
        node.replace_all_uses_with(added)
        graph.erase_node(node)


def _renumber(node: fx.Node, cut: NodeCut) -> None:
    args: list[Any] = list(node.args)
    schema: Any = getattr(node.target, "_schema", None)
    defaults = schema.arguments if schema is not None else ()
    kwargs = dict(node.kwargs)
    for path, number in cut.numbers.items():
        at, _, entry = path.partition(".")
        position = int(at)
        while len(args) <= position:
            argument = defaults[len(args)]
            args.append(kwargs.pop(argument.name, argument.default_value))
        if entry:
            args[position] = [*args[position]]
            if isinstance(number, dict):
                number = _times(node.graph, args[position][int(entry)], number["examples"])
            args[position][int(entry)] = number
        else:
            args[position] = number
    if cut.operator == "split_with_sizes":
        dim = args[2] if len(args) > 2 else kwargs.pop("dim", 0)
        node.target, args = torch.ops.aten.split_with_sizes.default, [args[0], args[1], dim]
    elif cut.operator == "index_select":
        node.target, args, kwargs = picked, [args[0], args[1], args[2]], {}
    node.args, node.kwargs = tuple(args), kwargs


def _times(graph: fx.Graph, size: fx.Node, factor: int) -> fx.Node:
    """The number of examples, times a factor; ``size`` was such a number."""
    count: Any = size.args[0] if size.target is operator.mul else size
    with graph.inserting_after(count):
        return graph.call_function(operator.mul, (count, factor))


def _with_mode(root: nn.Module, graph: fx.Graph, node: fx.Node, whole: dict[str, str]) -> None:
    """Let calls that differ in training know the mode, and parts that are kept whole be called."""
    if node.op != "call_function":
        return
    name = operator_name(node)
    if name in ("view", "_unsafe_view"):  # the memory format may be another one
        node.target = torch.ops.aten.reshape.default
    if node.target is torch.ops.dessilbi.whole.default:
        tensors: Any = node.args[1]
        with graph.inserting_before(node):
            found = graph.call_module(whole[node.name], tuple(tensors))
        for user in list(node.users):  # one result of one
            user.replace_all_uses_with(found)
            graph.erase_node(user)
        graph.erase_node(node)
        return
    made: nn.Module
    if name == "batch_norm" and len(node.args) >= 8 and not node.args[5]:
        made, given = BatchNorm(float(node.args[6]), float(node.args[7])), node.args[:5]  # type: ignore[arg-type]
        given = (given[0], *given[1:5])
    elif name in ("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout"):
        made, given = Dropout(float(node.args[1]), name), node.args[:1]  # type: ignore[arg-type]
    else:
        return
    root.add_module(f"{name}_of_{node.name}", made)
    with graph.inserting_before(node):
        found = graph.call_module(f"{name}_of_{node.name}", tuple(given))
    node.replace_all_uses_with(found)
    graph.erase_node(node)


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

"""Operators that write to their input, turned into those that do not."""

from __future__ import annotations

import torch
from torch import fx

_MAY_ALIAS = frozenset(
    (
        "view", "reshape", "flatten", "unflatten", "transpose", "permute", "t", "mT", "movedim",
        "slice", "select", "narrow", "split", "split_with_sizes", "chunk", "tensor_split",
        "unbind", "expand", "squeeze", "unsqueeze", "alias", "detach", "getitem", "contiguous",
        "to", "view_as", "expand_as", "diagonal", "dropout", "feature_dropout", "alpha_dropout",
        "unfold", "as_strided", "swapaxes", "swapdims", "lift_fresh_copy", "type_as", "real",
        "imag", "pad",
    )
)  # fmt: skip
"""Operators whose result may be their input's memory."""


def writes_in_place(node: fx.Node) -> bool:
    """Whether an operator writes to its first input."""
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def made_functional(graph: fx.Graph) -> bool:
    """Turn operators that write in place into those that do not; whether that could be done.

    It cannot where the memory that is written is known by another name, a view.
    """
    order = {node: i for i, node in enumerate(graph.nodes)}
    writing = [node for node in graph.nodes if writes_in_place(node)]
    twins = {}
    for node in writing:
        twin, target = _twin(node), node.args[0]
        if twin is None or not isinstance(target, fx.Node) or _aliased(target, node, order):
            return False
        twins[node] = twin
    for node, twin in twins.items():
        target = node.args[0]
        assert isinstance(target, fx.Node)
        node.target = twin
        for user in list(target.users):
            if order[user] > order[node]:
                user.replace_input_with(target, node)
    return True


def _aliased(target: fx.Node, node: fx.Node, order: dict[fx.Node, int]) -> bool:
    if target.op == "call_function" and _may_alias(target):
        return True
    return any(order[u] < order[node] and _may_alias(u) for u in target.users)


def _may_alias(node: fx.Node) -> bool:
    if isinstance(node.target, torch._ops.OpOverload):
        return node.target._schema.name.rpartition("::")[2] in _MAY_ALIAS
    return node.op != "output"


def _twin(node: fx.Node) -> torch._ops.OpOverload | None:
    target = node.target
    assert isinstance(target, torch._ops.OpOverload)
    name = target._schema.name.rpartition("::")[2]
    packet = getattr(torch.ops.aten, name.removesuffix("_"), None)
    if not name.endswith("_") or packet is None:
        return None
    found = getattr(packet, target._overloadname, None)
    return found if isinstance(found, torch._ops.OpOverload) else None

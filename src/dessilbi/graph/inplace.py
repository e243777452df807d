"""Layers that write to their input: whether that is seen elsewhere, and how to do without."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import Tensor

from .operations import BINARY, DROPOUTS, POINTWISE, operation

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import fx, nn

    from .tracing import Traced


def works_in_place(node: fx.Node, module: nn.Module | None) -> bool:
    """Whether a node writes to its first input."""
    if getattr(module, "inplace", False) or node.kwargs.get("inplace"):
        return True
    if node.op == "call_method":
        name = str(node.target)
    elif node.op == "call_function":
        if _flag(node) is not None:
            return True
        name = getattr(node.target, "__name__", "")
        if getattr(node.target, "__module__", "") in ("_operator", "operator"):
            return name in ("iadd", "isub", "imul", "itruediv", "setitem")
    else:
        return False
    return name.endswith("_") and not name.endswith("__")


def _flag(node: fx.Node) -> int | None:
    """Where a function is told by position to work in place, as ``F.relu(x, True)`` is."""
    if node.op != "call_function" or operation(node) not in POINTWISE:
        return None
    start = 3 if operation(node) in DROPOUTS else 1  # the third argument of dropout is ``training``
    return next((at for at in range(start, len(node.args)) if node.args[at] is True), None)


def work_out_of_place(module: fx.GraphModule) -> None:
    """Let no node write to its input; :func:`overwritten` has made sure that none relies on it."""
    for node in module.graph.nodes:
        called = module.get_submodule(node.target) if node.op == "call_module" else None
        if not works_in_place(node, called):
            continue
        if called is not None:
            called.inplace = False  # type: ignore[assignment]
        elif operation(node) in BINARY and len(node.args) == 2 and not node.kwargs:
            what = BINARY[operation(node)]
            node.op, node.target = "call_function", what
        elif node.kwargs.get("inplace"):
            node.kwargs = {**node.kwargs, "inplace": False}
        elif (at := _flag(node)) is not None:
            node.args = (*node.args[:at], False, *node.args[at + 1 :])
        elif (twin := _twin(node)) is not None:
            node.target = twin
        else:  # ``zero_``, ``fill_`` and the like have none; they may write to a copy
            written = node.all_input_nodes[0]
            with module.graph.inserting_before(node):
                node.replace_input_with(written, module.graph.call_method("clone", (written,)))


def _twin(node: fx.Node) -> str | Callable[..., Any] | None:
    """What does the same as a method or function with a ``_``, out of place, if torch has it."""
    if isinstance(node.target, str):
        name = node.target.removesuffix("_")
        return name if callable(getattr(Tensor, name, None)) else None
    name = getattr(node.target, "__name__", "")
    for home in (F, torch):
        if getattr(home, name, None) is node.target:
            return getattr(home, name.removesuffix("_"), None)
    return None


def overwritten(traced: Traced) -> fx.Node | None:
    """A node that writes to memory which is read under another name afterwards."""
    order = {node: i for i, node in enumerate(traced.nodes)}
    for node in traced.nodes:
        if not works_in_place(node, traced.called(node)) or not node.all_input_nodes:
            continue
        target = node.all_input_nodes[0]
        if target not in traced.results:
            continue
        shared = traced.results[target].storage
        for other, seen in traced.results.items():
            if seen.storage != shared or order[other] >= order[node]:
                continue
            if any(order[user] > order[node] for user in other.users):
                return node
    return None

"""Which channels stay: as few as keep the function."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dessilbi.graph.classes import Kept
from dessilbi.graph.rules import operator_name
from dessilbi.graph.steps import Join

if TYPE_CHECKING:
    from torch import fx

    from dessilbi.graph.analysis import Analysis
    from dessilbi.graph.values import Value


def keep_channels(analysis: Analysis, *, vanish: bool) -> Kept:
    """Channels with which the network is the same function; others have no effect left.

    Args:
        analysis: of the network.
        vanish: whether calls that have no effect left leave as well.
    """
    kept = Kept(analysis.classes)
    while True:
        before = kept.count
        live = live_nodes(analysis, kept, vanish=vanish)
        steps = [step for node, step in analysis.steps.items() if node in live]
        for step in reversed(steps):
            step.need(kept)
        if kept.count > before:
            continue
        for step in reversed(steps):
            step.complete(kept)
        if kept.count > before:
            continue
        # What is computed has at least one channel, dead or not.
        for node in analysis.network.nodes:
            if node in live:
                for value in _values(analysis, node):
                    for factor in value.factors:
                        if not bool(kept.of(factor).any()):
                            kept.add(factor.reshape(-1)[:1])
        if kept.count == before:
            return kept


def live_nodes(analysis: Analysis, kept: Kept, *, vanish: bool) -> set[fx.Node]:
    """Calls whose results still reach the output."""
    nodes = analysis.network.nodes
    live = {node for node in nodes if node.op == "output"}
    for node in reversed(nodes):
        if node in live:
            live.update(reads(analysis, kept, node) if vanish else node.all_input_nodes)
    return live


def reads(analysis: Analysis, kept: Kept, node: fx.Node) -> list[fx.Node]:
    """What a call still needs: neither a side that is constant nor a part without channels."""
    step = analysis.steps.get(node)
    if isinstance(step, Join) and step.constant is not None and not node.kwargs:
        return [node.all_input_nodes[1 - step.constant]]
    if operator_name(node) in ("cat", "concat", "concatenate"):
        parts: Any = node.args[0]
        return [parts[i] for i in parts_left(analysis, kept, node)]
    return list(node.all_input_nodes)


def parts_left(analysis: Analysis, kept: Kept, node: fx.Node) -> list[int]:
    """The inputs of a concatenation that have channels left."""
    parts = [analysis.value(one) for one in node.args[0]]  # type: ignore[union-attr]
    alive = [i for i, part in enumerate(parts) if all(bool(kept.of(f).any()) for f in part.factors)]
    return alive or [0]


def _values(analysis: Analysis, node: fx.Node) -> list[Value]:
    found = analysis.value(node) if node.op == "get_attr" else analysis.values.get(node, ())
    return list(found) if isinstance(found, tuple) else [found]

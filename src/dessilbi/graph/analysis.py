"""From the graph of a network to its classes and steps, every operator by its rule."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx, nn

from . import rules_layout, rules_matrix, rules_norm, rules_pointwise
from .classes import Classes
from .matrix import Matrix
from .rules import RULES, operator_name
from .values import Leaf, Value, hold

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .reading import Network
    from .steps import Step

__all__ = ["Analysis", "rules_layout", "rules_matrix", "rules_norm", "rules_pointwise"]

Known = Value | tuple[Value, ...]


class Analysis:
    """What is known of every tensor of a network.

    Args:
        network: its graph, the masked weights zero.
        scattered: by the name of a sum, the side that computes only what varies.
        constants: whether dead channels are looked for; without, only the ties are found.
    """

    def __init__(
        self,
        network: Network,
        scattered: Mapping[str, int] | None = None,
        *,
        constants: bool = True,
    ) -> None:
        self.network = network
        self.scattered = dict(scattered or {})
        self.constants = self._wanted = constants
        self.classes = Classes()
        self.steps: dict[fx.Node, Step] = {}
        self.values: dict[fx.Node, Known] = {}
        self.leaves: dict[tuple[Any, ...], Leaf] = {}
        self.uses: dict[str, list[fx.Node]] = {}
        """By the name of a parameter or buffer, who reads it."""
        self.reasons: list[str] = []
        """Operators that are kept whole, and why."""
        with torch.no_grad():
            for node in network.nodes:
                if node.op == "placeholder":
                    self.values[node] = Value(self.shape(node))
                elif node.op == "output":
                    self._output(node)
                elif node.op == "call_function":
                    self.values[node] = self._called(node)
            self._untie_shared_memory()
            self._make_rectangular()
        for step in self.steps.values():
            if isinstance(step, Matrix):
                used = [leaf.name for leaf in (step.leaf, step.bias) if leaf is not None]
                step.shared = any(len(self.uses[name]) > 1 for name in used)

    # ------------------------------------------------------------------ what rules ask

    def value(self, node: object) -> Any:
        """What is known of an argument."""
        if not isinstance(node, fx.Node):
            return Value(())
        if node.op == "get_attr":
            return self._leaf(node) if isinstance(node.meta.get("val"), Tensor) else Value(())
        return self.values[node]

    def argument(self, node: fx.Node, position: int, name: str, default: Any = None) -> Any:
        """An argument of a call: a node, or a plain value."""
        found = node.kwargs.get(name, default)
        if position < len(node.args):
            found = node.args[position]
        return _plain(found)

    def shape(self, node: fx.Node) -> tuple[int, ...]:
        """Of a node's result; nothing if that is no tensor."""
        result = node.meta.get("val")
        return tuple(int(n) for n in result.shape) if isinstance(result, Tensor) else ()

    def call(self, node: fx.Node, replaced: dict[fx.Node, Tensor]) -> Any:
        """What an operator makes of other tensors in place of its arguments."""

        def one(a: Any) -> Any:
            return replaced[a] if isinstance(a, fx.Node) and a in replaced else _plain(a)

        args = fx.node.map_aggregate(node.args, one)
        kwargs = fx.node.map_aggregate(node.kwargs, one)
        assert callable(node.target)
        return node.target(*args, **kwargs)

    # ------------------------------------------------------------------ one node

    def _leaf(self, node: fx.Node) -> Value:
        tensor = self.network.tensor(node)
        name = str(node.target)
        key = (
            tensor.data_ptr(),
            tuple(tensor.shape),
            tensor.stride(),
            name if not tensor.numel() else "",
        )
        leaf = self.leaves.get(key)
        if leaf is None:
            ids: list[Tensor | None] = [None] * tensor.ndim
            for d in reversed(range(tensor.ndim)):  # columns before rows, as they are read first
                # What is made in the code is no parameter, and stays as it is.
                known = name in self.network.names and _is_cut(node, tensor)
                if tensor.shape[d] > 1 and known:
                    ids[d] = self.classes.new(tensor.shape[d])
            leaf = self.leaves[key] = Leaf(name, tensor, tuple(ids))
        factors = tuple(
            i.reshape([-1 if e == d else 1 for e in range(tensor.ndim)])
            for d, i in enumerate(leaf.ids)
            if i is not None
        )
        return Value(tuple(tensor.shape), factors, leaf=leaf, numeric=lambda: tensor)

    def _called(self, node: fx.Node) -> Known:
        inputs = [self.value(a) for a in node.all_input_nodes]
        for a in node.all_input_nodes:
            if a.op == "get_attr" and isinstance(one := self.value(a), Value) and one.leaf:
                self.uses.setdefault(one.leaf.name, []).append(node)
        singles = [v for v in inputs if isinstance(v, Value)]
        fixed = bool(singles) and len(singles) == len(inputs) and all(v.fixed for v in singles)
        name = operator_name(node)
        plain = name.removesuffix("_") if not name.endswith("__") else name
        rule = RULES.get(name) or RULES.get(plain)
        found: Known | None = None
        if rule is not None and (
            self.shape(node) or isinstance(node.meta.get("val"), list | tuple) or name == "getitem"
        ):
            self.constants = self._wanted and not fixed
            found = rule(self, node)
            self.constants = self._wanted
        if found is None:
            found = self._whole(node, inputs)
        if fixed and isinstance(found, Value) and isinstance(node.meta.get("val"), Tensor):
            found = Value(found.shape, found.factors, numeric=self._numeric(node))
            self.steps.pop(node, None)
        return found

    def _numeric(self, node: fx.Node) -> Any:
        inputs = {a: self.value(a) for a in node.all_input_nodes}

        @cache
        def compute() -> Tensor:
            with torch.no_grad():
                found = self.call(node, {a: v.numeric() for a, v in inputs.items()})
            assert isinstance(found, Tensor)
            return found

        return compute

    def _whole(self, node: fx.Node, inputs: list[Any]) -> Known:
        """Everything that goes in stays."""
        flat = [v for one in inputs for v in (one if isinstance(one, tuple) else (one,))]
        if any(v.factors for v in flat):
            for v in flat:
                hold(self.classes, v)
            part = self.network.whole.get(node.name)
            self.reasons.append(
                f"{_place(node)}: {operator_name(node)} is not known channel-wise"
                if part is None
                else f"{part}: cannot be read by torch.export"
            )
        result = node.meta.get("val")
        if isinstance(result, list | tuple):
            return tuple(Value(tuple(int(n) for n in getattr(r, "shape", ()))) for r in result)
        return Value(self.shape(node))

    def _output(self, node: fx.Node) -> None:
        for a in node.all_input_nodes:
            found = self.value(a)
            for v in found if isinstance(found, tuple) else (found,):
                hold(self.classes, v)

    # ------------------------------------------------------------------ afterwards

    def _untie_shared_memory(self) -> None:
        """Parameters that share memory without being the same are kept whole."""
        owners: dict[int, list[Leaf]] = {}
        for leaf in self.leaves.values():
            owners.setdefault(leaf.tensor.untyped_storage().data_ptr(), []).append(leaf)
        for leaves in owners.values():
            if len(leaves) > 1 and leaves[0].tensor.numel():
                for leaf in leaves:
                    for ids in leaf.ids:
                        if ids is not None:
                            self.classes.hold(ids)
                self.reasons.append(f"{leaves[0].name} shares its memory with {leaves[1].name}")

    def _make_rectangular(self) -> None:
        """Of a factor over several dimensions only one can be cut: that of the most classes."""
        grids = [
            f
            for value in self.values.values()
            for v in (value if isinstance(value, tuple) else (value,))
            for f in v.factors
            if sum(n > 1 for n in f.shape) > 1
        ]
        for grid in grids:
            roots = self.classes.roots()
            left = roots[grid]
            over = [d for d, n in enumerate(grid.shape) if n > 1
                    and not bool((left == left.narrow(d, 0, 1)).all())]  # fmt: skip
            if len(over) < 2:
                continue
            best = max(over, key=lambda d: grid.shape[d])
            first = grid
            for d in over:
                if d != best:
                    first = first.narrow(d, 0, 1)
            self.classes.tie(grid, first)


def _is_cut(node: fx.Node, tensor: Tensor) -> bool:
    """Parameters are, and of the buffers the statistics of a BatchNorm."""
    if isinstance(tensor, nn.Parameter):
        return tensor.is_floating_point()
    return any("batch_norm" in operator_name(user) for user in node.users)


def _plain(value: Any) -> Any:
    """A number that the graph computes, as it was for the example."""
    if isinstance(value, fx.Node):
        found = value.meta.get("val")
        if isinstance(found, torch.SymInt | torch.SymFloat | torch.SymBool | int | float | bool):
            return int(found) if isinstance(found, torch.SymInt) else found
        return value
    if isinstance(value, list | tuple):
        return (
            type(value)(map(_plain, value))
            if type(value) in (list, tuple)
            else [*map(_plain, value)]
        )
    return value


def _place(node: fx.Node) -> str:
    """The module in whose code a call stands."""
    stack = node.meta.get("nn_module_stack") or {}
    name = str([*stack.values()][-1][0]) if stack else ""
    return name or node.name

"""The register of operators: by name, how a value comes out of one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import fx

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from .classes import Classes
    from .steps import Step
    from .values import Value

Found = "Value | tuple[Value, ...] | None"
"""What a rule gives; ``None`` if it does not know this use of its operator."""


class Run(Protocol):
    """What rules may ask of the analysis."""

    classes: Classes
    constants: bool
    steps: dict[fx.Node, Step]
    scattered: dict[str, int]

    def value(self, node: object) -> Value:
        """What is known of an argument."""
        ...

    def argument(self, node: fx.Node, position: int, name: str, default: Any = None) -> Any:
        """An argument of a call: a node, or a plain value."""
        ...

    def shape(self, node: fx.Node) -> tuple[int, ...]:
        """Of a node's result."""
        ...

    def call(self, node: fx.Node, replaced: dict[fx.Node, Tensor]) -> Any:
        """What an operator makes of other tensors in place of its arguments."""
        ...


Rule = "Callable[[Run, fx.Node], Value | tuple[Value, ...] | None]"
RULES: dict[str, Any] = {}


def rule(*names: str) -> Callable[[Any], Any]:
    """Register a function for operators by name."""

    def register(function: Any) -> Any:
        RULES.update(dict.fromkeys(names, function))
        return function

    return register


def operator_name(node: fx.Node) -> str:
    """``conv2d`` of ``aten.conv2d.default``; of other calls the function's own name."""
    if isinstance(node.target, torch._ops.OpOverload):
        return node.target._schema.name.rpartition("::")[2]
    return str(getattr(node.target, "__name__", node.target))

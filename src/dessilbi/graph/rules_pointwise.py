"""Operators that work value by value: activations, sums, products, and what passes values on."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import fx

from .errors import CompactError
from .rules import operator_name, rule
from .steps import Join
from .values import Value, along, axis, broadcast, merged, settled, uniform

if TYPE_CHECKING:
    from torch import Tensor

    from .rules import Run

_UNARY = (
    "relu", "relu6", "leaky_relu", "elu", "selu", "celu", "gelu", "silu", "mish", "sigmoid",
    "tanh", "hardswish", "hardsigmoid", "hardtanh", "softplus", "softsign", "log_sigmoid",
    "hardshrink", "softshrink", "threshold", "abs", "neg", "square", "sqrt", "rsqrt", "exp", "log",
    "clamp", "clamp_min", "clamp_max", "erf", "sin", "cos", "reciprocal", "sign", "tanhshrink",
)  # fmt: skip
_BINARY = ("add", "sub", "rsub", "mul", "div", "pow", "maximum", "minimum")
_UNKNOWN_VALUES = (
    "where", "eq", "ne", "lt", "le", "gt", "ge", "logical_not", "logical_and", "logical_or",
    "__and__", "__or__", "bitwise_not", "bitwise_and", "masked_fill", "isnan", "nan_to_num",
    "floor", "round",
)  # fmt: skip
_SAME = (
    "clone", "contiguous", "alias", "detach", "to", "type_as", "_to_copy", "lift_fresh_copy",
    "_assert_tensor_metadata",
)  # fmt: skip
_DROPOUTS = ("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout")


@rule(*_SAME)
def same(run: Run, node: fx.Node) -> Value:
    """The same values, maybe in another precision or memory format."""
    x = run.value(node.args[0])
    return replace(x, leaf=None, numeric=None, constant=x.known() if run.constants else None)


@rule(*_DROPOUTS)
def dropout(run: Run, node: fx.Node) -> Value:
    """Nothing, as the network is read in evaluation mode."""
    if run.argument(node, 2, "train", False):
        raise CompactError(
            f"{node.name} drops values at random also in evaluation, so there is no one "
            "function to keep; pass training=self.training"
        )
    return same(run, node)  # type: ignore[no-any-return]


@rule(*_UNARY, *_BINARY, *_UNKNOWN_VALUES)
def pointwise(run: Run, node: fx.Node) -> Value:
    """Positions meet by broadcasting and are tied."""
    shape = run.shape(node)
    inputs = [run.value(a) for a in node.all_input_nodes]
    if node.name in run.scattered and len(inputs) == 2:
        return _scattered(run, node, inputs)
    factors = merged(run.classes, inputs, shape)
    name = operator_name(node).rstrip("_")
    constant = None
    if run.constants and name not in _UNKNOWN_VALUES:
        constant = _constants(run, node, name, [x.known() for x in inputs])
    result = Value(shape, factors, settled(constant, factors, shape))
    if len(inputs) == 2 and name in ("add", "sub", "mul", "div"):
        run.steps[node] = Join(node, name, (inputs[0], inputs[1]), result)
    return result


def _constants(run: Run, node: fx.Node, name: str, known: list[Tensor | None]) -> Tensor | None:
    if all(k is None for k in known):
        return None
    nothing = torch.tensor(torch.nan, dtype=torch.float64)
    given = [nothing if k is None else k for k in known]
    with_nodes = dict(zip(node.all_input_nodes, given, strict=True))
    result = run.call(node, with_nodes)
    if not isinstance(result, torch.Tensor) or not result.is_floating_point():
        return None
    shape = broadcast(*[k.shape for k in given])
    varies = torch.stack([k.isnan().expand(shape) for k in given]).any(0)
    result = torch.where(varies, torch.nan, result)
    if name == "mul" and len(given) == 2:  # nothing times anything
        result = torch.where((given[0] == 0) | (given[1] == 0), 0.0, result)
    return result


def _scattered(run: Run, node: fx.Node, inputs: list[Value]) -> Value:
    """A sum one side of which computes only some channels: the sides are not tied."""
    side = run.scattered[node.name]
    lead = inputs[1 - side]
    constant = _constants(run, node, "add", [x.known() for x in inputs])
    result = Value(lead.shape, lead.factors, settled(constant, lead.factors, lead.shape))
    run.steps[node] = Join(node, "add", (inputs[0], inputs[1]), result, scattered=side)
    return result


@rule("prelu", "_prelu_kernel")
def prelu(run: Run, node: fx.Node) -> Value:
    """A slope by channel, or one for all."""
    x, slope = run.value(node.args[0]), run.value(node.args[1])
    numbers = slope.known() if run.constants else None
    if slope.ndim == 1 and slope.shape[0] > 1:
        ids = axis(run.classes, slope, 0)
        slope = Value((1, len(ids)) + (1,) * (x.ndim - 2), (along(ids, x.ndim, 1),))
        numbers = None if numbers is None else numbers.reshape(slope.shape)
    else:
        slope = Value(())
        numbers = None if numbers is None else numbers.reshape(())
    factors = merged(run.classes, [x, slope], x.shape)
    constant = x.known() if run.constants else None
    if constant is not None and numbers is not None:
        constant = torch.where(constant >= 0, constant, numbers * constant)
        constant = settled(constant, factors, x.shape)
    return Value(x.shape, factors, constant)


@rule("softmax", "_softmax", "log_softmax", "_safe_softmax")
def softmax(run: Run, node: fx.Node) -> Value:
    """Along a dimension that is not cut."""
    x = run.value(node.args[0])
    dim = int(run.argument(node, 1, "dim"))
    x = uniform(run.classes, replace(x, constant=None), [dim])
    last = dim % x.ndim == x.ndim - 1 and not operator_name(node).startswith("log")
    return Value(x.shape, x.factors, sums_to_one=last)


@rule("glu")
def glu(run: Run, node: fx.Node) -> Value:
    """Half of the channels, gated by the other half."""
    x = run.value(node.args[0])
    dim = int(run.argument(node, 1, "dim", -1)) % x.ndim
    half = x.shape[dim] // 2
    shape = run.shape(node)
    sides = [
        Value(shape, tuple(f.narrow(dim, start, half) if f.shape[dim] > 1 else f
                           for f in x.factors))
        for start in (0, half)
    ]  # fmt: skip
    factors = merged(run.classes, sides, shape)
    known = x.known() if run.constants else None
    if known is not None:
        known = known.expand(x.shape) if known.shape[dim] == 1 else known
        value, gate = known.narrow(dim, 0, half), known.narrow(dim, half, half)
        known = torch.where(value == 0, 0.0, value * gate.sigmoid())
    return Value(shape, factors, settled(known, factors, shape))

"""Operators with weights, which read channels and write new ones, and products of two tensors."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from .matrix import GroupedConvolution, Matrix, Weights
from .rules import operator_name, rule
from .values import Value, along, axis, broadcast, merged, settled, uniform

if TYPE_CHECKING:
    from torch import Tensor

    from .rules import Run


@rule("linear")
def linear(run: Run, node: fx.Node) -> Value | None:
    """``x @ W.T + b``."""
    x, weight = run.value(node.args[0]), run.value(node.args[1])
    bias = run.argument(node, 2, "bias")
    return _matrix(run, node, x, weight, 1, 0, None if bias is None else run.value(bias))


@rule("addmm")
def addmm(run: Run, node: fx.Node) -> Value | None:
    """``b + x @ W``, the layer of GPT-2."""
    bias, x, weight = (run.value(a) for a in node.args[:3])
    if node.kwargs or x.fixed or not weight.fixed or bias.ndim != 1:
        return None
    return _matrix(run, node, x, weight, 0, 1, bias, plain=False)


@rule("matmul", "mm", "bmm")
def matmul(run: Run, node: fx.Node) -> Value | None:
    """A product with a parameter, or of two tensors that depend on the input."""
    a, b = run.value(node.args[0]), run.value(node.args[1])
    if a.ndim < 2 or b.ndim < 2:
        return None
    if b.fixed and b.ndim == 2 and not a.fixed:
        return _matrix(run, node, a, b, 0, 1, None, plain=False)
    if a.fixed or b.fixed:
        a, b = (replace(v, constant=None, numeric=None) for v in (a, b))
    return product(run, run.shape(node), a, b)


def product(run: Run, shape: tuple[int, ...], a: Value, b: Value) -> Value:
    """``a @ b``; what is summed over is not cut."""
    a, b = uniform(run.classes, a, [-1]), uniform(run.classes, b, [-2])
    left = replace(a, shape=(*a.shape[:-1], 1))
    right = replace(b, shape=(*b.shape[:-2], 1, b.shape[-1]))
    factors = merged(run.classes, [left, right], shape)
    constant = b.constant
    if constant is not None and not a.sums_to_one:
        constant = torch.where(constant == 0, constant, torch.nan)
    return Value(shape, factors, settled(constant, factors, shape))


@rule("scaled_dot_product_attention")
def attention(run: Run, node: fx.Node) -> Value | None:
    """Heads are what is cut; constant values stay what they are, as weights sum to one."""
    q, k, v = (run.value(a) for a in node.args[:3])
    mask = run.argument(node, 3, "attn_mask")
    if run.argument(node, 4, "dropout_p", 0.0) or q.ndim < 3:
        return None
    if run.argument(node, 7, "enable_gqa", False):
        k, v = (_repeated(x, q.shape[-3] // x.shape[-3]) for x in (k, v))
    shape = run.shape(node)
    given = [uniform(run.classes, x, [-1, -2]) for x in (q, k)]
    given = [replace(x, shape=(*x.shape[:-2], 1, 1)) for x in given]
    v = uniform(run.classes, v, [-2])
    if mask is not None:
        m = uniform(run.classes, run.value(mask), [-1, -2])
        if m.ndim >= 2:
            given.append(replace(m, shape=(*m.shape[:-2], 1, 1)))
    value = replace(v, shape=(*v.shape[:-2], 1, v.shape[-1]))
    factors = merged(run.classes, [*given, value], shape)
    return Value(shape, factors, settled(v.constant, factors, shape))


def _repeated(x: Value, times: int) -> Value:
    """Key-value heads as often as they have queries."""
    dim = x.ndim - 3

    def by(tensor: Tensor) -> Tensor:
        return tensor.repeat_interleave(times, dim) if tensor.shape[dim] > 1 else tensor

    return Value(
        tuple(n * times if d == dim else n for d, n in enumerate(x.shape)),
        tuple(map(by, x.factors)),
        None if x.constant is None else by(x.constant),
    )


def _matrix(
    run: Run,
    node: fx.Node,
    x: Value,
    weight: Value,
    columns: int,
    rows: int,
    bias: Value | None,
    *,
    plain: bool = True,
) -> Value | None:
    """A linear layer; dimensions ``columns`` and ``rows`` of its weight."""
    if not weight.fixed or weight.ndim != 2 or x.ndim < 1:
        return None
    shape = run.shape(node)
    read, written = (axis(run.classes, weight, d) for d in (columns, rows))
    inputs, known = _read(run, x, x.ndim - 1)
    run.classes.tie(inputs, read)
    weights = None
    if run.constants:
        assert weight.numeric is not None
        matrix = _double(weight.numeric())
        weights = Weights(matrix if columns == 1 else matrix.T, _bias(bias, len(written)))
    step = Matrix(node, inputs, written, known, weights, weight.leaf, columns, rows)
    return _finished(run, step, x, x.ndim - 1, shape, bias, addable=plain)


def _read(run: Run, x: Value, dim: int) -> tuple[Tensor, Tensor | None]:
    """The channels that a layer reads, and their constants."""
    inputs = axis(run.classes, x, dim)
    known = None
    if run.constants and (constant := x.known()) is not None:
        constant = constant.expand(broadcast(constant.shape, (1,) * x.ndim))
        flat = constant.movedim(dim, 0).reshape(constant.shape[dim], -1)
        same = ((flat == flat[:, :1]) & flat.isfinite()).all(1)
        known = torch.where(same, flat[:, 0], torch.nan).expand(x.shape[dim])
    return inputs, known


def _finished(
    run: Run,
    step: Matrix,
    x: Value,
    dim: int,
    shape: tuple[int, ...],
    bias: Value | None,
    *,
    addable: bool,
) -> Value:
    if bias is not None and len(step.written) > 1:
        run.classes.tie(axis(run.classes, bias, 0), step.written)
    step.bias = None if bias is None else bias.leaf
    step.bias_fixed = (bias is None and addable) or (bias is not None and bias.leaf is not None)
    passed = [f for f in x.factors if f.shape[dim] == 1]
    out = along(step.written, len(shape), dim if dim != x.ndim - 1 else len(shape) - 1)
    factors = (*passed, out) if len(step.written) > 1 else tuple(passed)
    if len(step.written) <= 1:
        run.classes.hold(step.written)
    constant = None
    if step.weights is not None:
        constant = step.constants().reshape(out.shape)
    run.steps[step.node] = step
    step.output = Value(shape, factors, settled(constant, factors, shape))
    return step.output


@rule("conv1d", "conv2d", "conv3d", "convolution", "conv_transpose1d", "conv_transpose2d",
      "conv_transpose3d")  # fmt: skip
def convolution(run: Run, node: fx.Node) -> Value | None:
    """Ungrouped, depthwise or in groups, transposed or not."""
    x, weight = run.value(node.args[0]), run.value(node.args[1])
    name = operator_name(node)
    if name == "convolution" or not weight.fixed or x.ndim != weight.ndim:
        return None
    back = name.startswith("conv_transpose")
    groups = int(run.argument(node, 6, "groups", 1))
    weight = uniform(run.classes, weight, range(2, weight.ndim))
    found = run.argument(node, 2, "bias")
    bias = None if found is None else run.value(found)
    shape = run.shape(node)
    x = uniform(run.classes, x, range(2, x.ndim))
    padded = back or _pads(run, node, weight.shape[2:])
    rows, columns = (1, 0) if back else (0, 1)
    weights = None
    if run.constants:
        assert weight.numeric is not None
        matrix = _double(weight.numeric())
        if back and groups == 1:
            matrix = matrix.transpose(0, 1)
        weights = Weights(matrix, _bias(bias, shape[1]), groups, padded, back and groups > 1)
    inputs, known = _read(run, x, 1)
    if groups == 1:
        read, written = (axis(run.classes, weight, d) for d in (columns, rows))
        run.classes.tie(inputs, read)
        step = Matrix(node, inputs, written, known, weights, weight.leaf, columns, rows)
        return _finished(run, step, x, 1, shape, bias, addable=True)
    run.classes.hold(axis(run.classes, weight, 1))  # positions in each group
    if groups == x.shape[1]:  # depthwise, maybe several filters a channel
        times = shape[1] // groups
        if back and times > 1:
            return None
        written = axis(run.classes, weight, 0)
        run.classes.tie(inputs.repeat_interleave(times), written)
        if times > 1:
            per = written.view(groups, times)
            run.classes.tie(per, per[:, :1])
        step = GroupedConvolution(node, inputs, written, known, weights, weight.leaf, 1, 0)
        return _finished(run, step, x, 1, shape, bias, addable=True)
    if back:
        return None
    written = axis(run.classes, weight, 0)
    step = GroupedConvolution(node, inputs, written, known, weights, weight.leaf, 1, 0)
    if not run.constants:  # a group leaves as a whole
        for ids in (inputs.view(groups, -1), written.view(groups, -1)):
            run.classes.tie(ids, ids[:, :1])
        run.classes.tie(inputs.view(groups, -1)[:, 0], written.view(groups, -1)[:, 0])
    return _finished(run, step, x, 1, shape, bias, addable=True)


def _pads(run: Run, node: fx.Node, kernel: tuple[int, ...]) -> bool:
    padding: Any = run.argument(node, 4, "padding", 0)
    if isinstance(padding, str):
        return padding == "same" and any(k > 1 for k in kernel)
    return any(padding) if isinstance(padding, list | tuple) else bool(padding)


def _double(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().double()


def _bias(bias: Value | None, size: int) -> Tensor | None:
    if bias is None:
        return None
    assert bias.numeric is not None
    return _double(bias.numeric())

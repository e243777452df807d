"""Operators that mix positions: normalisations, means, pooling, resizing."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from .rules import operator_name, rule
from .steps import Norm
from .values import Value, along, axis, broadcast, hold, merged, settled, uniform

if TYPE_CHECKING:
    from torch import Tensor

    from .rules import Run


@rule("batch_norm", "instance_norm")
def batch_norm(run: Run, node: fx.Node) -> Value | None:
    """Channel by channel; the statistics are the layer's or, without, the batch's."""
    x = run.value(node.args[0])
    if x.ndim < 2:
        return None
    given = [run.argument(node, i, name) for i, name in
             enumerate(("weight", "bias", "running_mean", "running_var"), 1)]  # fmt: skip
    params = [None if a is None else run.value(a) for a in given]
    own_statistics = operator_name(node) == "batch_norm" and not run.argument(node, 5, "training")
    if not own_statistics:
        over = [d for d in range(x.ndim) if d != 1]
        x = replace(uniform(run.classes, x, over), constant=None)
    channels = x.shape[1]
    sides = [
        Value((1, channels) + (1,) * (x.ndim - 2), (along(axis(run.classes, p, 0), x.ndim, 1),))
        for p in params
        if p is not None and channels > 1
    ]
    factors = merged(run.classes, [x, *sides], x.shape)
    constant = None
    if run.constants and own_statistics:
        constant = _normalised(run, node, x, params)
    result = Value(x.shape, factors, settled(constant, factors, x.shape))
    if own_statistics and channels > 1:
        step = Norm(node, axis(run.classes, result, 1), [p.leaf if p else None for p in params])
        if result.constant is not None:
            step.constant = result.constant.expand(
                *[channels if d == 1 else n for d, n in enumerate(result.constant.shape)]
            )
            flat = step.constant.movedim(1, 0).reshape(channels, -1)
            step.constant = torch.where((flat == flat[:, :1]).all(1), flat[:, 0], torch.nan)
        run.steps[node] = step
    return result


def _normalised(run: Run, node: fx.Node, x: Value, params: list[Value | None]) -> Tensor | None:
    shape = (1, x.shape[1]) + (1,) * (x.ndim - 2)
    weight, bias, mean, var = (
        None if p is None or p.numeric is None else _double(p).reshape(shape) for p in params
    )
    known = x.known()
    if mean is None or var is None:
        return None
    if known is None:
        known = torch.full(shape, torch.nan, dtype=torch.float64)
    found = (known - mean) / torch.sqrt(var + float(run.argument(node, 7, "eps")))
    if weight is not None:
        shift = torch.zeros_like(weight) if bias is None else bias
        # A scale of zero makes a constant of anything.
        found = torch.where(weight == 0, shift, found * weight + shift)
    return found


@rule("layer_norm", "rms_norm")
def layer_norm(run: Run, node: fx.Node) -> Value:
    """Over dimensions that are not cut."""
    x = run.value(node.args[0])
    over: Any = node.args[1]
    dims = range(x.ndim - len(over), x.ndim)
    for position in (2, 3):
        p = node.args[position] if position < len(node.args) else None
        if isinstance(p, fx.Node):
            hold(run.classes, run.value(p))
    return Value(x.shape, uniform(run.classes, replace(x, constant=None), dims).factors)


@rule("group_norm")
def group_norm(run: Run, node: fx.Node) -> Value | None:
    """Over groups of channels, which leave as a whole."""
    x = uniform(run.classes, replace(run.value(node.args[0]), constant=None),
                range(2, run.value(node.args[0]).ndim))  # fmt: skip
    groups = int(run.argument(node, 1, "num_groups"))
    ids = axis(run.classes, x, 1)
    for position, name in ((2, "weight"), (3, "bias")):
        p = run.argument(node, position, name)
        if p is not None:
            run.classes.tie(axis(run.classes, run.value(p), 0), ids)
    per = ids.view(groups, -1)
    run.classes.tie(per, per[:, :1])
    if groups == 1:
        run.classes.hold(ids)
    passed = tuple(f for f in x.factors if f.shape[1] == 1)
    return Value(x.shape, (*passed, along(ids, x.ndim, 1)))


@rule("mean", "sum", "amax", "amin", "var", "std", "linalg_vector_norm", "norm", "logsumexp",
      "prod", "var_mean", "all", "any")  # fmt: skip
def reduction(run: Run, node: fx.Node) -> Value | None:
    """Over dimensions that are not cut."""
    x, name = run.value(node.args[0]), operator_name(node)
    if isinstance(node.meta["val"], list | tuple):
        return None
    at = {"linalg_vector_norm": 2, "norm": 2}.get(name, 1)
    dims: Any = run.argument(node, at, "dim", None)
    dims = [dims] if isinstance(dims, int) else list(dims or range(x.ndim))
    if not all(isinstance(d, int) for d in dims):
        return None
    dims = sorted(d % x.ndim for d in dims)
    shape = run.shape(node)
    x = replace(x, constant=x.known() if run.constants else None)
    x = uniform(run.classes, x, dims)
    keep = len(shape) == x.ndim

    def by(tensor: Tensor) -> Tensor:
        return tensor if keep else tensor.squeeze(dims)

    constant = x.constant
    if constant is not None:
        constant = constant.expand(broadcast(constant.shape, (1,) * x.ndim))
        if name == "sum":
            constant = constant * math.prod(x.shape[d] for d in dims)
        elif name not in ("mean", "amax", "amin"):
            constant = None
    factors = tuple(by(f) for f in x.factors)
    return Value(
        shape, factors, None if constant is None else settled(by(constant), factors, shape)
    )


_SPREADING = ("max_pool", "adaptive_avg_pool", "adaptive_max_pool", "upsample_")


@rule(
    *(f"{kind}{d}d" for d in (1, 2, 3) for kind in ("max_pool", "avg_pool", "adaptive_avg_pool")),
    *(f"adaptive_max_pool{d}d" for d in (1, 2, 3)),
    *(f"max_pool{d}d_with_indices" for d in (1, 2, 3)),
    "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "upsample_bilinear2d",
    "upsample_bicubic2d", "upsample_trilinear3d", "upsample_linear1d", "_upsample_nearest_exact2d",
    "reflection_pad1d", "reflection_pad2d", "reflection_pad3d", "replication_pad1d",
    "replication_pad2d", "replication_pad3d", "grid_sampler", "grid_sampler_2d",
    "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa",
)  # fmt: skip
def spatial(run: Run, node: fx.Node) -> Value | tuple[Value, ...]:
    """On the positions of each channel alone."""
    x, name = run.value(node.args[0]), operator_name(node)
    dims = int(next((c for c in name if c in "123"), "2"))
    x = replace(x, constant=x.known() if run.constants else None)
    x = uniform(run.classes, x, range(x.ndim - dims, x.ndim))
    constant = x.constant
    if constant is not None:
        border = _border(run, node, name)
        if not math.isnan(border):
            constant = torch.where(constant == border, constant, torch.nan)
    result = node.meta["val"]
    if isinstance(result, list | tuple):
        made = [Value(tuple(int(n) for n in one.shape), x.factors) for one in result]
        made[0] = replace(made[0], constant=settled(constant, x.factors, made[0].shape))
        return tuple(made)
    shape = run.shape(node)
    return Value(shape, x.factors, settled(constant, x.factors, shape))


def _border(run: Run, node: fx.Node, name: str) -> float:
    """The value that is mixed in at the borders; NaN if any constant stays."""
    if name.startswith("grid_sampler"):
        return 0.0
    if not name.startswith("avg_pool"):
        return math.nan
    if run.argument(node, 6, "divisor_override", None) is not None:
        return 0.0
    padding: Any = run.argument(node, 3, "padding", 0)
    padded = any(padding) if isinstance(padding, list | tuple) else bool(padding)
    return 0.0 if padded and run.argument(node, 5, "count_include_pad", True) else math.nan


def _double(value: Value) -> Tensor:
    assert value.numeric is not None
    return value.numeric().detach().cpu().double()

"""Operators that move values about, and the numbers of their positions alike."""

from __future__ import annotations

import math
import operator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from .rules import operator_name, rule
from .values import Value, along, axis, broadcast, collapsed, merged, settled, support, uniform

if TYPE_CHECKING:
    from torch import Tensor

    from .rules import Run

_LARGEST = 2**27
"""Values of a tensor beyond which it is not looked into."""


@rule(
    "view", "reshape", "_unsafe_view", "flatten", "unflatten", "transpose", "permute", "t", "mT",
    "movedim", "unsqueeze", "squeeze", "expand", "slice", "select", "narrow", "split",
    "split_with_sizes", "chunk", "tensor_split", "unbind", "repeat", "flip", "diagonal",
    "repeat_interleave", "view_as", "expand_as", "numpy_T", "unfold", "swapaxes", "swapdims",
    "channel_shuffle", "unsafe_split", "unsafe_chunk",
)  # fmt: skip
def moved(run: Run, node: fx.Node) -> Value | tuple[Value, ...] | None:
    """Done to the numbers as it is done to the values."""
    x = run.value(node.args[0])
    known = x.known() if run.constants else None
    if not x.factors and known is None:
        return _plain(run, node, x)
    if math.prod(x.shape) > _LARGEST:
        return None
    if operator_name(node) == "channel_shuffle":  # every group keeps as many
        groups = axis(run.classes, x, 1).view(int(run.argument(node, 1, "groups")), -1)
        run.classes.tie(groups, groups[:1])
    source = node.args[0]
    assert isinstance(source, fx.Node)

    def by(tensor: Tensor) -> list[Tensor]:
        whole = tensor.expand(x.shape)
        whole = whole.contiguous() if "view" in operator_name(node) else whole
        found = run.call(node, {source: whole})
        return list(found) if isinstance(found, list | tuple) else [found]

    factors = [[collapsed(part) for part in by(f)] for f in x.factors]
    parts = len(factors[0]) if factors else 0
    constants = by(known) if known is not None else []
    parts = parts or len(constants)
    if not parts:
        return _plain(run, node, x)
    several = isinstance(node.meta["val"], list | tuple)
    shapes = _shapes(run, node)
    found = []
    for i in range(parts):
        mine = []
        for factor in factors:
            if support(factor[i]):
                mine.append(factor[i])
            else:
                run.classes.hold(factor[i])
        constant = settled(constants[i], mine, shapes[i]) if constants else None
        keeps_last = x.sums_to_one and shapes[i][-1:] == x.shape[-1:]
        found.append(Value(shapes[i], tuple(mine), constant, sums_to_one=keeps_last))
    return tuple(found) if several else found[0]


def _plain(run: Run, node: fx.Node, x: Value) -> Value | tuple[Value, ...]:
    made = [
        Value(s, sums_to_one=x.sums_to_one and s[-1:] == x.shape[-1:]) for s in _shapes(run, node)
    ]
    return tuple(made) if isinstance(node.meta["val"], list | tuple) else made[0]


def _shapes(run: Run, node: fx.Node) -> list[tuple[int, ...]]:
    result = node.meta["val"]
    several = result if isinstance(result, list | tuple) else [result]
    return [tuple(int(n) for n in one.shape) for one in several]


@rule("getitem")
def getitem(run: Run, node: fx.Node) -> Value | None:
    """One of several results."""
    several, index = run.value(node.args[0]), node.args[1]
    if isinstance(several, tuple) and isinstance(index, int) and node.target is operator.getitem:
        found = several[index]
        return found if isinstance(found, Value) else None
    return None


@rule("cat", "concat", "concatenate", "stack")
def cat(run: Run, node: fx.Node) -> Value | None:
    """One after another."""
    nodes = node.args[0]
    if not isinstance(nodes, list | tuple):
        return None
    shape = run.shape(node)
    dim = int(run.argument(node, 1, "dim", 0)) % len(shape)
    parts = [run.value(one) for one in nodes]
    if operator_name(node) == "stack":
        parts = [_unsqueezed(part, dim) for part in parts]
    parts = [part for part in parts if part.ndim == len(shape)]  # torch skips empty ones
    if not all(any(f.shape[dim] > 1 for f in part.factors) for part in parts):
        # What is cut along other dimensions as well is not cut along this one.
        parts = [
            uniform(run.classes, part, [dim])
            if any(len(support(f)) > 1 and dim in support(f) for f in part.factors)
            else part
            for part in parts
        ]
    if any(f.shape[dim] > 1 for part in parts for f in part.factors):
        joined = [_along(run, part, dim) for part in parts]
        over = broadcast(*[tuple(1 if d == dim else n for d, n in enumerate(j.shape))
                                        for j in joined])  # fmt: skip
        grids = [j.expand(*[j.shape[d] if d == dim else n for d, n in enumerate(over)])
                 for j in joined]  # fmt: skip
        mine = [collapsed(torch.cat(grids, dim))]
    else:
        mine = []
    others = [
        replace(p, shape=tuple(n if d != dim else 1 for d, n in enumerate(p.shape)),
                factors=tuple(f for f in p.factors if f.shape[dim] == 1))
        for p in parts
    ]  # fmt: skip
    factors = (*mine, *_apart(run, merged(run.classes, others, tuple(
        n if d != dim else 1 for d, n in enumerate(shape))), mine))  # fmt: skip
    known = [p.known() if run.constants else None for p in parts]
    constant = None
    if any(k is not None for k in known):
        whole = [
            torch.full((1,) * len(shape), torch.nan, dtype=torch.float64) if k is None else k
            for k in known
        ]
        sized = broadcast(
            *[
                tuple(
                    1 if d == dim else n
                    for d, n in enumerate(k.expand(broadcast(k.shape, (1,) * len(shape))).shape)
                )
                for k in whole
            ]
        )
        constant = torch.cat(
            [
                k.expand(*[p.shape[dim] if d == dim else n for d, n in enumerate(sized)])
                for k, p in zip(whole, parts, strict=True)
            ],
            dim,
        )
    return Value(shape, factors, settled(constant, factors, shape))


def _unsqueezed(value: Value, dim: int) -> Value:
    constant = value.known()
    if constant is not None:
        constant = constant.expand(broadcast(constant.shape, (1,) * value.ndim))
        constant = constant.unsqueeze(dim)
    return Value(
        (*value.shape[:dim], 1, *value.shape[dim:]),
        tuple(f.unsqueeze(dim) for f in value.factors),
        constant,
    )


def _along(run: Run, part: Value, dim: int) -> Tensor:
    """The one factor over a dimension, of full size there."""
    mine = [f for f in part.factors if f.shape[dim] > 1]
    if len(mine) == 1:
        return mine[0]
    return along(axis(run.classes, part, dim), part.ndim, dim)


def _apart(run: Run, others: tuple[Tensor, ...], mine: list[Tensor]) -> list[Tensor]:
    """Factors that do not overlap the one that is joined; those that do are tied to it."""
    found = []
    for factor in others:
        if mine and support(factor) & support(mine[0]):
            run.classes.hold(factor)
            run.classes.hold(mine[0])
        else:
            found.append(factor)
    return found


@rule("pad", "constant_pad_nd")
def pad(run: Run, node: fx.Node) -> Value | None:
    """New positions around those that are there."""
    x = run.value(node.args[0])
    amounts: Any = run.argument(node, 1, "pad")
    mode = run.argument(node, 2, "mode", "constant") if operator_name(node) == "pad" else "constant"
    fill = run.argument(node, 3 if operator_name(node) == "pad" else 2, "value", None) or 0.0
    if not all(isinstance(n, int) for n in amounts):
        return None
    padded = {x.ndim - 1 - i // 2 for i, n in enumerate(amounts) if n}
    shape = run.shape(node)
    touched = padded & set().union(*map(support, x.factors)) if x.factors else set()
    known = x.known() if run.constants else None
    if mode != "constant" or any(n < 0 for n in amounts):
        x = uniform(run.classes, x, padded)
        return Value(shape, x.factors, x.constant if mode != "constant" else None)
    factors = []
    for factor in x.factors:
        grid = factor
        for d in sorted(touched & support(factor)):
            before, after = amounts[2 * (x.ndim - 1 - d)], amounts[2 * (x.ndim - 1 - d) + 1]
            sides = []
            for n in (before, after):
                new = along(run.classes.new(n), x.ndim, d) if n else None
                sides.append(new)
            body = [
                side.expand(*[n if d == e else grid.shape[e] for e, n in enumerate(side.shape)])
                if side is not None
                else None
                for side in sides
            ]
            grid = torch.cat([g for g in (body[0], grid, body[1]) if g is not None], d)
        factors.append(grid)
    constant = None
    if known is not None:
        constant = known.expand(broadcast(known.shape, (1,) * x.ndim))
        if padded - touched:  # it ends at the border
            constant = torch.where(constant == fill, constant, torch.nan)
        for d in sorted(touched):
            before, after = amounts[2 * (x.ndim - 1 - d)], amounts[2 * (x.ndim - 1 - d) + 1]
            if constant.shape[d] == 1:
                size = [x.shape[d] if e == d else n for e, n in enumerate(constant.shape)]
                constant = constant.expand(size)
            where = [0] * (2 * x.ndim)
            where[2 * (x.ndim - 1 - d)], where[2 * (x.ndim - 1 - d) + 1] = before, after
            constant = torch.nn.functional.pad(constant, where, value=float(fill))
    return Value(shape, tuple(factors), settled(constant, factors, shape))


@rule("roll")
def roll(run: Run, node: fx.Node) -> Value:
    """Along dimensions that are not cut."""
    x = run.value(node.args[0])
    dims = run.argument(node, 2, "dims", None) or list(range(x.ndim))
    return replace(uniform(run.classes, x, dims), leaf=None, numeric=None)


@rule("index", "index_select")
def index(run: Run, node: fx.Node) -> Value | None:
    """Positions picked by number, along dimensions that are not cut."""
    x, source = run.value(node.args[0]), node.args[0]
    assert isinstance(source, fx.Node)
    if operator_name(node) == "index":
        picked: Any = node.args[1]
        if any(isinstance(p, fx.Node) and p.meta["val"].dtype == torch.bool for p in picked):
            return None
        dims = [d for d, p in enumerate(picked) if p is not None]
        numbers = [p for p in picked if p is not None]
    else:
        dims, numbers = [int(run.argument(node, 1, "dim"))], [run.argument(node, 2, "index")]
    x = uniform(run.classes, x, dims)
    shape = run.shape(node)
    zeros = {n: torch.zeros(run.shape(n), dtype=torch.long) for n in numbers}

    def by(tensor: Tensor) -> Tensor:
        found: Tensor = run.call(node, {source: tensor.expand(x.shape), **zeros})
        return found

    factors = tuple(collapsed(by(f)) for f in x.factors)
    constant = None if x.constant is None else settled(by(x.constant), factors, shape)
    return Value(shape, factors, constant)


@rule("pixel_shuffle", "pixel_unshuffle")
def pixel_shuffle(run: Run, node: fx.Node) -> Value | None:
    """Channels as positions, or positions as channels."""
    x = run.value(node.args[0])
    shape = run.shape(node)
    if x.ndim != 4:
        return None
    x = uniform(run.classes, x, [0, 2, 3])
    ids = axis(run.classes, x, 1)
    known = x.constant
    flat = None if known is None else known.expand(1, x.shape[1], 1, 1).reshape(-1)
    times = int(run.argument(node, 1, "upscale_factor")) ** 2
    if operator_name(node) == "pixel_shuffle":
        blocks = ids.view(-1, times)
        run.classes.tie(blocks, blocks[:, :1])
        ids = blocks[:, 0]
        if flat is not None:
            rows = flat.view(-1, times)
            flat = torch.where((rows == rows[:, :1]).all(1), rows[:, 0], torch.nan)
    else:
        ids = ids.repeat_interleave(times)
        flat = None if flat is None else flat.repeat_interleave(times)
    factors = (along(ids, 4, 1),)
    constant = None if flat is None else settled(flat.view(1, -1, 1, 1), factors, shape)
    return Value(shape, factors, constant)


@rule("embedding")
def embedding(run: Run, node: fx.Node) -> Value:
    """Rows of a table, which is never cut along them."""
    table = uniform(run.classes, run.value(node.args[0]), [0])
    shape = run.shape(node)
    return Value(shape, tuple(along(f.reshape(-1), len(shape), -1) for f in table.factors))

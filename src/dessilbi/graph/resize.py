"""The numbers in a network's calls that change when channels leave it."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from .matrix import GroupedConvolution
from .plan import NodeCut
from .rules import operator_name
from .values import Value

if TYPE_CHECKING:
    from .analysis import Analysis
    from .classes import Kept


def left(kept: Kept, value: Value, dim: int) -> torch.Tensor | None:
    """Which slices of a dimension stay; ``None`` for all."""
    found = None
    for factor in value.factors:
        if factor.shape[dim] > 1:
            stays = kept.of(factor).movedim(dim, 0).reshape(factor.shape[dim], -1).any(1)
            found = stays if found is None else found & stays
    return None if found is None or bool(found.all()) else found


def sizes_left(kept: Kept, value: Value) -> list[int]:
    """The shape of what is left of a value."""
    stays = [left(kept, value, d) for d in range(value.ndim)]
    return [n if s is None else int(s.sum()) for n, s in zip(value.shape, stays, strict=True)]


def resized(analysis: Analysis, kept: Kept, node: fx.Node) -> NodeCut | None:
    """The numbers of one call that change; ``None`` if none does."""
    name = operator_name(node)
    result = analysis.values.get(node)
    source = analysis.value(node.args[0]) if node.args else None
    if name in ("view", "reshape", "_unsafe_view", "expand") and isinstance(result, Value):
        return _sizes(1, node.args[1], result, kept)
    if name == "unflatten" and isinstance(result, Value) and isinstance(source, Value):
        dim = int(_argument(node, 1)) % source.ndim
        given = _argument(node, 2)
        new = sizes_left(kept, result)[dim : dim + len(given)]
        old = result.shape[dim : dim + len(given)]
        return _entries(2, given, new, old)
    if name in ("split", "chunk", "split_with_sizes", "tensor_split", "unsafe_split",
                "unsafe_chunk") and isinstance(result, tuple):  # fmt: skip
        return _split(analysis, kept, node, result)
    if not isinstance(source, Value):
        return None
    if name in ("slice", "select", "narrow"):
        return _slice(analysis, kept, node, name, source)
    if name in ("pad", "constant_pad_nd") and isinstance(result, Value):
        return _pad(kept, node, result)
    if isinstance(step := analysis.steps.get(node), GroupedConvolution):
        groups = int(kept.of(step.inputs).view(step.groups, -1).any(1).sum())
        return _numbers(6, groups if groups != step.groups else None)
    if name == "group_norm" and (stays := left(kept, source, 1)) is not None:
        groups = int(stays.view(int(_argument(node, 1)), -1).any(1).sum())
        return _numbers(1, groups)
    return None


def _numbers(at: int, numbers: Any, operator: str = "") -> NodeCut | None:
    if numbers is None:
        return None
    return NodeCut("numbers", numbers={str(at): numbers}, operator=operator)


def _sizes(at: int, given: Any, result: Value, kept: Kept) -> NodeCut | None:
    """Sizes of a reshape, the new ones where something left."""
    return _entries(at, given, sizes_left(kept, result), list(result.shape))


def _entries(at: int, given: Any, new: Any, old: Any) -> NodeCut | None:
    changed = {
        f"{at}.{d}": _number(size, n, o)
        for d, (size, n, o) in enumerate(zip(given, new, old, strict=True))
        if n != o and not (isinstance(size, int) and size == -1)
    }
    return NodeCut("numbers", numbers=changed) if changed else None


def _number(size: Any, new: int, old: int) -> Any:
    """A size, or how many times the number of examples it is."""
    if not isinstance(size, fx.Node):
        return new
    factor = size.args[1] if size.target is operator.mul else 1
    assert isinstance(factor, int)
    return {"examples": new * factor // old}


def _split(
    analysis: Analysis, kept: Kept, node: fx.Node, parts: tuple[Value, ...]
) -> NodeCut | None:
    source = analysis.value(node.args[0])
    dim = int(analysis.argument(node, 2, "dim", 0)) % source.ndim
    new = [sizes_left(kept, part)[dim] for part in parts]
    if new == [part.shape[dim] for part in parts]:
        return None
    return _numbers(1, new, "split_with_sizes")


def _slice(
    analysis: Analysis, kept: Kept, node: fx.Node, name: str, source: Value
) -> NodeCut | None:
    dim = int(analysis.argument(node, 1, "dim", 0)) % source.ndim
    stays = left(kept, source, dim)
    if stays is None:
        return None
    size = source.shape[dim]

    def before(position: int) -> int:
        return int(stays[: max(min(position + size * (position < 0), size), 0)].sum())

    if name == "select":
        return _numbers(2, before(int(_argument(node, 2))))
    start = int(analysis.argument(node, 2, "start", 0) or 0)
    if name == "narrow":
        length = int(analysis.argument(node, 3, "length"))
        first = before(start)
        start += size * (start < 0)
        return NodeCut("numbers", numbers={"2": first, "3": before(start + length) - first})
    end = analysis.argument(node, 3, "end", None)
    end = size if end is None else int(end)
    step = int(analysis.argument(node, 4, "step", 1))
    if step == 1:
        return NodeCut("numbers", numbers={"2": before(start), "3": before(end)})
    chosen = torch.arange(size)[slice(start, end, step)]
    where = (stays.cumsum(0) - 1)[chosen[stays[chosen]]]
    return NodeCut("numbers", numbers={"1": dim, "2": where.tolist()}, operator="index_select")


def _pad(kept: Kept, node: fx.Node, result: Value) -> NodeCut | None:
    amounts: list[Any] = list(_argument(node, 1))
    changed = list(amounts)
    for i, n in enumerate(amounts):
        dim = result.ndim - 1 - i // 2
        stays = left(kept, result, dim)
        if stays is not None and n:
            changed[i] = int((stays[:n] if i % 2 == 0 else stays[-n:]).sum())
    return _numbers(1, changed if changed != amounts else None)


def _argument(node: fx.Node, position: int) -> Any:
    return node.args[position]

"""The fused step: every weight is read and written once.

On CPU a C++ kernel (:mod:`.native`) takes all tensors of a group in one call; elsewhere
:func:`torch.compile` turns the loop of :mod:`._step` into one pass (on CUDA: Triton). Tensors that
the kernel cannot take (half precision, layouts with holes) go through the loop, same result.
"""

from __future__ import annotations

import ctypes
import functools
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ._step import single_tensor
from .native import library
from .prox import GroupLasso, Lasso, TiedGroupLasso

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from ._step import Item, Options

_NO_TWIN, _LASSO, _GROUP_LASSO = 0, 1, 2

# Mirrors TensorView of the kernel.
_POINTERS = ("w", "g", "v", "buf", "lambds", "update_mask", "norms")
_INTEGERS = ("outer", "groups", "inner", "penalty")
_TENSOR = np.dtype([(n, np.int64) for n in (*_POINTERS, *_INTEGERS)] + [("lambd", np.float64)])


class _COptions(ctypes.Structure):
    """Mirrors Options of the kernel."""

    _fields_ = (
        ("lr", ctypes.c_double),
        ("kappa", ctypes.c_double),
        ("nu", ctypes.c_double),
        ("momentum", ctypes.c_double),
        ("weight_decay", ctypes.c_double),
        ("nesterov", ctypes.c_int64),
        ("decoupled_weight_decay", ctypes.c_int64),
        ("coupling_in_momentum", ctypes.c_int64),
        ("maximize", ctypes.c_int64),
    )


def fused(items: Sequence[Item], o: Options) -> None:
    """One iteration, fused; the device decides how."""
    if all(item.W.device.type == "cpu" for item in items):
        native(items, o)
    else:
        compiled(items, o)


def compiled(items: Sequence[Item], o: Options) -> None:
    """The loop under torch.compile; lr is a tensor there, so that schedules do not recompile."""
    _compiled_step()(items, replace(o, lr=torch.tensor(float(o.lr), dtype=torch.float64)))


@functools.cache
def _compiled_step() -> Callable[[Sequence[Item], Options], None]:
    return torch.compile(single_tensor, dynamic=False)


def native(items: Sequence[Item], o: Options) -> None:
    """One call of the C++ kernel for each dtype among the tensors."""
    tables: dict[torch.dtype, list[tuple[float, ...]]] = {torch.float32: [], torch.float64: []}
    made: list[Tensor] = []  # tensors made here must outlive the call
    written: list[Tensor] = []
    others = []
    for item in items:
        row = _row(item, made)
        if row is None:
            others.append(item)
        else:
            tables[item.W.dtype].append(row)
            V = None if item.twin is None else item.twin[0]
            written += [t for t in (item.W, V, item.buffer) if t is not None]
    for dtype, rows in tables.items():
        if rows:
            _call(dtype, rows, o)
    changed_in_place(written)
    single_tensor(others, o)


def _row(item: Item, made: list[Tensor]) -> tuple[float, ...] | None:
    """A tensor as the kernel sees it; ``None`` if the kernel cannot take it."""
    W, grad, twin, buffer, update_mask = item
    dtype, stride = W.dtype, W.stride()
    if dtype is not torch.float32 and dtype is not torch.float64:
        return None
    v, kind, dim, lambd, lambds, norms = 0, _NO_TWIN, None, 0.0, 0, 0
    if twin is not None:
        V, penalty, known_gap = twin
        if not isinstance(penalty, Lasso | GroupLasso) or known_gap is not None:
            return None
        if V.stride() != stride or V.dtype is not dtype:
            return None
        v = V.data_ptr()
        kind = _LASSO
        if isinstance(penalty, GroupLasso):
            kind, dim = _GROUP_LASSO, penalty.dim
        if isinstance(penalty, TiedGroupLasso):
            made.append(penalty.joint.to(dtype).contiguous())
            norms = made[-1].data_ptr()
        if isinstance(penalty.lambd, torch.Tensor):
            if penalty.lambd.numel() != (1 if dim is None else W.shape[dim]):
                return None
            made.append(penalty.lambd.to(dtype).contiguous())
            lambds = made[-1].data_ptr()
        else:
            lambd = penalty.lambd
    if buffer is not None and (buffer.stride() != stride or buffer.dtype is not dtype):
        return None
    if update_mask is not None and update_mask.stride() != stride:
        return None
    layout = layout_in_memory(W.shape, stride, dim)
    if layout is None:
        return None
    if grad is not None and (grad.stride() != stride or grad.dtype is not dtype):
        grad = torch.empty_like(W).copy_(grad)
        made.append(grad)
    g = 0 if grad is None else grad.data_ptr()
    buf = 0 if buffer is None else buffer.data_ptr()
    where = 0 if update_mask is None else update_mask.data_ptr()
    return (W.data_ptr(), g, v, buf, lambds, where, norms, *layout, kind, lambd)


def changed_in_place(tensors: Sequence[Tensor]) -> None:
    """Tell autograd, which else takes what it saved of them for unchanged."""
    torch.autograd.graph.increment_version([t for t in tensors if not t.is_inference()])


@functools.lru_cache(maxsize=4096)
def layout_in_memory(
    shape: torch.Size, stride: tuple[int, ...], dim: int | None
) -> tuple[int, int, int] | None:
    """``(outer, groups, inner)`` of a dense tensor in memory; ``None`` if it has holes.

    Without a group dimension every element is its own group. The order of the other dimensions in
    memory does not matter: channels_last filters are contiguous runs as well.
    """
    expected = 1
    for step, size in sorted((st, sz) for st, sz in zip(stride, shape, strict=True) if sz != 1):
        if step != expected:
            return None
        expected *= size
    numel = shape.numel()
    if dim is None:
        return 1, numel, 1
    groups = shape[dim]
    if groups <= 1 or numel == 0:
        return 1, groups, numel
    inner = stride[dim]
    return numel // (groups * inner), groups, inner


def _call(dtype: torch.dtype, rows: list[tuple[float, ...]], o: Options) -> None:
    lib = library()
    step: Any = lib.dessilbi_step_f32 if dtype is torch.float32 else lib.dessilbi_step_f64
    table = np.array(rows, dtype=_TENSOR)
    options = _COptions(
        lr=float(o.lr),
        kappa=o.kappa,
        nu=o.nu,
        momentum=o.momentum,
        weight_decay=float(o.decay) if o.decoupled_weight_decay else o.weight_decay,
        nesterov=o.nesterov,
        decoupled_weight_decay=o.decoupled_weight_decay,
        coupling_in_momentum=o.coupling == "momentum",
        maximize=o.maximize,
    )
    step(table.ctypes.data, len(rows), ctypes.addressof(options), torch.get_num_threads())

"""The C++ kernel, called with tensors laid out ``[channel, row, column, image]``."""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from dessilbi.optim._native import load_kernel

if TYPE_CHECKING:
    from torch import Tensor

    from .entries import Lists

    Pair = tuple[int, int]

DTYPES = {torch.float32: "f32", torch.float64: "f64"}


def _fields(pointers: tuple[str, ...], integers: tuple[str, ...]) -> list[tuple[str, Any]]:
    return [(n, ctypes.c_void_p) for n in pointers] + [(n, ctypes.c_int64) for n in integers]


class _Correlation(ctypes.Structure):
    """Mirrors Correlation of the kernel."""

    _fields_ = _fields(
        ("x", "y", "values", "first", "count", "pixels", "bias"),
        ("rows", "shared", "width", "images", "out_height", "out_width", "down", "right"),
    )


class _Pooling(ctypes.Structure):
    """Mirrors Pooling of the kernel."""

    _fields_ = _fields(
        (),
        ("channels", "height", "width", "images", "out_height", "out_width", "window_height",
         "window_width", "down", "right", "top", "left"),
    )  # fmt: skip


@functools.cache
def library() -> ctypes.CDLL:
    """The kernel; built on the first call on this machine."""
    # What is multiplied and added at once is rounded once, as in the libraries that torch uses.
    lib = load_kernel(Path(__file__).with_name("_lean.cpp"), "-ffp-contract=fast")
    pointer, integer = ctypes.c_void_p, ctypes.c_int64
    for dtype in DTYPES.values():
        for name, arguments in {
            "correlate": [pointer, integer],
            "gradient": [pointer, integer],
            "pad": [pointer, pointer, *[integer] * 10],
            "pool": [pointer, pointer, pointer, pointer, integer],
            "pool_gradient": [pointer, pointer, pointer, pointer, integer],
            "normalize": [*[pointer] * 6, integer, integer, ctypes.c_double, integer],
            "normalize_gradient": [*[pointer] * 8, integer, integer, ctypes.c_double, integer],
        }.items():
            function = getattr(lib, f"lean_{name}_{dtype}")
            function.restype, function.argtypes = None, arguments
    lib.lean_rank.restype = None
    lib.lean_rank.argtypes = [pointer, pointer, integer, integer, integer, *[pointer] * 3]
    return lib


def rank(row: Tensor, level: Tensor, rows: int, levels: int) -> tuple[Tensor, Tensor, Tensor]:
    """Entries sorted by row and level.

    Args:
        row: of every entry; int64.
        level: of every entry; uint8.
        rows: how many there are.
        levels: one more than the highest.

    Returns:
        Their order; by level and row, how many there are up to it (int32); and where rows begin.
    """
    order, first = torch.empty_like(row), torch.empty(rows, dtype=torch.int64)
    up_to = torch.empty(levels, rows, dtype=torch.int32)
    library().lean_rank(
        row.data_ptr(), level.data_ptr(), len(row), rows, levels, order.data_ptr(),
        up_to.data_ptr(), first.data_ptr(),
    )  # fmt: skip
    return order, up_to, first


def _run(name: str, like: Tensor) -> Any:
    return getattr(library(), f"lean_{name}_{DTYPES[like.dtype]}")


def correlate(
    x: Tensor, values: Tensor, bias: Tensor | None, lists: Lists, out: Pair, stride: Pair
) -> Tensor:
    """What the entries make of an image with its padding.

    Args:
        x: ``[channel, row, column, image]``, dense.
        values: of the entries.
        bias: one a row of the lists, or ``None``.
        lists: which entries there are.
        out: height and width of the result.
        stride: pixels between what two neighbouring outputs read.
    """
    y = x.new_empty(len(lists.first), *out, x.shape[3])
    c = _correlation(x, y, values, lists, out, stride)
    c.bias = _at(bias)
    _run("correlate", x)(ctypes.addressof(c), torch.get_num_threads())
    return y


def gradient(x: Tensor, dy: Tensor, lists: Lists, stride: Pair) -> Tensor:
    """The gradient of the entries' values in :func:`correlate`, given that of its result."""
    values = x.new_zeros(lists.values)
    c = _correlation(x, dy, values, lists, (dy.shape[1], dy.shape[2]), stride)
    _run("gradient", x)(ctypes.addressof(c), torch.get_num_threads())
    return values


def _correlation(
    x: Tensor, y: Tensor, values: Tensor, lists: Lists, out: Pair, stride: Pair
) -> _Correlation:
    return _Correlation(
        x.data_ptr(), y.data_ptr(), values.data_ptr(), lists.first.data_ptr(),
        lists.count.data_ptr(), lists.pixels.data_ptr(), None, len(lists.first), lists.shared,
        x.shape[2], x.shape[3], *out, *stride,
    )  # fmt: skip


def pad(x: Tensor, size: Pair, first: Pair, step: Pair = (1, 1)) -> Tensor:
    """The pixels of an image among zeros, which are outside, or between two of them as well."""
    channels, height, width, images = x.shape
    if (height, width) == size and first == (0, 0) and step == (1, 1):
        return x
    out = x.new_empty(channels, *size, images)
    _run("pad", x)(
        x.data_ptr(), out.data_ptr(), channels, height, width, images, *size, *first, *step
    )
    return out


def pool(x: Tensor, window: Pair, stride: Pair, padding: Pair) -> tuple[Tensor, Tensor]:
    """The largest number of each window, and where in the window it was."""
    out = [
        (size + 2 * p - w) // s + 1
        for size, w, s, p in zip(x.shape[1:3], window, stride, padding, strict=True)
    ]
    y = x.new_empty(x.shape[0], *out, x.shape[3])
    which = torch.empty_like(y, dtype=torch.int32)
    p = _Pooling(*x.shape, *out, *window, *stride, *padding)
    _run("pool", x)(
        ctypes.addressof(p), x.data_ptr(), y.data_ptr(), which.data_ptr(), torch.get_num_threads()
    )
    return y, which


def pool_gradient(
    dy: Tensor, which: Tensor, size: torch.Size, window: Pair, stride: Pair, padding: Pair
) -> Tensor:
    """The gradient of :func:`pool`, for an image of a size."""
    dx = dy.new_empty(size)
    p = _Pooling(*size, *dy.shape[1:3], *window, *stride, *padding)
    _run("pool_gradient", dy)(
        ctypes.addressof(p), dy.data_ptr(), which.data_ptr(), dx.data_ptr(), torch.get_num_threads()
    )
    return dx


def normalize(
    x: Tensor, scale: Tensor | None, shift: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """What BatchNorm makes of a batch, and the means and variances of its channels."""
    channels = len(x)
    y, mean, variance = torch.empty_like(x), x.new_empty(channels), x.new_empty(channels)
    _run("normalize", x)(
        x.data_ptr(), _at(scale), _at(shift), y.data_ptr(), mean.data_ptr(), variance.data_ptr(),
        channels, x[0].numel(), eps, torch.get_num_threads(),
    )  # fmt: skip
    return y, mean, variance


def normalize_gradient(
    x: Tensor, dy: Tensor, scale: Tensor | None, mean: Tensor, variance: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of :func:`normalize` by its input, its scale and its shift."""
    dx, dscale, dshift = torch.empty_like(x), torch.empty_like(mean), torch.empty_like(mean)
    _run("normalize_gradient", x)(
        x.data_ptr(), dy.data_ptr(), _at(scale), mean.data_ptr(), variance.data_ptr(),
        dx.data_ptr(), dscale.data_ptr(), dshift.data_ptr(), len(x), x[0].numel(), eps,
        torch.get_num_threads(),
    )  # fmt: skip
    return dx, dscale, dshift


def _at(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()

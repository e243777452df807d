"""The C++ kernels, called with tensors laid out ``[channel, row, column, image]``."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, NamedTuple

import torch

from ._library import (
    AverageCall,
    ConvolutionCall,
    CorrelationCall,
    EnterCall,
    FinishCall,
    GatheringCall,
    PaddingCall,
    PoolingCall,
    at,
    empty,
    function_of,
    library,
    run,
)

if TYPE_CHECKING:
    from torch import Tensor

    from .entries import Lists

    Pair = tuple[int, int]


# ---------------------------------------------------------------------- convolutions of all weights


class Geometry(NamedTuple):
    """Stride and padding of a convolution, by height and width."""

    stride: Pair
    padding: Pair

    def out(self, size: Pair, window: Pair) -> Pair:
        """The size of what it makes of an image."""
        high, wide = (
            (length + 2 * padding - w) // stride + 1
            for length, w, stride, padding in zip(
                size, window, self.stride, self.padding, strict=True
            )
        )
        if high < 1 or wide < 1:
            raise RuntimeError(f"images of {size} are smaller than the window {window}")
        return high, wide


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None, how: Geometry) -> Tensor:
    """A convolution; all tensors are dense."""
    outputs, inputs, *window = weight.shape
    _, height, width, images = x.shape
    out = how.out((height, width), (window[0], window[1]))
    y = empty(x, outputs, *out, images)
    c = ConvolutionCall(
        x.data_ptr(), y.data_ptr(), weight.data_ptr(), at(bias), inputs, outputs, images, height,
        width, *out, *window, *how.stride, *how.padding, *weight.stride()[:2], 0,
    )  # fmt: skip
    run("convolve", x, c)
    return y


def input_gradient(dy: Tensor, weight: Tensor, size: Pair, how: Geometry) -> Tensor:
    """The gradient of :func:`convolve` by images of a size."""
    outputs, inputs, *window = weight.shape
    dx = empty(dy, inputs, *size, dy.shape[3])
    by_output, by_input = weight.stride()[:2]
    c = ConvolutionCall(
        dy.data_ptr(), dx.data_ptr(), weight.data_ptr(), None, outputs, inputs, *dy.shape[3:],
        *dy.shape[1:3], *size, *window, *how.stride, *how.padding, by_input, by_output, 1,
    )  # fmt: skip
    run("convolve", dy, c)
    return dx


def weight_gradient(
    x: Tensor, dy: Tensor, weight: Tensor, how: Geometry, *, bias: bool
) -> tuple[Tensor, Tensor | None]:
    """The gradients of :func:`convolve` by its weight and, if that is wanted, its bias."""
    outputs, inputs, *window = weight.shape
    _, height, width, images = x.shape
    found = empty(weight, *weight.shape)
    shift = empty(weight, outputs) if bias else None
    c = ConvolutionCall(
        x.data_ptr(), dy.data_ptr(), found.data_ptr(), at(shift), inputs, outputs, images, height,
        width, *dy.shape[1:3], *window, *how.stride, *how.padding, *found.stride()[:2], 0,
    )  # fmt: skip
    run("weight_gradient", x, c)
    return found, shift


# ---------------------------------------------------------------------- and of some weights


def rank(row: Tensor, level: Tensor, rows: int, levels: int) -> tuple[Tensor, Tensor, Tensor]:
    """Entries sorted by row and level.

    Args:
        row: of every entry; int64.
        level: of every entry; uint8.
        rows: how many there are.
        levels: one more than the highest.

    Returns:
        Their order; by level and row, how many there are up to it (int32); and where rows begin,
        and the last one ends.
    """
    order, first = torch.empty_like(row), torch.empty(rows + 1, dtype=torch.int64)
    up_to = torch.empty(levels, rows, dtype=torch.int32)
    library().lean_rank(
        row.data_ptr(), level.data_ptr(), len(row), rows, levels, order.data_ptr(),
        up_to.data_ptr(), first.data_ptr(),
    )  # fmt: skip
    return order, up_to, first


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
    y = empty(x, len(lists.count), *out, x.shape[3])
    c = _correlation(x, y, values, lists, out, stride)
    c.bias = at(bias)
    run("correlate", x, c)
    return y


def gradient(
    x: Tensor, dy: Tensor, lists: Lists, stride: Pair, *, bias: bool
) -> tuple[Tensor, Tensor | None]:
    """The gradients of the values in :func:`correlate` and, if that is wanted, of the bias."""
    values = empty(x, len(lists.pixels))
    shift = empty(x, len(lists.count)) if bias else None
    c = _correlation(x, dy, values, lists, (dy.shape[1], dy.shape[2]), stride)
    c.bias = at(shift)
    run("gradient", x, c)
    return values, shift


def gather(x: Tensor, index: Tensor) -> Tensor:
    """``x[index]``, of one dimension."""
    y = empty(x, len(index))
    run("gather", x, GatheringCall(x.data_ptr(), y.data_ptr(), index.data_ptr(), len(index)))
    return y


def _correlation(
    x: Tensor, y: Tensor, values: Tensor, lists: Lists, out: Pair, stride: Pair
) -> CorrelationCall:
    return CorrelationCall(
        x.data_ptr(), y.data_ptr(), values.data_ptr(), lists.first.data_ptr(),
        lists.count.data_ptr(), lists.pixels.data_ptr(), None, len(lists.count), *x.shape[2:],
        *out, *stride,
    )  # fmt: skip


def pad(x: Tensor, size: Pair, first: Pair, step: Pair = (1, 1)) -> Tensor:
    """The pixels of an image among zeros, which are outside, or between two of them as well."""
    channels, height, width, images = x.shape
    if (height, width) == size and first == (0, 0) and step == (1, 1):
        return x
    out = empty(x, channels, *size, images)
    p = PaddingCall(x.data_ptr(), out.data_ptr(), *x.shape, *size, *first, *step)
    run("pad", x, p)
    return out


# ---------------------------------------------------------------------- between convolutions


def enter(x: Tensor, into: Tensor) -> None:
    """A batch as torch has it, examples first, into memory in which they are last."""
    images, channels, pixels = len(x), 1, x[0].numel()
    if x.ndim == 4 and not x.is_contiguous():
        if not x.is_contiguous(memory_format=torch.channels_last):
            x = x.contiguous()
        else:
            channels, pixels = x.shape[1], x.shape[2] * x.shape[3]
    x = x if channels > 1 else x.contiguous()
    e = EnterCall(x.data_ptr(), into.data_ptr(), images, pixels, channels)
    function_of("enter", x.dtype)(ctypes.addressof(e), 1)


class Norm(NamedTuple):
    """The parameters of a BatchNorm layer."""

    scale: Tensor | None
    shift: Tensor | None
    eps: float


class Finished(NamedTuple):
    """What :func:`finish` gives: its result and, if it normalizes, each channel's statistics."""

    y: Tensor
    mean: Tensor | None
    variance: Tensor | None


def finish(
    x: Tensor, norm: Norm | None, residual: Tensor | None, window: Pair, relu: bool
) -> Finished:
    """``relu(pool(norm(x) + residual))``, each of them or not, in one go.

    Args:
        x: ``[channel, row, column, image]``, dense.
        norm: normalizes each channel by its own mean and variance; or ``None``.
        residual: like x, added behind the norm; or ``None``. Not with pooling.
        window: of a max pooling whose windows lie side by side; (1, 1) for none.
        relu: whether to end with it.
    """
    channels, height, width, images = x.shape
    y = empty(x, channels, height // window[0], width // window[1], images)
    mean, variance = (None, None) if norm is None else empty(x, 2, channels)
    done = Finished(y, mean, variance)
    run("finish", x, _finish(x, norm, residual, done, window, relu))
    return done


def finish_gradient(
    x: Tensor, norm: Norm | None, done: Finished, dy: Tensor, window: Pair, relu: bool, apart: bool
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """The gradients of :func:`finish` by x, the residual, the scale and the shift.

    Args:
        x: as it was.
        norm: as it was.
        done: its result.
        dy: the gradient of that.
        window: as it was.
        relu: as it was.
        apart: whether the residual's gradient is wanted; it is x's if there is no norm.
    """
    dx = empty(x, *x.shape)
    f = _finish(x, norm, None, done, window, relu)
    if not apart:
        f.y = None
    f.dy, f.dx = dy.data_ptr(), dx.data_ptr()
    dresidual, dscale, dshift = dx, None, None
    if norm is not None:
        dscale, dshift = empty(x, 2, len(x))
        f.dscale, f.dshift = dscale.data_ptr(), dshift.data_ptr()
        if apart:
            dresidual = empty(x, *x.shape)
            f.dresidual = dresidual.data_ptr()
    run("finish_gradient", x, f)
    return dx, dresidual, dscale, dshift


def _finish(
    x: Tensor,
    norm: Norm | None,
    residual: Tensor | None,
    done: Finished,
    window: Pair,
    relu: bool,
) -> FinishCall:
    scale, shift, eps = (None, None, 0.0) if norm is None else norm
    return FinishCall(
        x.data_ptr(), at(residual), at(scale), at(shift), done.y.data_ptr(), at(done.mean),
        at(done.variance), None, None, None, None, None, *x.shape, *window, norm is not None, relu,
        eps,
    )  # fmt: skip


def average(x: Tensor) -> Tensor:
    """The mean of every channel, as an image of one pixel."""
    channels, height, width, images = x.shape
    y = empty(x, channels, 1, 1, images)
    run("average", x, AverageCall(x.data_ptr(), y.data_ptr(), channels, height * width, images))
    return y


def average_gradient(dy: Tensor, size: Pair) -> Tensor:
    """The gradient of :func:`average`, for images of a size."""
    channels, _, _, images = dy.shape
    dx = empty(dy, channels, *size, images)
    a = AverageCall(dx.data_ptr(), dy.data_ptr(), channels, size[0] * size[1], images)
    run("average_gradient", dy, a)
    return dx


def total(x: Tensor, other: Tensor) -> Tensor:
    """The sum of two tensors of one shape."""
    flat, x, other = (1, 1, 1, -1), x.contiguous(), other.contiguous()
    return finish(x.view(flat), None, other.view(flat), (1, 1), False).y.view(x.shape)


def pool(x: Tensor, window: Pair, how: Geometry) -> tuple[Tensor, Tensor]:
    """The largest number of each window, and where in the window it was; they may overlap."""
    out = how.out((x.shape[1], x.shape[2]), window)
    y = x.new_empty(x.shape[0], *out, x.shape[3])
    which = torch.empty_like(y, dtype=torch.int32)
    p = PoolingCall(*x.shape, *out, *window, *how.stride, *how.padding)
    function_of("pool", x.dtype)(
        ctypes.addressof(p), x.data_ptr(), y.data_ptr(), which.data_ptr(), torch.get_num_threads()
    )
    return y, which


def pool_gradient(
    dy: Tensor, which: Tensor, size: tuple[int, ...], window: Pair, how: Geometry
) -> Tensor:
    """The gradient of :func:`pool`, for an image of a size."""
    dx = dy.new_empty(size)
    p = PoolingCall(*size, *dy.shape[1:3], *window, *how.stride, *how.padding)
    function_of("pool_gradient", dy.dtype)(
        ctypes.addressof(p), dy.data_ptr(), which.data_ptr(), dx.data_ptr(), torch.get_num_threads()
    )
    return dx

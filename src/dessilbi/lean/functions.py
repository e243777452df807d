"""Layers whose images of a batch lie side by side in memory, with their gradients.

Tensors have the shapes that torch gives them, ``[image, channel, row, column]``; in memory images
are innermost. What other functions make of such a tensor is right as well, and element by element
stays in this layout.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.autograd import Function
from torch.autograd.function import once_differentiable

from . import _kernel

if TYPE_CHECKING:
    from torch import Tensor

    from .entries import Dense, Lists, Sparse

    Pair = tuple[int, int]


def images_last(x: Tensor) -> Tensor:
    """``[channel, row, column, image]``, dense: a view where memory is so already."""
    return x.permute(1, 2, 3, 0).contiguous()


def images_first(x: Tensor) -> Tensor:
    """The reverse of :func:`images_last`, a view."""
    return x.permute(3, 0, 1, 2)


class Convolve(Function):
    """A convolution by entries."""

    @staticmethod
    def forward(  # noqa: D102
        ctx: Any,
        x: Tensor,
        values: Tensor,
        bias: Tensor | None,
        entries: Dense | Sparse,
        stride: Pair,
        padding: Pair,
    ) -> Tensor:
        height, width = x.shape[2] + 2 * padding[0], x.shape[3] + 2 * padding[1]
        padded = _kernel.pad(images_last(x), (height, width), padding)
        window = entries.shape[2:]
        out = (height - window[0]) // stride[0] + 1, (width - window[1]) // stride[1] + 1
        values = values.contiguous()
        ctx.save_for_backward(padded, values)
        ctx.entries, ctx.stride, ctx.padding, ctx.size = entries, stride, padding, x.shape[2:]
        lists = entries.lists(height, width)
        return images_first(_kernel.correlate(padded, values, bias, lists, out, stride))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:  # noqa: D102
        padded, values = ctx.saved_tensors
        entries, stride, (height, width) = ctx.entries, ctx.stride, ctx.size
        window = entries.shape[2:]
        dy = images_last(dy)
        dx = dvalues = dbias = None
        if ctx.needs_input_grad[0]:
            size = height + window[0] - 1, width + window[1] - 1
            first = window[0] - 1 - ctx.padding[0], window[1] - 1 - ctx.padding[1]
            spread = _kernel.pad(dy, size, first, stride)
            lists = entries.lists(*size, turned=True)
            turned = entries.turned(values)
            dx = _kernel.correlate(spread, turned, None, lists, (height, width), (1, 1))
            dx = images_first(dx)
        if ctx.needs_input_grad[1]:
            lists = entries.lists(padded.shape[1], padded.shape[2])
            dvalues = _kernel.gradient(padded, dy, lists, stride).view(values.shape)
        if ctx.needs_input_grad[2]:
            dbias = dy.flatten(1).sum(1)
        return dx, dvalues, dbias, None, None, None


class Link(Function):
    """A linear layer by entries: a convolution of images of one pixel, with less to be done."""

    @staticmethod
    def forward(  # noqa: D102
        ctx: Any, x: Tensor, values: Tensor, bias: Tensor | None, entries: Dense | Sparse
    ) -> Tensor:
        x = x.t().contiguous()
        ctx.save_for_backward(x, values)
        ctx.entries = entries
        return _linked(x, values, bias, entries.lists(1, 1)).t()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:  # noqa: D102
        x, values = ctx.saved_tensors
        entries = ctx.entries
        dy = dy.t().contiguous()
        dx = dvalues = dbias = None
        if ctx.needs_input_grad[0]:
            dx = _linked(dy, entries.turned(values), None, entries.lists(1, 1, turned=True)).t()
        if ctx.needs_input_grad[1]:
            dvalues = _kernel.gradient(_pixels(x), _pixels(dy), entries.lists(1, 1), (1, 1)).view(
                values.shape
            )
        if ctx.needs_input_grad[2]:
            dbias = dy.sum(1)
        return dx, dvalues, dbias, None


def _pixels(x: Tensor) -> Tensor:
    """``[channel, image]`` as images of one pixel."""
    return x.view(x.shape[0], 1, 1, x.shape[1])


def _linked(x: Tensor, values: Tensor, bias: Tensor | None, lists: Lists) -> Tensor:
    return _kernel.correlate(_pixels(x), values, bias, lists, (1, 1), (1, 1)).flatten(1)


class MaxPool(Function):
    """The largest number of each window."""

    @staticmethod
    def forward(  # noqa: D102
        ctx: Any, x: Tensor, window: Pair, stride: Pair, padding: Pair
    ) -> Tensor:
        x = images_last(x)
        y, which = _kernel.pool(x, window, stride, padding)
        ctx.save_for_backward(which)
        ctx.size, ctx.how = x.shape, (window, stride, padding)
        return images_first(y)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:  # noqa: D102
        (which,) = ctx.saved_tensors
        dx = _kernel.pool_gradient(images_last(dy), which, ctx.size, *ctx.how)
        return images_first(dx), None, None, None


class Normalize(Function):
    """BatchNorm by the statistics of the batch, which it also returns."""

    @staticmethod
    def forward(  # noqa: D102
        ctx: Any, x: Tensor, scale: Tensor | None, shift: Tensor | None, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        x = images_last(x)
        y, mean, variance = _kernel.normalize(x, scale, shift, eps)
        ctx.save_for_backward(x, scale, mean, variance)
        ctx.eps = eps
        ctx.mark_non_differentiable(mean, variance)
        return images_first(y), mean, variance

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:  # noqa: D102
        x, scale, mean, variance = ctx.saved_tensors
        dx, *others = _kernel.normalize_gradient(x, images_last(dy), scale, mean, variance, ctx.eps)
        asked = ctx.needs_input_grad[1:3]
        dscale, dshift = (d if need else None for d, need in zip(others, asked, strict=True))
        return images_first(dx), dscale, dshift, None


def convolve(
    x: Tensor,
    values: Tensor,
    bias: Tensor | None,
    entries: Dense | Sparse,
    stride: Pair,
    padding: Pair,
) -> Tensor:
    """A convolution by entries."""
    y: Tensor = Convolve.apply(x, values, bias, entries, stride, padding)  # type: ignore[no-untyped-call]
    return y


def linear(x: Tensor, values: Tensor, bias: Tensor | None, entries: Dense | Sparse) -> Tensor:
    """A linear layer by entries."""
    y: Tensor = Link.apply(x, values, bias, entries)  # type: ignore[no-untyped-call]
    return y


def max_pool(x: Tensor, window: Pair, stride: Pair, padding: Pair) -> Tensor:
    """The largest number of each window."""
    y: Tensor = MaxPool.apply(x, window, stride, padding)  # type: ignore[no-untyped-call]
    return y


def normalize(
    x: Tensor, scale: Tensor | None, shift: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """BatchNorm by the statistics of the batch; with means and variances of its channels."""
    found: tuple[Tensor, Tensor, Tensor] = Normalize.apply(x, scale, shift, eps)  # type: ignore[no-untyped-call]
    return found

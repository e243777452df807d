"""The layers of a program: each makes its result, and gradients out of the result's, by kernels."""

# ruff: noqa: D102 - what Layer says of its methods is not said again

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.func import functional_call

from . import _kernel
from ._kernel import Geometry, Norm
from .layer import (
    Layer,
    UnsuitedError,
    Wanted,
    dense,
    examples_first,
    examples_last,
    of_dimension,
    plain,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor, nn

    from .entries import Sparse
    from .layer import Weight

    Pair = tuple[int, int]


NEXT = Geometry((1, 1), (0, 0))
"""Every pixel, and no padding."""


@dataclass(frozen=True)
class Convolution(Layer):
    """A convolution, of all weights or of some."""

    weight: str
    bias: str | None
    how: Geometry = NEXT

    @property
    def weights(self) -> tuple[str, ...]:
        return (self.weight,) if self.bias is None else (self.weight, self.bias)

    def recordable(self, weights: Mapping[str, Weight]) -> bool:
        return plain(weights, self.weights)

    def forward(self, weights: Mapping[str, Weight], *x: Any) -> tuple[Tensor, Any]:
        (image,) = of_dimension(4, x)
        weight = weights[self.weight]
        shape = weight.shape if isinstance(weight, torch.Tensor) else weight[0].shape
        bias = None if self.bias is None else dense(weights, self.bias)
        _expect(len(image), shape[1], self.weight)
        if isinstance(weight, torch.Tensor):
            weight = self._window(weight.contiguous())
            return _kernel.convolve(image, weight, bias, self.how), (image, weight)
        entries, values = weight
        (down, right), size = self.how.padding, (image.shape[1], image.shape[2])
        height, width = size[0] + 2 * down, size[1] + 2 * right
        padded = _kernel.pad(image, (height, width), self.how.padding)
        out = self.how.out(size, entries.shape[2:])
        lists = entries.lists(height, width)
        y = _kernel.correlate(padded, values, bias, lists, out, self.how.stride)
        return y, (padded, size)

    def backward(
        self, weights: Mapping[str, Weight], kept: Any, dy: Tensor, wanted: Wanted
    ) -> tuple[Tensor | None, ...]:
        weight = weights[self.weight]
        if isinstance(weight, torch.Tensor):
            image, weight = kept
            return (self._dense_backward(image, weight, dy, wanted),)
        padded, size = kept
        return (self._sparse_backward(*weight, padded, size, dy, wanted),)

    def _dense_backward(
        self, image: Tensor, weight: Tensor, dy: Tensor, wanted: Wanted
    ) -> Tensor | None:
        bias = wanted.wants(self.bias)
        if bias or wanted.wants(self.weight):
            found, shift = _kernel.weight_gradient(image, dy, weight, self.how, bias=bias)
            wanted.give(self.weight, self._unwindow(found))
            wanted.give(self.bias, shift)
        if not wanted.inputs:
            return None
        return _kernel.input_gradient(dy, weight, (image.shape[1], image.shape[2]), self.how)

    def _sparse_backward(
        self,
        entries: Sparse,
        values: Tensor,
        padded: Tensor,
        size: Pair,
        dy: Tensor,
        wanted: Wanted,
    ) -> Tensor | None:
        bias = wanted.wants(self.bias)
        if bias or wanted.wants(self.weight):
            lists = entries.lists(padded.shape[1], padded.shape[2])
            found, shift = _kernel.gradient(padded, dy, lists, self.how.stride, bias=bias)
            wanted.give(self.weight, found)
            wanted.give(self.bias, shift)
        if not wanted.inputs:
            return None
        high, wide = entries.shape[2:]
        spread = size[0] + high - 1, size[1] + wide - 1
        first = high - 1 - self.how.padding[0], wide - 1 - self.how.padding[1]
        lists = entries.lists(*spread, turned=True)
        dy = _kernel.pad(dy, spread, first, self.how.stride)
        return _kernel.correlate(dy, entries.turned(values), None, lists, size, (1, 1))

    def _window(self, weight: Tensor) -> Tensor:
        return weight

    def _unwindow(self, weight: Tensor) -> Tensor:
        return weight


@dataclass(frozen=True)
class Linear(Convolution):
    """A linear layer: a convolution of images of one pixel."""

    def forward(self, weights: Mapping[str, Weight], *x: Any) -> tuple[Tensor, Any]:
        (features,) = of_dimension(2, x)
        y, kept = super().forward(weights, _pixels(features))
        return y.flatten(1), kept

    def backward(
        self, weights: Mapping[str, Weight], kept: Any, dy: Tensor, wanted: Wanted
    ) -> tuple[Tensor | None, ...]:
        (dx,) = super().backward(weights, kept, _pixels(dy), wanted)
        return (None if dx is None else dx.flatten(1),)

    def _window(self, weight: Tensor) -> Tensor:
        return weight[:, :, None, None]

    def _unwindow(self, weight: Tensor) -> Tensor:
        return weight[:, :, 0, 0]


def _pixels(x: Tensor) -> Tensor:
    """``[channel, image]`` as images of one pixel."""
    return x.view(x.shape[0], 1, 1, x.shape[1])


@dataclass(frozen=True)
class Finish(Layer):
    """``relu(pool(norm(x) + residual))``, each of them or not; a second input is the residual."""

    norm: str | None = None
    """The name of a BatchNorm layer."""
    module: nn.modules.batchnorm._BatchNorm | None = None
    """That layer, for what does not change."""
    affine: tuple[str | None, str | None] = (None, None)
    """The names of its scale and shift, if it has them."""
    window: Pair = (1, 1)
    relu: bool = False

    @property
    def weights(self) -> tuple[str, ...]:
        return tuple(name for name in self.affine if name is not None)

    def recordable(self, weights: Mapping[str, Weight]) -> bool:
        return plain(weights, self.weights)

    def _norm(self, weights: Mapping[str, Weight]) -> Norm | None:
        if self.module is None:
            return None
        scale, shift = (None if name is None else dense(weights, name) for name in self.affine)
        return Norm(scale, shift, self.module.eps)

    def forward(self, weights: Mapping[str, Weight], *x: Any) -> tuple[Tensor, Any]:
        values = of_dimension(4, [_pixels(v) if _is_flat(v) else v for v in x])
        image, residual = values[0], values[1] if len(values) > 1 else None
        if residual is not None and residual.shape != image.shape:
            raise UnsuitedError("a sum of tensors of different shapes")
        if self.module is not None and image[0].numel() < 2:
            raise UnsuitedError("BatchNorm of a single number")
        for name in self.weights:
            _expect(len(image), len(dense(weights, name)), name)
        done = _kernel.finish(image, self._norm(weights), residual, self.window, self.relu)
        return done.y.view(done.y.shape[0], -1) if x[0].ndim == 2 else done.y, (image, done)

    def backward(
        self, weights: Mapping[str, Weight], kept: Any, dy: Tensor, wanted: Wanted
    ) -> tuple[Tensor | None, ...]:
        image, done = kept
        flat = dy.ndim == 2
        apart = len(self.inputs) > 1
        dx, dresidual, dscale, dshift = _kernel.finish_gradient(
            image, self._norm(weights), done, dy, self.window, self.relu, apart
        )
        for name, gradient in zip(self.affine, (dscale, dshift), strict=True):
            wanted.give(name, gradient)
        found = (dx, dresidual) if apart else (dx,)
        return tuple(d.view(d.shape[0], -1) if flat else d for d in found)

    @torch.no_grad()
    def remember(self, kept: Any) -> None:
        """Let the BatchNorm layer's running statistics follow."""
        m, (image, done) = self.module, kept
        if m is None or not m.track_running_stats or m.running_mean is None:
            return
        assert m.running_var is not None
        assert m.num_batches_tracked is not None
        m.num_batches_tracked.add_(1)
        share = 1 / int(m.num_batches_tracked) if m.momentum is None else m.momentum
        n = image[0].numel()
        m.running_mean.lerp_(done.mean.to(m.running_mean.dtype), share)
        m.running_var.lerp_(done.variance.to(m.running_var.dtype) * (n / (n - 1)), share)


@dataclass(frozen=True)
class MaxPool(Layer):
    """The largest number of each window; windows may overlap."""

    window: Pair
    how: Geometry

    def forward(self, weights: Mapping[str, Weight], *x: Any) -> tuple[Tensor, Any]:
        (image,) = of_dimension(4, x)
        y, which = _kernel.pool(image, self.window, self.how)
        return y, (which, image.shape)

    def backward(
        self, weights: Mapping[str, Weight], kept: Any, dy: Tensor, wanted: Wanted
    ) -> tuple[Tensor | None, ...]:
        which, size = kept
        return (_kernel.pool_gradient(dy, which, size, self.window, self.how),)


@dataclass(frozen=True)
class Average(Layer):
    """The mean of each channel, as an image of one pixel."""

    def forward(self, weights: Mapping[str, Weight], *x: Any) -> tuple[Tensor, Any]:
        (image,) = of_dimension(4, x)
        return _kernel.average(image), (image.shape[1], image.shape[2])

    def recordable(self, weights: Mapping[str, Weight]) -> bool:
        return True

    def backward(
        self, weights: Mapping[str, Weight], kept: Any, dy: Tensor, wanted: Wanted
    ) -> tuple[Tensor | None, ...]:
        return (_kernel.average_gradient(dy, kept),)


@dataclass(frozen=True)
class Flatten(Layer):
    """All features of an example in a row."""

    def forward(self, weights: Mapping[str, Weight], *x: Any) -> tuple[Tensor, Any]:
        (value,) = x
        if value.ndim < 2:
            raise UnsuitedError("nothing to flatten")
        return value.view(-1, value.shape[-1]), value.shape

    def recordable(self, weights: Mapping[str, Weight]) -> bool:
        return True

    def backward(
        self, weights: Mapping[str, Weight], kept: Any, dy: Tensor, wanted: Wanted
    ) -> tuple[Tensor | None, ...]:
        return (dy.view(kept),)


@dataclass(frozen=True)
class ByTorch(Layer):
    """Anything else: torch runs it, and finds its gradients."""

    call: Callable[..., Any]
    """Of the inputs, in their order, as torch has them."""
    module: nn.Module | None = None
    """If this is a module: then it is called with its weights."""
    names: tuple[tuple[str, str], ...] = ()
    """Its weights: their names in the module, and in the network."""

    @property
    def weights(self) -> tuple[str, ...]:
        return tuple(name for _, name in self.names)

    def forward(self, weights: Mapping[str, Weight], *x: Any) -> tuple[Any, Any]:
        leaves = [
            # Dense, so that random numbers fall where they do without a program.
            examples_first(v).contiguous().detach().requires_grad_(v.is_floating_point())
            if isinstance(v, torch.Tensor)
            else v
            for v in x
        ]
        own = {inner: dense(weights, name) for inner, name in self.names}
        own = {inner: w.detach().requires_grad_() for inner, w in own.items()}
        with torch.enable_grad():
            y = (
                functional_call(self.module, own, tuple(leaves))
                if self.module is not None
                else self.call(*leaves)
            )
        if not isinstance(y, torch.Tensor):
            if not isinstance(y, int | torch.Size | torch.dtype | torch.device):
                raise UnsuitedError("a result that is neither a tensor nor a size")
            return y, None
        return examples_last(y.detach()), (y, leaves, own)

    def backward(
        self, weights: Mapping[str, Weight], kept: Any, dy: Tensor, wanted: Wanted
    ) -> tuple[Tensor | None, ...]:
        y, leaves, own = kept
        none: tuple[Tensor | None, ...] = (None,) * len(leaves)
        if not y.requires_grad:
            return none
        asked = [v for v in leaves if isinstance(v, torch.Tensor) and v.requires_grad]
        found = torch.autograd.grad(
            y, [*asked, *own.values()], examples_first(dy), allow_unused=True
        )
        for (_, name), gradient in zip(self.names, found[len(asked) :], strict=True):
            wanted.give(name, gradient)
        known = {id(v): g for v, g in zip(asked, found, strict=False) if g is not None}
        return tuple(examples_last(known[id(v)]) if id(v) in known else None for v in leaves)


def _is_flat(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.ndim == 2


def _expect(channels: int, wanted: int, name: str) -> None:
    if channels != wanted:
        raise UnsuitedError(f"{name!r} reads {wanted} channels, got {channels}")

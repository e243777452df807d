"""Within this mode a network runs by the lean kernels, where they apply, and by torch elsewhere."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional as F  # noqa: N812 - as everybody does
from torch.overrides import TorchFunctionMode

from dessilbi.optim._native import KernelBuildError

from ._kernel import DTYPES, library
from .entries import Dense
from .functions import convolve, images_first, images_last, linear, max_pool, normalize

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from torch import Tensor

    from .entries import Sparse


def available(tensors: Iterable[Tensor] = ()) -> bool:
    """Whether this machine can build the kernels, and they take these tensors."""
    if not all(t.device.type == "cpu" and t.dtype in DTYPES for t in tensors):
        return False
    try:
        library()
    except KernelBuildError:
        return False
    return True


def side_by_side(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """The same with the images of a batch side by side in memory, as the kernels want them."""
    return tuple(
        images_first(images_last(a)) if isinstance(a, torch.Tensor) and _fits(a) else a
        for a in arguments
    )


class NotSkippedError(RuntimeError):
    """A weight of which only some are there was used in a way that no kernel knows."""


class LeanPasses(TorchFunctionMode):
    """What is called in it with tensors on a CPU costs what its channels and weights ask for.

    Convolutions, poolings and BatchNorm keep the images of a batch side by side in memory. The
    result is torch's up to rounding; a function or an option that the kernels do not know runs as
    it always does.

    Args:
        sparse: for weights of which only some are there, by identity: which, and their values. As
            tensors they are whole; leaving the mode after a pass that did not take all of them by
            the kernels raises :class:`NotSkippedError`.
    """

    def __init__(self, sparse: Mapping[Tensor, tuple[Sparse, Tensor]] | None = None) -> None:
        super().__init__()
        self._sparse = sparse or {}
        self._taken: set[Tensor] = set()

    def __exit__(self, kind: Any, value: Any, traceback: Any) -> None:
        super().__exit__(kind, value, traceback)  # type: ignore[no-untyped-call]
        # Code that is compiled or scripted calls functions that no mode sees.
        if kind is None and len(self._taken) < len(self._sparse):
            raise NotSkippedError("a weight of which only some are there was not used")

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        known = _KNOWN.get(func)
        if known is not None:
            done = known(self, *args, **kwargs)
            if done is not NotImplemented:
                return done
        found = func(*args, **kwargs)
        if self._sparse and not _plain(found) and self._whole_among((*args, *kwargs.values())):
            raise NotSkippedError(f"a weight of which only some are there went into {func}")
        return found

    def _whole_among(self, arguments: Iterable[Any]) -> bool:
        return any(
            a in self._sparse
            if isinstance(a, torch.Tensor)
            else isinstance(a, list | tuple) and self._whole_among(a)
            for a in arguments
        )

    def _entries(self, weight: Tensor) -> tuple[Any, Tensor]:
        found = self._sparse.get(weight)
        if found is not None:
            self._taken.add(weight)
            return found
        return _dense(weight.shape), weight

    def _conv2d(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Any:
        if not _fits(x, weight) or _pair(dilation) != (1, 1) or groups != 1:
            return NotImplemented
        if isinstance(padding, str):
            return NotImplemented
        entries, values = self._entries(weight)
        return convolve(x, values, bias, entries, _pair(stride), _pair(padding))

    def _linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
        found = self._sparse.get(weight)
        if found is None or x.ndim != 2:
            return NotImplemented
        self._taken.add(weight)
        entries, values = found
        return linear(x, values, bias, entries)

    def _batch_norm(
        self,
        x: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Any:
        given = (t for t in (weight, bias) if t is not None)
        if not training or not _fits(x, *given) or x.numel() == x.shape[1]:
            return NotImplemented
        y, mean, variance = normalize(x, weight, bias, eps)
        with torch.no_grad():
            if running_mean is not None:
                running_mean.lerp_(mean.to(running_mean.dtype), momentum)
            if running_var is not None:
                n = x.numel() // x.shape[1]
                running_var.lerp_(variance.to(running_var.dtype) * (n / (n - 1)), momentum)
        return y

    def _max_pool2d(
        self,
        x: Tensor,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Any:
        if not _fits(x) or _pair(dilation) != (1, 1) or ceil_mode or return_indices:
            return NotImplemented
        window = _pair(kernel_size)
        return max_pool(x, window, _pair(stride) if stride else window, _pair(padding))


_KNOWN: dict[Any, Callable[..., Any]] = {
    torch.conv2d: LeanPasses._conv2d,
    F.linear: LeanPasses._linear,
    F.batch_norm: LeanPasses._batch_norm,
    F.max_pool2d: LeanPasses._max_pool2d,
    torch.max_pool2d: LeanPasses._max_pool2d,
}


@functools.lru_cache(maxsize=512)
def _dense(shape: tuple[int, int, int, int]) -> Dense:
    """Kept from pass to pass: making its lists takes longer than a small layer."""
    return Dense(shape)


def _plain(value: Any) -> bool:
    """Whether this says something about a tensor (its shape, say) and is none."""
    return value is None or isinstance(value, int | float | str | torch.Size | torch.dtype)


def _fits(x: Tensor, *others: Tensor) -> bool:
    return x.ndim == 4 and all(
        t.dtype in DTYPES and t.dtype is x.dtype and t.device.type == "cpu" for t in (x, *others)
    )


def _pair(value: Any) -> tuple[int, int]:
    if isinstance(value, int):
        return value, value
    first, second = value if len(value) == 2 else (*value, *value)
    return int(first), int(second)

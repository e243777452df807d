"""The library of kernels: how they are called, and how calls are recorded and played again.

What a kernel writes to is made by :func:`empty`, so that a :class:`Recorder` can keep it.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from dessilbi.optim._native import load_kernel

if TYPE_CHECKING:
    from torch import Tensor

DTYPES = {torch.float32: "f32", torch.float64: "f64"}
_SOURCES = ("_convolve.cpp", "_entries.cpp", "_layers.cpp", "_vectors.h", "_winograd.h")


def _fields(
    pointers: str, integers: str, *others: tuple[str, type[ctypes.c_double]]
) -> list[tuple[str, Any]]:
    return [
        *((name, ctypes.c_void_p) for name in pointers.split()),
        *((name, ctypes.c_int64) for name in integers.split()),
        *others,
    ]


class ConvolutionCall(ctypes.Structure):
    """Mirrors Convolution of the kernel."""

    _fields_ = _fields(
        "x y weight bias",
        "inputs outputs images height width out_height out_width window_height window_width "
        "down right top left by_output by_input turned",
    )


class CorrelationCall(ctypes.Structure):
    """Mirrors Correlation of the kernel."""

    _fields_ = _fields(
        "x y values first count pixels bias", "rows width images out_height out_width down right"
    )


class PaddingCall(ctypes.Structure):
    """Mirrors Padding of the kernel."""

    _fields_ = _fields(
        "x y", "channels height width images out_height out_width top left down right"
    )


class GatheringCall(ctypes.Structure):
    """Mirrors Gathering of the kernel."""

    _fields_ = _fields("x y index", "count")


class FinishCall(ctypes.Structure):
    """Mirrors Finish of the kernel."""

    _fields_ = _fields(
        "x residual scale shift y mean variance dy dx dresidual dscale dshift",
        "channels height width images window_height window_width norm relu",
        ("eps", ctypes.c_double),
    )


class AverageCall(ctypes.Structure):
    """Mirrors Average of the kernel."""

    _fields_ = _fields("x y", "channels pixels images")


class EnterCall(ctypes.Structure):
    """Mirrors Enter of the kernel."""

    _fields_ = _fields("x y", "images pixels channels")


class PlayedCall(ctypes.Structure):
    """Mirrors Call of the kernel."""

    _fields_ = _fields("function what", "")


class PoolingCall(ctypes.Structure):
    """Mirrors Pooling of the kernel."""

    _fields_ = _fields(
        "",
        "channels height width images out_height out_width window_height window_width down right "
        "top left",
    )


@functools.cache
def library() -> ctypes.CDLL:
    """The kernels; built on the first call on this machine."""
    # What is multiplied and added at once is rounded once, as in the libraries that torch uses.
    here = Path(__file__).parent
    lib = load_kernel(*(here / name for name in _SOURCES), flags=("-ffp-contract=fast",), fma=True)
    pointer, integer = ctypes.c_void_p, ctypes.c_int64
    for dtype in DTYPES.values():
        for name, arguments in {
            "convolve": [pointer, integer],
            "weight_gradient": [pointer, integer],
            "correlate": [pointer, integer],
            "gradient": [pointer, integer],
            "pad": [pointer, integer],
            "gather": [pointer, integer],
            "finish": [pointer, integer],
            "finish_gradient": [pointer, integer],
            "enter": [pointer, integer],
            "average": [pointer, integer],
            "average_gradient": [pointer, integer],
            "pool": [pointer, pointer, pointer, pointer, integer],
            "pool_gradient": [pointer, pointer, pointer, pointer, integer],
        }.items():
            function = getattr(lib, f"lean_{name}_{dtype}")
            function.restype, function.argtypes = None, arguments
    lib.lean_play.restype, lib.lean_play.argtypes = None, [pointer, integer, integer]
    lib.lean_rank.restype = None
    lib.lean_rank.argtypes = [pointer, pointer, integer, integer, integer, *[pointer] * 3]
    return lib


@functools.cache
def function_of(name: str, dtype: torch.dtype) -> Any:
    """A kernel for numbers of a type."""
    return getattr(library(), f"lean_{name}_{DTYPES[dtype]}")


class Recorder:
    """Within it, kernels are called as ever; afterwards :meth:`play` makes the same calls again.

    They read and write the same memory, which is kept. What they do not write, the caller puts
    there.
    """

    def __init__(self) -> None:
        self._calls: list[tuple[Any, ctypes.Structure]] = []
        self.kept: list[Tensor] = []
        """All that was made."""
        self._played: Any = None

    def __enter__(self) -> Recorder:
        assert getattr(_now, "recorder", None) is None
        _now.recorder = self
        return self

    def __exit__(self, *_: object) -> None:
        _now.recorder = None
        addresses = (
            PlayedCall(ctypes.cast(function, ctypes.c_void_p).value, ctypes.addressof(structure))
            for function, structure in self._calls
        )
        self._played = (PlayedCall * len(self._calls))(*addresses)

    def add(self, function: Any, structure: ctypes.Structure) -> None:
        """A call was made."""
        self._calls.append((function, structure))

    def play(self) -> None:
        """Make all calls again."""
        library().lean_play(
            ctypes.addressof(self._played), len(self._played), torch.get_num_threads()
        )


_now = threading.local()
"""``recorder``: the one that is at work in this thread."""


def run(name: str, like: Tensor, structure: ctypes.Structure) -> None:
    """Call a kernel; a recorder notes it."""
    function = function_of(name, like.dtype)
    function(ctypes.addressof(structure), torch.get_num_threads())
    recorder = getattr(_now, "recorder", None)
    if recorder is not None:
        recorder.add(function, structure)


def empty(like: Tensor, *shape: int) -> Tensor:
    """Memory for a kernel to write to; a recorder keeps it."""
    made = like.new_empty(shape)
    recorder = getattr(_now, "recorder", None)
    if recorder is not None:
        recorder.kept.append(made)
    return made


def at(tensor: Tensor | None) -> int | None:
    """Where a tensor begins, if there is one."""
    return None if tensor is None else tensor.data_ptr()

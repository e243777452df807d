"""Convolutions and linear layers of all weights: torch's results and gradients, for all shapes."""

from __future__ import annotations

from itertools import cycle, product

import pytest
import torch
from lean_nets import (
    F32,
    F64,
    SHAPES,
    Shape,
    assert_all_same,
    assert_no_thread_counts,
    by_layer,
    drawn,
    torchs,
)
from torch.nn import functional as F  # noqa: N812 - as everybody does

from compilers import needs_compiler
from dessilbi.lean import available, examples_last, program
from dessilbi.lean._kernel import Geometry
from dessilbi.lean.layer import Wanted
from dessilbi.lean.layers import Convolution, Linear
from dessilbi.optim._native import KernelBuildError

pytestmark = needs_compiler

# Winograd: every remainder of rows and columns, tiles that reach over the edge on all sides.
WIDE = (8, 9, 13, 16, 40, 70)
PLACES = (
    ((1, 1), 1), ((3, 3), 0), ((2, 5), 2), ((9, 8), 1), ((4, 1), 3), ((6, 7), 0), ((5, 5), 3),
    ((1, 6), 2), ((8, 9), 0), ((7, 2), 1), ((9, 8), 2),
)  # fmt: skip
WINOGRAD: list[Shape] = [
    (images, inputs, outputs, size, (3, 3), (1, 1), (padding, padding))
    for (inputs, outputs), images, (size, padding) in zip(
        product(WIDE, WIDE), cycle((16, 32, 64)), cycle(PLACES), strict=False
    )
]
# Gradients of weights: few and many outputs, runs of few and many numbers.
OUTPUTS: list[Shape] = [
    (images, inputs, outputs, size, window, (1, 1), padding)
    for outputs in (1, 2, 3, 5, 8, 16, 17, 33, 64, 70)
    for images, inputs, size, window, padding in (
        (16, 3, (5, 6), (3, 3), (1, 1)),
        (19, 7, (2, 9), (1, 1), (0, 0)),
        (37, 2, (2, 30), (2, 3), (0, 0)),  # 1036 = 8 * 128 + 12 numbers
        (64, 1, (3, 33), (1, 2), (0, 1)),  # 2048 = 16 * 128
    )
]


def assert_torchs(shape: Shape, dtype: torch.dtype, *, bias: bool) -> None:
    n, c, o, size, window, stride, padding = shape
    x, W, b = drawn((n, c, *size), (o, c, *window), (o,), dtype=dtype)
    inputs = [x, W, b] if bias else [x, W]
    wanted = torchs(lambda x, W, b=None: F.conv2d(x, W, b, stride, padding), *inputs)
    layer = Convolution((0,), 1, "W", "b" if bias else None, Geometry(stride, padding))
    found, gradients = by_layer(layer, {"W": W, "b": b} if bias else {"W": W}, x)
    assert_all_same([*found, *gradients.values()], wanted)


@pytest.mark.parametrize("dtype", [F64, F32])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_convolution_is_torchs(shape: Shape, bias: bool, dtype: torch.dtype) -> None:
    assert_torchs(shape, dtype, bias=bias)


@pytest.mark.parametrize("dtype", [F64, F32])
@pytest.mark.parametrize("shape", WINOGRAD)
def test_a_convolution_in_fewer_multiplications_is_torchs(shape: Shape, dtype: torch.dtype) -> None:
    assert_torchs(shape, dtype, bias=sum(shape[1:3]) % 2 == 0)


@pytest.mark.parametrize("dtype", [F64, F32])
@pytest.mark.parametrize("shape", OUTPUTS)
def test_any_number_of_outputs_is_torchs(shape: Shape, dtype: torch.dtype) -> None:
    assert_torchs(shape, dtype, bias=True)


@pytest.mark.parametrize("dtype", [F64, F32])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    "shape", [(37, 50, 20), (16, 8, 8), (9, 784, 3), (64, 1, 70), (128, 33, 1), (1, 5, 17)]
)
def test_a_linear_layer_is_torchs(
    shape: tuple[int, int, int], bias: bool, dtype: torch.dtype
) -> None:
    n, c, o = shape
    x, W, b = drawn((n, c), (o, c), (o,), dtype=dtype)
    wanted = torchs(F.linear, *([x, W, b] if bias else [x, W]))
    layer = Linear((0,), 1, "W", "b" if bias else None)
    found, gradients = by_layer(layer, {"W": W, "b": b} if bias else {"W": W}, x)
    assert_all_same([*found, *gradients.values()], wanted)


@pytest.mark.parametrize("inputs", [1, 8])  # 8: in fewer multiplications
@pytest.mark.parametrize("outputs", [12, 40])
def test_a_long_sum_stays_exact(inputs: int, outputs: int) -> None:
    # A hundred thousand numbers of one sign: where rounding adds up, if it ever does.
    x, W = (t.abs() for t in drawn((128, inputs, 30, 30), (outputs, inputs, 3, 3), dtype=F32))
    wanted = torchs(lambda x, W: F.conv2d(x, W), x, W)
    found, gradients = by_layer(Convolution((0,), 1, "W", None), {"W": W}, x)
    assert_all_same([*found, *gradients.values()], wanted)


def test_weights_may_lie_in_memory_as_they_like() -> None:
    x, W = drawn((16, 9, 6, 5), (10, 9, 3, 3))
    wanted = torchs(lambda x, W: F.conv2d(x, W), x, W)
    for layout in (W.to(memory_format=torch.channels_last), W.flip(0).flip(0).mT.contiguous().mT):
        assert not layout.is_contiguous()
        layer = Convolution((0,), 1, "W", None)
        assert not layer.recordable({"W": layout})
        found, gradients = by_layer(layer, {"W": layout}, x)
        assert_all_same([*found, *gradients.values()], wanted)


def test_what_is_not_asked_for_is_not_made() -> None:
    x, W, b = drawn((16, 3, 6, 5), (4, 3, 3, 3), (4,))
    layer = Convolution((0,), 1, "W", "b")
    weights = {"W": W, "b": b}
    y, kept = layer.forward(weights, examples_last(x))
    for names in ({"W"}, {"b"}, set()):
        wanted = Wanted(inputs=False, weights=frozenset(names))
        assert layer.backward(weights, kept, y, wanted) == (None,)
        assert wanted.found.keys() == names


@pytest.mark.parametrize(
    "shape",
    [
        (64, 24, 40, (16, 16), (3, 3), (1, 1), (1, 1)),  # Winograd; many outputs
        (37, 4, 24, (16, 20), (3, 3), (1, 1), (1, 1)),  # many outputs
        (37, 24, 4, (16, 20), (3, 3), (1, 1), (1, 1)),  # few
        (61, 5, 7, (30, 29), (5, 5), (2, 1), (2, 0)),  # few; a rest of images
    ],
)
@pytest.mark.parametrize("dtype", [F64, F32])
def test_the_number_of_threads_changes_no_bit(shape: Shape, dtype: torch.dtype) -> None:
    n, c, o, size, window, stride, padding = shape
    x, W, b = drawn((n, c, *size), (o, c, *window), (o,), dtype=dtype)
    layer = Convolution((0,), 1, "W", "b", Geometry(stride, padding))

    def passes() -> list[torch.Tensor]:
        found, gradients = by_layer(layer, {"W": W, "b": b}, x)
        assert found[0].numel() * W[0].numel() > 2**23  # two helpers pay for themselves
        return [*found, *gradients.values()]

    assert_no_thread_counts(passes)


def test_without_a_compiler_there_are_no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise KernelBuildError("no compiler")

    assert available()
    monkeypatch.setattr(program, "library", fail)
    assert not available()


def test_only_plain_floats_on_the_cpu_are_for_the_kernels() -> None:
    assert available([torch.zeros(1), torch.zeros(1, dtype=F64)])
    assert not available([torch.zeros(1), torch.zeros(1, dtype=torch.bfloat16)])
    assert not available([torch.zeros(1, device="meta")])

"""Layers of which only some weights are there: as if the others were zero."""

from __future__ import annotations

import pytest
import torch
from lean_nets import (
    F32,
    F64,
    SHAPES,
    Shape,
    assert_all_same,
    assert_no_thread_counts,
    assert_same,
    by_layer,
    drawn,
    torchs,
)
from torch.nn import functional as F  # noqa: N812 - as everybody does

from compilers import needs_compiler
from dessilbi.lean import Ranked, UnsuitedError, _kernel
from dessilbi.lean._kernel import Geometry
from dessilbi.lean.layers import Convolution, Finish, Linear

pytestmark = needs_compiler


def ranked_by_chance(W: torch.Tensor, highest: int) -> tuple[torch.Tensor, Ranked]:
    levels = (torch.rand(W.shape, generator=torch.Generator().manual_seed(1)) * 255).byte()
    return levels, Ranked(levels, highest)


@pytest.mark.parametrize("level", [0, 60, 130, 200])
@pytest.mark.parametrize("shape", SHAPES)
def test_weights_that_are_not_there_are_zero(shape: Shape, level: int) -> None:
    n, c, o, size, window, stride, padding = shape
    dtype = F64 if level != 130 else F32
    x, W, b = drawn((n, c, *size), (o, c, *window), (o,), dtype=dtype)
    levels, ranked = ranked_by_chance(W, 200)
    inside = levels <= level
    bias = level != 60
    wanted = torchs(
        lambda x, W, b=None: F.conv2d(x, W * inside, b, stride, padding),
        *([x, W, b] if bias else [x, W]),
    )
    wanted[2] = wanted[2].flatten()[ranked.index]
    layer = Convolution((0,), 1, "W", "b" if bias else None, Geometry(stride, padding))
    weights = {"W": (ranked.at(level), W.flatten()[ranked.index]), "b": b}
    found, gradients = by_layer(layer, weights, x)
    assert_all_same([*found, *(gradients[name] for name in layer.weights)], wanted)


@pytest.mark.parametrize("dtype", [F64, F32])
@pytest.mark.parametrize("level", [0, 40, 90])
def test_a_linear_layer_of_few_weights(level: int, dtype: torch.dtype) -> None:
    x, W, b = drawn((37, 50), (20, 50), (20,), dtype=dtype)
    levels, ranked = ranked_by_chance(W, 90)
    wanted = torchs(lambda x, W, b: F.linear(x, W * (levels <= level), b), x, W, b)
    weights = {"W": (ranked.at(level), W.flatten()[ranked.index]), "b": b}
    found, gradients = by_layer(Linear((0,), 1, "W", "b"), weights, x)
    assert_all_same([*found, gradients["b"]], [wanted[0], wanted[1], wanted[3]])
    assert_same(gradients["W"], wanted[2].flatten()[ranked.index])


def test_a_level_is_the_beginning_of_every_row() -> None:
    levels = torch.tensor([[9, 3, 200], [255, 3, 0]], dtype=torch.uint8)
    ranked = Ranked(levels, 100)
    assert ranked.index.tolist() == [1, 0, 5, 4]
    assert ranked.at(3).lists(1, 1).count.tolist() == [1, 2]
    assert ranked.at(9).lists(1, 1).count.tolist() == [2, 2]
    assert ranked.at(0).lists(1, 1, turned=True).count.tolist() == [0, 0, 1]
    values = torch.ones(4)
    x = torch.tensor([[1.0], [10.0], [100.0]])[:, None, None]
    y = _kernel.correlate(x, values, None, ranked.at(3).lists(1, 1), (1, 1), (1, 1))
    assert y.flatten().tolist() == [10, 110]


def test_a_layer_without_any_weight_gives_its_bias() -> None:
    x, W, b = drawn((16, 3, 5, 5), (4, 3, 3, 3), (4,))
    ranked = Ranked(torch.full(W.shape, 255, dtype=torch.uint8), 100)
    weights = {"W": (ranked.at(100), W.flatten()[ranked.index]), "b": b}
    (y, dx), gradients = by_layer(Convolution((0,), 1, "W", "b"), weights, x)
    assert torch.equal(y, b[:, None, None].expand_as(y))
    assert not dx.any()
    assert gradients["W"].numel() == 0


@pytest.mark.parametrize("name", ["b", "scale"])
def test_some_of_a_bias_or_a_norm_is_refused(name: str) -> None:
    x, W, b = drawn((16, 3, 5, 5), (3, 3, 1, 1), (3,))
    some = (Ranked(torch.zeros(3, 1, dtype=torch.uint8), 0).at(0), b)
    weights = {"W": W, "b": b, "scale": b, "shift": b, name: some}
    layer = (
        Convolution((0,), 1, "W", "b")
        if name == "b"
        else Finish((0,), 1, "n", torch.nn.BatchNorm2d(3), ("scale", "shift"))
    )
    assert not layer.recordable(weights)
    with pytest.raises(UnsuitedError, match=name):
        by_layer(layer, weights, x)


@pytest.mark.parametrize("dtype", [F64, F32])
def test_the_number_of_threads_changes_no_bit(dtype: torch.dtype) -> None:
    x, W, b = drawn((67, 12, 28, 30), (20, 12, 3, 3), (20,), dtype=dtype)
    _, ranked = ranked_by_chance(W, 100)
    weights = {"W": (ranked.at(80), W.flatten()[ranked.index]), "b": b}
    layer = Convolution((0,), 1, "W", "b", Geometry((1, 1), (1, 1)))

    def passes() -> list[torch.Tensor]:
        found, gradients = by_layer(layer, weights, x)
        return [*found, *gradients.values()]

    # Two helpers pay for themselves.
    assert int(ranked.at(80).lists(30, 32).count.sum()) * 67 * 28 * 30 > 2**23
    assert_no_thread_counts(passes)

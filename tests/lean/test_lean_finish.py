"""What comes between convolutions, in one go or by itself, and how a batch gets in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from lean_nets import (
    F32,
    F64,
    assert_all_same,
    assert_no_thread_counts,
    assert_same,
    by_layer,
    drawn,
    some_gradient,
    torchs,
)
from torch.nn import functional as F  # noqa: N812 - as everybody does

from compilers import needs_compiler
from dessilbi.lean import _kernel, examples_last
from dessilbi.lean._kernel import Geometry, Norm
from dessilbi.lean.layer import examples_first
from dessilbi.lean.layers import Average, MaxPool

if TYPE_CHECKING:
    from torch import Tensor

pytestmark = needs_compiler

Pair = tuple[int, int]
EPS = 1e-3
COMBINATIONS = [
    (norm, residual, window, relu)
    for norm in ("affine", "plain", None)
    for residual, window in [(False, (1, 1)), (True, (1, 1)), (False, (2, 2)), (False, (2, 3)),
                             (False, (3, 1)), (False, (7, 8))]
    for relu in (True, False)
]  # fmt: skip


def finished(
    x: Tensor, norm: Norm | None, residual: Tensor | None, window: Pair, relu: bool
) -> list[Tensor]:
    """Result and gradients of the kernel, as torch has them."""
    image = examples_last(x)
    beside = None if residual is None else examples_last(residual)
    done = _kernel.finish(image, norm, beside, window, relu)
    dy = examples_last(some_gradient(examples_first(done.y)))
    dx, dresidual, dscale, dshift = _kernel.finish_gradient(
        image, norm, done, dy, window, relu, residual is not None
    )
    found = [examples_first(done.y), examples_first(dx)]
    if residual is not None:
        found.append(examples_first(dresidual))
    if norm is not None and norm.scale is not None:
        assert dscale is not None
        assert dshift is not None
        found += [dscale, dshift]
    return found


def composed(norm: str | None, residual: bool, window: Pair, relu: bool, *inputs: Tensor) -> Tensor:
    x, *rest = inputs
    beside = rest.pop(0) if residual else 0.0
    if norm is not None:
        scale, shift = rest or (None, None)
        x = F.batch_norm(x, None, None, scale, shift, training=True, eps=EPS)
    x = F.max_pool2d(x + beside, window) if window != (1, 1) else x + beside
    return F.relu(x) if relu else x


@pytest.mark.parametrize("dtype", [F64, F32])
@pytest.mark.parametrize("images", [5, 16, 150])
@pytest.mark.parametrize(("norm", "residual", "window", "relu"), COMBINATIONS)
def test_all_in_one_go_is_torchs(
    norm: str | None, residual: bool, window: Pair, relu: bool, images: int, dtype: torch.dtype
) -> None:
    shape = (images, 3, 7, 8)  # no multiple of the windows
    x, beside, scale, shift = drawn(shape, shape, (3,), (3,), dtype=dtype)
    inputs = [x, *([beside] if residual else []), *([scale, shift] if norm == "affine" else [])]
    wanted = torchs(lambda *t: composed(norm, residual, window, relu, *t), *inputs)
    by = Norm(scale, shift, EPS) if norm == "affine" else Norm(None, None, EPS)
    found = finished(x, by if norm else None, beside if residual else None, window, relu)
    assert_all_same(found, wanted)


@pytest.mark.parametrize("dtype", [F64, F32])
def test_a_mean_far_from_zero_costs_hardly_a_digit(dtype: torch.dtype) -> None:
    (x,) = drawn((40, 3, 17, 15), dtype=dtype)  # 10200 numbers a channel: more than two pieces
    x = 3 * x + torch.tensor([100, -100, 0]).to(dtype)[:, None, None]
    scale, shift = torch.tensor([1.0, -2, 0.5]).to(dtype), torch.tensor([0.0, 3, 1]).to(dtype)
    wanted = torchs(lambda *t: composed("affine", False, (1, 1), False, *t), x, scale, shift)
    close = 1e-11 if dtype is F64 else 1e-3  # 100 against a deviation of 3
    assert_all_same(finished(x, Norm(scale, shift, EPS), None, (1, 1), False), wanted, close)
    done = _kernel.finish(examples_last(x), Norm(scale, shift, EPS), None, (1, 1), False)
    variance, mean = torch.var_mean(x.double(), (0, 2, 3), correction=0)
    assert done.mean is not None
    assert done.variance is not None
    assert_same(done.mean, mean)
    torch.testing.assert_close(done.variance.double(), variance, rtol=1e-5, atol=0)


@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize("window", [(2, 2), (2, 3)])
def test_of_equal_numbers_the_first_wins(window: Pair, relu: bool) -> None:
    x = torch.randint(-1, 3, (140, 3, 7, 8)).double()
    wanted = torchs(lambda x: composed(None, False, window, relu, x), x)
    for found, expected in zip(finished(x, None, None, window, relu), wanted, strict=True):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize("window", [(1, 1), (2, 2)])
def test_nan_passes_on(window: Pair, relu: bool) -> None:
    (x,) = drawn((20, 2, 4, 6))
    x[3, 1, 1, 0] = x[4, 0, 0, 0] = x[4, 0, 3, 5] = torch.nan
    wanted = torchs(lambda x: composed(None, False, window, relu, x), x)
    assert wanted[0].isnan().sum() == 3
    for found, expected in zip(finished(x, None, None, window, relu), wanted, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


def test_nan_stays_in_its_channel() -> None:
    (x,) = drawn((20, 2, 4, 6))
    x[3, 1, 1, 0] = torch.nan
    for found in finished(x, Norm(None, None, EPS), None, (2, 2), True):
        assert not found[:, 0].isnan().any()
        assert found[:, 1].isnan().any()


def test_infinity_passes_on() -> None:
    x = torch.full((16, 1, 2, 4), -torch.inf, dtype=F64)
    x[:, :, :, 2:] = torch.inf
    for relu in (True, False):
        assert torch.equal(
            finished(x, None, None, (2, 2), relu)[0], composed(None, False, (2, 2), relu, x)
        )


@pytest.mark.parametrize("dtype", [F64, F32])
@pytest.mark.parametrize(
    ("window", "stride", "padding"),
    [((2, 2), (2, 2), (0, 0)), ((3, 3), (2, 2), (1, 1)), ((2, 3), (1, 2), (1, 0)),
     ((3, 3), (1, 1), (1, 1)), ((2, 2), (3, 4), (0, 1)), ((1, 1), (2, 3), (0, 0))],
)  # fmt: skip
def test_pooling_is_torchs(window: Pair, stride: Pair, padding: Pair, dtype: torch.dtype) -> None:
    (x,) = drawn((19, 3, 9, 8), dtype=dtype)
    x = F.relu(x)  # many ties, of which the first wins
    x[5, 1, 4, 4] = torch.nan
    wanted = torchs(lambda x: F.max_pool2d(x, window, stride, padding), x)
    found, _ = by_layer(MaxPool((0,), 1, window, Geometry(stride, padding)), {}, x)
    for ours, torchs_ in zip(found, wanted, strict=True):
        # Where windows overlap, gradients are added up: in float32 that rounds.
        torch.testing.assert_close(ours, torchs_.to(dtype), rtol=1e-6, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [F64, F32])
@pytest.mark.parametrize("shape", [(9, 3, 5, 7), (32, 20, 1, 1), (1, 1, 8, 8)])
def test_averages_are_torchs(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    (x,) = drawn(shape, dtype=dtype)
    found, _ = by_layer(Average((0,), 1), {}, x)
    assert_all_same(found, torchs(lambda x: F.adaptive_avg_pool2d(x, 1), x))


@pytest.mark.parametrize("dtype", [F64, F32])
@pytest.mark.parametrize("shape", [(5,), (3, 17), (3, 2, 5, 9)])
def test_sums_are_torchs(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x, y = drawn(shape, shape, dtype=dtype)
    assert torch.equal(_kernel.total(x, y), x + y)
    assert torch.equal(_kernel.total(x, x), x + x)


@pytest.mark.parametrize("dtype", [F64, F32])
@pytest.mark.parametrize("images", [1, 7, 16, 19, 33])
@pytest.mark.parametrize("rest", [(1, 5, 4), (3, 8, 8), (2, 3, 3), (17, 4, 5), (16, 1, 1)])
def test_a_batch_gets_in_from_any_memory(
    rest: tuple[int, int, int], images: int, dtype: torch.dtype
) -> None:
    (x,) = drawn((images, *rest), dtype=dtype)
    c, h, w = rest
    layouts: list[Any] = [
        x,
        x.to(memory_format=torch.channels_last),
        x.permute(3, 1, 2, 0).contiguous().permute(3, 1, 2, 0),
        torch.cat([x, x], 2)[:, :, :h],
        torch.cat([x, x])[::2],
        x[:1].expand(images, c, h, w),
        x.flatten(1),
        x.flatten(1).t().contiguous().t(),
        x.flatten(2),
        x[..., None],
    ]
    for layout in layouts:
        into = layout.new_full((*layout.shape[1:], images), torch.nan)
        _kernel.enter(layout, into)
        assert torch.equal(into, layout.movedim(0, -1))


@pytest.mark.parametrize("dtype", [F64, F32])
@pytest.mark.parametrize("window", [(1, 1), (2, 2)])
def test_the_number_of_threads_changes_no_bit(window: Pair, dtype: torch.dtype) -> None:
    x, scale, shift = drawn((131, 6, 104, 104), (6,), (6,), dtype=dtype)
    assert x.numel() > 2**23  # two helpers pay for themselves
    norm = Norm(scale, shift, EPS)
    assert_no_thread_counts(lambda: finished(x, norm, None, window, True))
    layer = MaxPool((0,), 1, (3, 3), Geometry((2, 2), (1, 1)))
    assert_no_thread_counts(lambda: by_layer(layer, {}, x)[0])

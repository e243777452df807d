"""Layers with the images of a batch side by side: torch's results and gradients, for all shapes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as everybody does

from compilers import needs_compiler
from dessilbi.lab.models import make_model
from dessilbi.lean import LeanPasses, Ranked, _kernel, available, mode
from dessilbi.optim._native import KernelBuildError

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

pytestmark = needs_compiler

F64, F32 = torch.float64, torch.float32
CLOSE = {F64: 1e-12, F32: 2e-5}
# images, inputs, outputs, height, width, window, stride, padding
SHAPES = [
    (5, 3, 4, 8, 7, 3, 1, 1),
    (32, 3, 5, 9, 9, 3, 2, 1),
    (19, 4, 7, 11, 10, 5, 1, 0),
    (16, 2, 3, 8, 8, 1, 2, 0),
    (128, 1, 6, 28, 28, 5, 1, 2),
    (7, 3, 4, 9, 8, 3, 3, 2),
    (3, 2, 2, 5, 5, 2, 1, 2),  # more padding than the window reaches back
    (1, 1, 1, 3, 3, 3, 1, 0),
]


def same(found: Tensor, wanted: Tensor) -> None:
    scale = max(float(wanted.detach().abs().max()), 1e-30)
    torch.testing.assert_close(found / scale, wanted / scale, rtol=0, atol=CLOSE[wanted.dtype])


def drawn(*shapes: tuple[int, ...], dtype: torch.dtype) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]


def results(y: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    """The output and the gradients of some function of it."""
    # Zero on average would leave nothing but rounding of a bias' gradient.
    weights = torch.rand(y.shape, generator=torch.Generator().manual_seed(2)).to(y.dtype)
    return [y, *torch.autograd.grad(y, inputs, weights)]


@pytest.mark.parametrize("dtype", [F64, F32])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_convolution_is_torchs(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    n, c, o, h, w, k, stride, padding = shape
    inputs = drawn((n, c, h, w), (o, c, k, k), (o,), dtype=dtype)
    wanted = results(F.conv2d(*inputs, stride, padding), inputs)
    with LeanPasses():
        y = F.conv2d(*inputs, stride, padding)
    assert type(y.grad_fn).__name__ == "ConvolveBackward"
    for found, expected in zip(results(y, inputs), wanted, strict=True):
        same(found, expected)


@pytest.mark.parametrize("level", [0, 60, 130, 200])
@pytest.mark.parametrize("shape", SHAPES)
def test_weights_that_are_not_there_are_zero(shape: tuple[int, ...], level: int) -> None:
    n, c, o, h, w, k, stride, padding = shape
    x, W, b = drawn((n, c, h, w), (o, c, k, k), (o,), dtype=F64)
    levels = (torch.rand(W.shape) * 255).to(torch.uint8)
    ranked = Ranked(levels, 200)
    values = W.detach().flatten()[ranked.index].requires_grad_()
    with LeanPasses({W: (ranked.at(level), values)}):
        y = F.conv2d(x, W, b, stride, padding)
    inside = levels <= level
    wanted = results(F.conv2d(x, W * inside, b, stride, padding), [x, W, b])
    wanted[2] = (wanted[2] * inside).flatten()[ranked.index]
    for found, expected in zip(results(y, [x, values, b]), wanted, strict=True):
        same(found, expected)


def test_a_linear_layer_of_few_weights() -> None:
    x, W, b = drawn((37, 50), (20, 50), (20,), dtype=F64)
    levels = (torch.rand(W.shape) * 255).to(torch.uint8)
    ranked = Ranked(levels, 90)
    values = W.detach().flatten()[ranked.index].requires_grad_()
    with LeanPasses({W: (ranked.at(40), values)}):
        y = F.linear(x, W, b)
    inside = levels <= 40
    wanted = results(F.linear(x, W * inside, b), [x, b])
    for found, expected in zip(results(y, [x, b]), wanted, strict=True):
        same(found, expected)
    (gradient,) = torch.autograd.grad(F.linear(x, W * inside, b).sum(), W)
    with LeanPasses({W: (ranked.at(40), values)}):
        (found,) = torch.autograd.grad(F.linear(x, W, b).sum(), values)
    same(found, gradient.flatten()[ranked.index])


@pytest.mark.parametrize(
    ("window", "stride", "padding"), [(2, None, 0), (3, 2, 1), ((2, 3), (1, 2), (1, 0)), (3, 1, 1)]
)
def test_pooling_is_torchs(window: Any, stride: Any, padding: Any) -> None:
    (x,) = drawn((6, 3, 9, 8), dtype=F64)
    x = F.relu(x)  # many ties, of which the first wins
    x.retain_grad()
    wanted = results(F.max_pool2d(x, window, stride, padding), [x])
    with LeanPasses():
        y = F.max_pool2d(x, window, stride, padding)
    assert type(y.grad_fn).__name__ == "MaxPoolBackward"
    for found, expected in zip(results(y, [x]), wanted, strict=True):
        assert torch.equal(found, expected)


def test_pooling_passes_nan_on() -> None:
    x = torch.zeros(1, 1, 2, 4)
    x[0, 0, 1, 0], x[0, 0, 1, 3] = torch.nan, 5
    with LeanPasses():
        y = F.max_pool2d(x, 2)
    assert torch.equal(y.isnan(), torch.tensor([[[[True, False]]]]))
    assert y[0, 0, 0, 1] == 5


@pytest.mark.parametrize("dtype", [F64, F32])
@pytest.mark.parametrize("affine", [True, False])
def test_batchnorm_is_torchs(affine: bool, dtype: torch.dtype) -> None:
    norms = [nn.BatchNorm2d(3, affine=affine, dtype=dtype) for _ in range(2)]
    found = []
    for norm, around in zip(norms, (torch.no_grad, LeanPasses), strict=True):
        for p in norm.parameters():
            p.data.uniform_(0.5, 2, generator=torch.Generator().manual_seed(1))
        (x,) = drawn((11, 3, 7, 5), dtype=dtype)
        x = (3 * x + 100).detach().requires_grad_()  # far from zero
        if around is LeanPasses:
            with LeanPasses():
                y = norm(x)
            assert type(y.grad_fn).__name__ == "NormalizeBackward"
        else:
            y = norm(x)
        found.append([*results(y, [x, *norm.parameters()]), norm.running_mean, norm.running_var])
    for ours, torchs in zip(found[1], found[0], strict=True):
        scale = torchs.detach().abs().max()
        atol = 1e-10 if dtype is F64 else 1e-3  # 100 against a deviation of 3 costs digits
        torch.testing.assert_close(ours / scale, torchs / scale, rtol=0, atol=atol)


@pytest.mark.parametrize("name", ["vgg-4", "lenet-5", "lenet-300-100", "resnet-20"])
def test_whole_networks(name: str) -> None:
    channels, side = (1, 28) if name.startswith("lenet") else (3, 32)
    torch.manual_seed(0)
    net = make_model(name, num_classes=10, in_channels=channels, input_size=side).double()
    x = torch.randn(9, channels, side, side, dtype=F64)
    parameters = list(net.parameters())
    before = {key: value.clone() for key, value in net.state_dict().items()}
    wanted = results(net(x), parameters)
    after = {key: value.clone() for key, value in net.state_dict().items()}
    net.load_state_dict(before)
    with LeanPasses():
        y = net(x)
    for found, expected in zip(results(y, parameters), wanted, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-9)
    for key, value in net.state_dict().items():
        torch.testing.assert_close(value, after[key])


@pytest.mark.parametrize(
    "call",
    [
        lambda x, W: F.conv2d(x, W, dilation=2),
        lambda x, W: F.conv2d(x, W[:, :2], groups=2),
        lambda x, W: F.conv2d(x, W, padding="same"),
        lambda x, W: F.conv2d(x.half(), W.half()).double(),
        lambda x, W: F.conv2d(x[0], W),
        lambda x, W: F.max_pool2d(x, 2, ceil_mode=True),
        lambda x, W: F.max_pool2d(x, 2, dilation=2),
        lambda x, W: F.max_pool2d(x, 2, return_indices=True)[0],
        lambda x, W: F.batch_norm(x, torch.zeros(4), torch.ones(4)),
        lambda x, W: F.linear(x, W[0, 0, :, :2].repeat(1, 4)[:, :8]),
        lambda x, W: F.avg_pool2d(x, 2),
    ],
)
def test_what_the_kernels_do_not_know_runs_as_always(
    call: Callable[[Tensor, Tensor], Tensor],
) -> None:
    x, W = drawn((2, 4, 8, 8), (6, 4, 3, 3), dtype=F64)
    x = x.float().detach()
    W = W.float().detach()
    wanted = call(x, W)
    with LeanPasses():
        assert torch.equal(call(x, W), wanted)


def test_the_number_of_threads_changes_nothing() -> None:
    inputs = drawn((64, 8, 32, 32), (12, 8, 3, 3), (12,), dtype=F32)
    threads = torch.get_num_threads()
    found = []
    try:
        for n in (1, 3):
            torch.set_num_threads(n)
            with LeanPasses():
                y = F.conv2d(*inputs, 1, 1)
            found.append(results(y, inputs))
    finally:
        torch.set_num_threads(threads)
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


def test_without_a_compiler_there_are_no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise KernelBuildError("no compiler")

    assert available()
    monkeypatch.setattr(mode, "library", fail)
    assert not available()


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

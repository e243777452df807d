"""What torch makes of a layer or a network, what the kernels make of it, how far they differ."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from dessilbi.lean import Program, examples_last
from dessilbi.lean.layer import Wanted, examples_first

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dessilbi.lean.layer import Layer, Weight

F64, F32 = torch.float64, torch.float32
CLOSE = {F64: 1e-12, F32: 2e-5}
"""How far a result may be from torch's in float64, relative to the largest."""

Pair = tuple[int, int]
# images, inputs, outputs, size, window, stride, padding
Shape = tuple[int, int, int, Pair, Pair, Pair, Pair]
SHAPES: list[Shape] = [
    (5, 3, 4, (8, 7), (3, 3), (1, 1), (1, 1)),
    (32, 3, 5, (9, 9), (3, 3), (2, 2), (1, 1)),
    (19, 4, 7, (11, 10), (5, 5), (1, 1), (0, 0)),
    (16, 2, 3, (8, 8), (1, 1), (2, 2), (0, 0)),
    (128, 1, 6, (28, 28), (5, 5), (1, 1), (2, 2)),
    (7, 3, 4, (9, 8), (3, 3), (3, 3), (2, 2)),
    (3, 2, 2, (5, 5), (2, 2), (1, 1), (2, 2)),  # more padding than the window reaches back
    (1, 1, 1, (3, 3), (3, 3), (1, 1), (0, 0)),
    (16, 5, 6, (7, 9), (2, 3), (1, 1), (0, 1)),
    (16, 9, 20, (7, 9), (3, 1), (1, 2), (2, 0)),
    (17, 3, 9, (4, 11), (1, 5), (3, 2), (0, 4)),
    (24, 8, 8, (9, 7), (3, 3), (2, 1), (1, 1)),
    (24, 8, 8, (9, 7), (3, 3), (1, 3), (0, 1)),
    (16, 9, 17, (3, 4), (3, 3), (2, 2), (4, 5)),  # windows that see nothing but padding
    (33, 3, 2, (4, 4), (2, 2), (3, 3), (3, 3)),
    (16, 2, 3, (6, 6), (4, 4), (4, 4), (0, 0)),
    (16, 2, 3, (5, 6), (1, 1), (1, 1), (2, 1)),
    (16, 12, 14, (5, 5), (3, 3), (1, 1), (1, 0)),
    (16, 12, 14, (5, 5), (3, 3), (1, 1), (0, 3)),
]


def assert_same(
    found: Tensor, wanted: Tensor, close: float | None = None, least: float = 1e-30
) -> None:
    assert found.shape == wanted.shape
    atol = CLOSE[found.dtype] if close is None else close
    scale = max(float(wanted.detach().abs().max()), least)
    torch.testing.assert_close(
        found.detach().double() / scale, wanted.detach().double() / scale, rtol=0, atol=atol
    )


def assert_all_same(found: list[Tensor], wanted: list[Tensor], close: float | None = None) -> None:
    for ours, torchs in zip(found, wanted, strict=True):
        assert_same(ours, torchs, close)


def drawn(*shapes: tuple[int, ...], dtype: torch.dtype = F64) -> list[Tensor]:
    """Numbers that float32 has as well, so that results of both can be compared."""
    torch.manual_seed(0)
    return [torch.randn(shape).to(dtype) for shape in shapes]


def some_gradient(y: Tensor) -> Tensor:
    """Positive: zero on average would leave nothing but rounding of a bias' gradient."""
    return torch.rand(y.shape, generator=torch.Generator().manual_seed(2)).to(y.dtype)


def torchs(function: Callable[..., Tensor], *inputs: Tensor) -> list[Tensor]:
    """The result of a function and its gradients by all inputs, in float64."""
    leaves = [x.detach().double().requires_grad_() for x in inputs]
    y = function(*leaves)
    return [y.detach(), *torch.autograd.grad(y, leaves, some_gradient(y))]


def by_layer(
    layer: Layer, weights: dict[str, Weight], *inputs: Tensor
) -> tuple[list[Tensor], dict[str, Tensor]]:
    """The result of a layer and its gradients by the inputs, as torch has them; by the weights."""
    y, kept = layer.forward(weights, *(examples_last(x) for x in inputs))
    wanted = Wanted(True, frozenset(weights))
    dy = examples_last(some_gradient(examples_first(y)))
    gradients = layer.backward(weights, kept, dy, wanted)
    return [examples_first(t) for t in (y, *gradients) if t is not None], wanted.found


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def assert_no_thread_counts(call: Callable[[], list[Tensor]]) -> None:
    """Assert that three threads give the same bits as one."""
    found = []
    for count in (1, 3):
        with threads(count):
            found.append(call())
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


def of(net: nn.Module) -> dict[str, Any]:
    """The weights of a network, as a program takes them."""
    return {name: p.detach() for name, p in net.named_parameters()}


def by_torch(net: nn.Module, x: Tensor) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
    """Output, gradients by weights that took part, and buffers after a pass by torch.

    The network itself has the buffers that it had.
    """
    before = {name: b.clone() for name, b in net.named_buffers()}
    params = {name: p for name, p in net.named_parameters() if p.requires_grad}
    torch.manual_seed(1)
    y = net(x)
    found = torch.autograd.grad(y, list(params.values()), some_gradient(y), allow_unused=True)
    gradients = {n: g for n, g in zip(params, found, strict=True) if g is not None}
    after = {name: b.clone() for name, b in net.named_buffers()}
    for name, buffer in net.named_buffers():
        buffer.copy_(before[name])
    return y.detach(), gradients, after


def assert_torchs(
    net: nn.Module, x: Tensor, close: float = 1e-10, program: Program | None = None
) -> Program:
    """Assert that a network's program does what torch does; statistics of BatchNorm follow."""
    program = program or Program(net)
    output, gradients, buffers = by_torch(net, x)
    wanted = [name for name, p in net.named_parameters() if p.requires_grad]
    torch.manual_seed(1)
    done = program.run(program.enter(x), of(net), wanted, remember=True)
    assert_same(done.output, output, close)
    found = done.backward(some_gradient(output))
    assert found.keys() == gradients.keys()
    # That of a bias before BatchNorm is zero but for rounding.
    least = max((float(g.abs().max()) for g in gradients.values()), default=1.0) / 100
    for name, gradient in gradients.items():
        assert_same(found[name], gradient, close, least)
    for name, buffer in net.named_buffers():
        torch.testing.assert_close(buffer, buffers[name], rtol=close, atol=close)
    return program


def kinds(program: Program) -> list[str]:
    """What its layers are."""
    return [type(layer).__name__ for layer in program.layers]


class Written(nn.Module):
    """A network whose forward pass is a function of it and the batch."""

    def __init__(self, forward: Callable[..., Any], **layers: nn.Module) -> None:
        super().__init__()
        for name, layer in layers.items():
            self.add_module(name, layer)
        self._forward = forward

    def forward(self, x: Tensor) -> Any:
        return self._forward(self, x)

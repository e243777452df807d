"""Whatever a network does, the kernels do the same or leave it to torch."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch
from lean_nets import F64, Written, assert_torchs, of
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - as everybody does

from compilers import needs_compiler
from dessilbi.lean import Program, Programs, program

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = needs_compiler


def conv(inputs: int = 3) -> nn.Conv2d:
    return nn.Conv2d(inputs, 4, 3, padding=1)


def body(forward: Callable[[Any, Tensor], Tensor], numbers: int = 256, **layers: nn.Module) -> Any:
    """A convolution and another one ahead of a linear layer; between them, anything."""
    return Written(
        lambda net, x: net.head(forward(net, x)),
        c=conv(), d=conv(), head=nn.Linear(numbers, 5), **layers,
    )  # fmt: skip


def layers(*between: nn.Module) -> nn.Module:
    return nn.Sequential(conv(), *between, nn.Flatten(), nn.Linear(256, 5))


class ThroughTheSign(torch.autograd.Function):
    """Its gradient is not that of what it computes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.sign()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


def without_gradient(net: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        y = net.c(x)
    return y.flatten(1)


def in_halves(net: Any, x: Tensor) -> Tensor:
    a, b = net.c(x).chunk(2, 1)
    return torch.cat([b, a.sigmoid()], 1).flatten(1)


def by_size(net: Any, x: Tensor) -> Tensor:
    images, channels, height, width = net.c(x).shape
    return net.d(x).view(images, channels * height * width)


def added_in_place(net: Any, x: Tensor) -> Tensor:
    y = net.c(x)
    y += net.d(x)
    return y.flatten(1)


def stored(net: Any, x: Tensor) -> Tensor:
    net.last = net.c(x)
    return net.last.flatten(1)


def no_parameter() -> Any:
    net = body(lambda net, x: net.c(x).flatten(1))
    weight = net.c.weight.detach().double()
    del net.c.weight
    net.c.weight = weight
    return net


def with_attribute(value: Any) -> Any:
    net = body(lambda net, x: net.c(x).flatten(1))
    net.anything = value
    return net


def patched() -> nn.Module:
    net: Any = layers()
    plain = net[0].forward
    net[0].forward = lambda x: plain(x).detach() + 0 * plain(x)
    return net


ODD: dict[str, Callable[[], nn.Module]] = {
    "number of a batch": lambda: body(lambda net, x: (net.c(x) * x.mean().item()).flatten(1)),
    "unpacked size": lambda: body(by_size),
    "a sum in place": lambda: body(added_in_place),
    "a keyword": lambda: body(lambda net, x: F.relu(input=net.c(x)).flatten(1)),
    "another keyword": lambda: body(lambda net, x: torch.flatten(net.c(x), start_dim=1)),
    "detached": lambda: body(lambda net, x: (net.c(x).detach() + net.d(x)).flatten(1)),
    "nothing to cast": lambda: body(lambda net, x: net.c(x).double().contiguous().flatten(1)),
    "interpolated": lambda: body(
        lambda net, x: F.interpolate(F.avg_pool2d(net.c(x), 2), size=x.shape[2:]).flatten(1)
    ),
    "a mask": lambda: body(lambda net, x: torch.where(net.c(x) > 0, net.d(x), x[:, :1]).flatten(1)),
    "a slice": lambda: body(lambda net, x: net.c(x)[:, 1:3, ::2].flatten(1), 64),
    "gated": lambda: body(lambda net, x: (net.c(x) * net.d(x).sigmoid()).flatten(1)),
    "stored": lambda: body(stored),
    "random numbers": lambda: body(lambda net, x: torch.rand_like(net.c(x)).flatten(1)),
    "softmax over examples": lambda: body(lambda net, x: net.c(x).softmax(0).flatten(1)),
    "examples mixed": lambda: body(lambda net, x: (net.c(x) + net.d(x).flip(0)).flatten(1)),
    "examples folded": lambda: body(lambda net, x: net.c(x).reshape(len(net.c.bias) * 16, -1), 64),
    "a view across examples": lambda: body(lambda net, x: net.c(x).view(x.size(0) * 4, -1), 64),
}  # fmt: skip
ODDER: dict[str, Callable[[], nn.Module]] = {
    "LeakyReLU in place": lambda: layers(nn.LeakyReLU(0.1, inplace=True)),
    "Dropout in place": lambda: layers(nn.Dropout(0.3, inplace=True)),
    "a method in place": lambda: body(lambda net, x: net.c(x).relu_().flatten(1)),
    "halves": lambda: body(in_halves),
    "largest": lambda: body(lambda net, x: net.c(x).flatten(2).max(2)[0], 4),
    "no gradient": lambda: body(without_gradient),
    "a gradient of its own": lambda: body(lambda net, x: ThroughTheSign.apply(net.c(x)).flatten(1)),
    "a sum with a number": lambda: body(lambda net, x: (net.c(x) + x.mean().item()).flatten(1)),
    "a sum of sizes": lambda: body(
        lambda net, x: net.c(x).view(x.size(0), (x.size(2) + x.size(3)) * 16)
    ),
    "a fixed number of examples": lambda: body(lambda net, x: net.c(x).view(40, 256)),
    "no parameter": no_parameter,
    "an attribute with a history": lambda: with_attribute(torch.ones(2, requires_grad=True) * 2),
    "a lock": lambda: with_attribute(threading.Lock()),
    "a scale without a shift": lambda: layers(nn.BatchNorm2d(4, bias=False)),
    "a row of numbers": lambda: Written(
        lambda net, x: (lambda v: torch.stack([v, 2 * v]))(net.c(x).mean((1, 2, 3))), c=conv()
    ),
    "forward of an instance": patched,
}


def assert_faithful(net: nn.Module, x: Tensor) -> None:
    if Programs(net, 1).get((x,), 0) is not None:
        assert_torchs(net, x)


@pytest.mark.parametrize("make", ODD.values(), ids=ODD)
def test_odd_networks(make: Callable[[], nn.Module]) -> None:
    assert_faithful(make().double(), torch.randn(16, 3, 8, 8, dtype=F64))


@pytest.mark.parametrize("make", ODDER.values(), ids=ODDER)
def test_odder_networks(make: Callable[[], nn.Module]) -> None:
    assert_faithful(make().double(), torch.randn(40, 3, 8, 8, dtype=F64))


def test_hooks_of_all_modules_are_refused() -> None:
    hook = nn.modules.module.register_module_full_backward_hook(lambda *_: None)
    try:
        assert Programs(layers(), 1).get((torch.randn(16, 3, 8, 8),), 0) is None
    finally:
        hook.remove()


def test_a_batch_that_asks_for_its_gradient_is_torchs() -> None:
    x = torch.randn(16, 3, 8, 8, requires_grad=True)
    assert Programs(layers(), 1).get((x,), 0) is None


def test_a_change_of_precision_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    net, x = layers(), torch.randn(16, 3, 8, 8)
    programs = Programs(net, 100)
    first = programs.get((x,), 0)
    assert first is not None
    first.enter(x)
    found = programs.get((x.double(),), 1)
    assert found is None
    net.double()
    found = programs.get((x.double(),), 2)
    entered = []
    monkeypatch.setattr(program, "enter", lambda x, into: entered.append(into.dtype is x.dtype))
    if found is not None:
        found.enter(x.double())
    assert all(entered)


@pytest.mark.parametrize("shape", [(16, 5, 8, 8), (16, 3, 9, 9)])
def test_a_batch_of_a_wrong_shape_is_an_error(shape: tuple[int, ...]) -> None:
    net = layers(nn.ReLU())
    with pytest.raises(RuntimeError):
        net(torch.randn(shape))
    made = Program(net)
    with pytest.raises(RuntimeError):
        made.run(made.enter(torch.randn(shape)), of(net), [])


def test_a_norm_that_is_called_twice_remembers_in_order() -> None:
    def forward(net: Any, x: Tensor) -> Tensor:
        a, b = net.norm(net.c(x)), net.norm(net.d(x)).relu()
        return a + b

    net = Written(forward, c=conv(), d=conv(), norm=nn.BatchNorm2d(4)).double()
    assert_faithful(net, torch.randn(16, 3, 8, 8, dtype=F64))


def test_infinity_has_a_gradient() -> None:
    net = nn.Sequential(conv(), nn.MaxPool2d(2)).double()
    net[0].bias.data[0] = -torch.inf
    x = torch.randn(16, 3, 8, 8, dtype=F64)
    made = Program(net)
    done = made.run(made.enter(x), of(net), ["0.bias"])
    y = net(x)
    (wanted,) = torch.autograd.grad(y, net[0].bias, torch.ones_like(y))
    assert torch.equal(done.backward(torch.ones_like(done.output))["0.bias"], wanted)


@pytest.mark.parametrize(
    "forward",
    [lambda net, x: (net.c(x) * torch.ones(8)).flatten(1), stored],
    ids=["ones", "stored"],
)
def test_reading_a_network_leaves_nothing_in_it(forward: Callable[[Any, Tensor], Tensor]) -> None:
    net = body(forward)
    before = set(vars(net))
    Programs(net, 1).get((torch.randn(16, 3, 8, 8),), 0)
    assert set(vars(net)) == before


def at_the_kink(batch: int) -> tuple[nn.Sequential, Tensor]:
    """A network whose ReLUs see, for each example, sums that are zero but for their rounding."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(300, batch), nn.ReLU(), nn.Linear(batch, 4))
    x = torch.randn(batch, 300)
    with torch.no_grad():  # of unit k the sum of example k
        first = net[0]
        assert isinstance(first, nn.Linear)
        exact = (first.weight.double() * x.double()).sum(1)
        first.bias.copy_(-exact)
    return net, x


def test_a_relu_that_falls_to_the_other_side_does_not_refuse_a_program() -> None:
    net, x = at_the_kink(16)
    program = Program(net)
    assert program._compare(x) == (True, False), "or nothing is tested here"
    assert program.agrees(x)
    assert Programs(net).get((x,), 0) is not None


def test_a_network_of_other_gradients_is_refused_all_the_same() -> None:
    net, x = body(without_gradient), torch.randn(16, 3, 8, 8)
    assert Program(net)._compare(x) == (True, False)
    assert Programs(net).get((x,), 0) is None

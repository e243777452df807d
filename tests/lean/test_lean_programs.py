"""Programs of networks: outputs, gradients and statistics are torch's."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
import torch
from lean_nets import (
    F32,
    F64,
    Written,
    assert_same,
    assert_torchs,
    by_torch,
    kinds,
    of,
    some_gradient,
)
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - as everybody does

from compilers import needs_compiler
from dessilbi.lab.models import make_model
from dessilbi.lean import Program, Ranked, examples_last
from dessilbi.lean.layers import Finish

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = needs_compiler

NAMES = ["vgg-4", "lenet-5", "lenet-300-100", "resnet-20"]


def model_and_batch(
    name: str, images: int, dtype: torch.dtype = F64
) -> tuple[nn.Module, torch.Tensor]:
    channels, side = (1, 28) if name.startswith("lenet") else (3, 16)
    torch.manual_seed(0)
    net = make_model(name, num_classes=10, in_channels=channels, input_size=side).to(dtype)
    return net, torch.randn(images, channels, side, side).to(dtype)


@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("images", [9, 16])
@pytest.mark.parametrize("name", NAMES)
def test_whole_networks(name: str, images: int, momentum: float | None) -> None:
    net, x = model_and_batch(name, images)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = momentum
    for _ in range(2):  # an average over all batches needs more than one
        assert_torchs(net, x, 1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_whole_networks_in_single_precision(name: str) -> None:
    net, x = model_and_batch(name, 16, F32)
    done = Program(net).run(examples_last(x), of(net), of(net))
    output, gradients, _ = by_torch(net.double(), x.double())
    assert_same(done.output, output, 1e-4)
    found = done.backward(some_gradient(done.output))
    for key, gradient in gradients.items():
        # A number on the wrong side of a ReLU: not a rounding error, but one of thousands.
        apart = (found[key] - gradient).norm() / gradient.norm().clamp(min=1e-3)
        assert apart < 1e-2


def test_what_stands_between_convolutions_becomes_one_layer() -> None:
    block = ["Convolution", "Finish"]
    layers = {name: kinds(Program(model_and_batch(name, 8)[0])) for name in NAMES}
    assert layers["vgg-4"] == block * 4 + ["Average", "Flatten", "Linear"]
    assert layers["lenet-5"] == block * 3 + ["Flatten", "Linear", "Finish", "Linear"]
    assert layers["lenet-300-100"] == ["Flatten"] + ["Linear", "Finish"] * 2 + ["Linear"]
    # 19 convolutions and two of shortcuts, each with its norm; sums and ReLUs cost no more.
    assert Counter(layers["resnet-20"]) == {
        "Convolution": 21, "Finish": 21, "Average": 1, "Flatten": 1, "Linear": 1,
    }  # fmt: skip


def fused(*layers: nn.Module) -> list[Any]:
    """Norm, window and ReLU of what becomes of some layers."""
    found = Program(nn.Sequential(nn.Conv2d(3, 4, 3), *layers)).layers[1:]
    assert all(isinstance(layer, Finish) for layer in found)
    return [(f.norm is not None, f.window, f.relu) for f in found if isinstance(f, Finish)]


def test_relu_and_pooling_commute() -> None:
    norm, pool, relu = nn.BatchNorm2d(4), nn.MaxPool2d(2), nn.ReLU()
    assert fused(norm, relu, pool) == fused(norm, pool, relu) == [(True, (2, 2), True)]
    assert fused(relu, pool) == fused(pool, relu) == [(False, (2, 2), True)]
    assert fused(relu, relu) == [(False, (1, 1), True)]


def test_a_norm_or_a_second_pooling_begins_a_layer() -> None:
    norm, pool, relu = nn.BatchNorm2d(4), nn.MaxPool2d(2), nn.ReLU()
    assert fused(relu, norm) == [(False, (1, 1), True), (True, (1, 1), False)]
    assert fused(pool, nn.MaxPool2d((1, 3)), relu) == [
        (False, (2, 2), False), (False, (1, 3), True),
    ]  # fmt: skip


def conv(inputs: int = 3, outputs: int = 4, **options: Any) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, padding=1, **options)


def seen_twice(net: Any, x: Tensor) -> Tensor:
    y = net.norm(net.c(x))
    return net.head((F.relu(y) + y + net.d(y)).flatten(1))


def kept_for_later(net: Any, x: Tensor) -> Tensor:
    a, b = net.norm(net.c(x)), net.other(net.d(x))
    z = (a + b).relu()
    return net.head(torch.flatten(F.max_pool2d(z, 2), 1)) + net.head(F.avg_pool2d(z, 2).flatten(1))


def head(numbers: int) -> nn.Linear:
    return nn.Linear(numbers, 5)


WRITTEN: dict[str, Callable[[], nn.Module]] = {
    "functions": lambda: Written(
        lambda net, x: net.head(torch.flatten(F.relu(net.c(x)), 1)), c=conv(), head=head(256)
    ),
    "methods": lambda: Written(
        lambda net, x: net.head(net.c(x).relu().flatten(1)), c=conv(), head=head(256)
    ),
    "sizes": lambda: Written(
        lambda net, x: net.head(torch.relu(net.c(x)).view(x.size(0), -1)), c=conv(), head=head(256)
    ),
    "shapes": lambda: Written(
        lambda net, x: net.head(net.c(x).reshape(x.shape[0], -1)), c=conv(), head=head(256)
    ),
    "a sum": lambda: Written(
        lambda net, x: net.head((net.c(x) + net.d(x)).flatten(1)),
        c=conv(), d=conv(), head=head(256),
    ),
    "a sum with itself": lambda: Written(
        lambda net, x: net.head((lambda y: (y + y).flatten(1))(net.c(x))), c=conv(), head=head(256)
    ),
    "a sum with a number": lambda: Written(
        lambda net, x: net.head((1 + net.c(x) + 2).flatten(1)), c=conv(), head=head(256)
    ),
    "sums of all kinds": lambda: Written(
        lambda net, x: net.head(torch.add(net.c(x), net.d(x)).add(net.c(x), alpha=2).flatten(1)),
        c=conv(), d=conv(), head=head(256),
    ),
    "used three times": lambda: Written(
        seen_twice, c=conv(), d=conv(4), norm=nn.BatchNorm2d(4), head=head(256)
    ),
    "two norms and one sum": lambda: Written(
        kept_for_later, c=conv(), d=conv(), norm=nn.BatchNorm2d(4), other=nn.BatchNorm2d(4),
        head=head(64),
    ),
    "concatenation": lambda: Written(
        lambda net, x: net.head(torch.cat([net.c(x), x, net.d(x).relu()], 1).mean((2, 3))),
        c=conv(), d=conv(), head=head(11),
    ),
    "images at the end": lambda: nn.Sequential(conv(), nn.ReLU(), conv(4, 2)),
    "a single number": lambda: Written(lambda net, x: net.c(x).square().mean(), c=conv()),
    "GELU": lambda: nn.Sequential(conv(), nn.GELU(), nn.Flatten(), head(256)),
    "GroupNorm": lambda: nn.Sequential(
        conv(), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), head(256)
    ),
    "groups": lambda: nn.Sequential(
        conv(), conv(4, 8, groups=4), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), head(512)
    ),
    "dilation": lambda: nn.Sequential(conv(), conv(4, 4, dilation=2), nn.Flatten(), head(144)),
    "padding by name": lambda: nn.Sequential(
        nn.Conv2d(3, 4, 3, padding="same"), nn.Flatten(), head(256)
    ),
    "circular padding": lambda: nn.Sequential(
        conv(padding_mode="circular"), nn.ReLU(), nn.Flatten(), head(256)
    ),
    "transposed": lambda: nn.Sequential(
        conv(), nn.ConvTranspose2d(4, 3, 2, stride=2), nn.ReLU(), conv()
    ),
    "pooling with overlap": lambda: nn.Sequential(
        conv(), nn.MaxPool2d(3, 2, 1), nn.ReLU(), nn.Flatten(), head(64)
    ),
    "pooling to the edge": lambda: nn.Sequential(
        conv(), nn.MaxPool2d(3, ceil_mode=True), nn.MaxPool2d(2, dilation=2), nn.Flatten(), head(4)
    ),
    "other averages": lambda: nn.Sequential(
        conv(), nn.AvgPool2d(2), nn.AdaptiveAvgPool2d((2, 1)), nn.Flatten(), head(8)
    ),
    "windows that do not fit": lambda: nn.Sequential(
        conv(), nn.BatchNorm2d(4), nn.MaxPool2d((3, 5)), nn.ReLU(), nn.Flatten(), head(8)
    ),
    "in place": lambda: nn.Sequential(
        conv(), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Flatten(), head(256)
    ),
    "BatchNorm of features": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(192, 9), nn.BatchNorm1d(9), nn.ReLU(), nn.Linear(9, 5)
    ),
    "BatchNorm without weights": lambda: nn.Sequential(conv(), nn.BatchNorm2d(4, affine=False)),
    "BatchNorm without statistics": lambda: nn.Sequential(
        conv(), nn.BatchNorm2d(4, track_running_stats=False)
    ),
    "nothing happens": lambda: nn.Sequential(
        nn.Identity(), conv(), nn.Dropout(0.0), nn.Dropout(0.5).eval(), nn.MaxPool2d(1), conv(4, 2)
    ),
    "the result read again": lambda: Written(
        lambda net, x: (lambda y: y + net.k(y))(net.head(net.c(x).flatten(1))),
        c=conv(), head=head(256), k=nn.Linear(5, 5),
    ),
    "the batch read again": lambda: Written(
        lambda net, x: net.norm(x) + x.relu() + net.pool(net.c(x)) + x,
        c=conv(3, 3), norm=nn.BatchNorm2d(3), pool=nn.MaxPool2d(3, 1, 1),
    ),
    "a chain of sums": lambda: Written(
        lambda net, x: (net.c(x) + net.norm(net.d(x))) + (net.c(x) + (x.relu() + net.d(x))),
        c=conv(3, 3), d=conv(3, 3), norm=nn.BatchNorm2d(3),
    ),
    "layers that nobody reads": lambda: Written(
        lambda net, x: (net.norm(x), net.d(x), net.c(x))[2],
        c=conv(), d=conv(), norm=nn.BatchNorm2d(3),
    ),
    "weights of other layers": lambda: nn.Sequential(
        conv(), nn.PReLU(4), nn.Flatten(), nn.LayerNorm(256), head(256)
    ),
    "a layer called twice": lambda: Written(
        lambda net, x: net.c(net.norm(net.c(x)).relu()), c=conv(3, 3), norm=nn.BatchNorm2d(3)
    ),
}  # fmt: skip


@pytest.mark.parametrize("images", [11, 16])
@pytest.mark.parametrize("make", WRITTEN.values(), ids=WRITTEN)
def test_networks_of_all_kinds(make: Callable[[], nn.Module], images: int) -> None:
    net, x = make().double(), torch.randn(images, 3, 8, 8, dtype=F64)
    assert_torchs(net, x)


def test_what_the_kernels_know_they_run() -> None:
    everything = [layer for make in WRITTEN.values() for layer in kinds(Program(make()))]
    by_torch = Counter(
        name for name, make in WRITTEN.items() if "ByTorch" in kinds(Program(make()))
    )
    assert {"Convolution", "Linear", "Finish", "MaxPool", "Average"} & set(everything)
    assert by_torch.keys() == {
        "sizes", "shapes", "a sum with a number", "sums of all kinds", "two norms and one sum",
        "concatenation", "a single number", "GELU", "GroupNorm", "groups", "dilation",
        "padding by name", "circular padding", "transposed", "pooling to the edge",
        "other averages", "weights of other layers",
    }  # fmt: skip


def test_dropout_draws_what_torch_draws() -> None:
    layers = (conv(), nn.ReLU(), nn.Dropout2d(0.2), nn.Dropout(0.5), nn.Flatten(), nn.Dropout(0.3))
    net = nn.Sequential(nn.Dropout(0.1), *layers, head(256)).double()
    assert_torchs(net, torch.randn(16, 3, 8, 8, dtype=F64))


def test_tied_weights_have_one_gradient() -> None:
    net = nn.Sequential(nn.Linear(9, 9), nn.ReLU(), nn.Linear(9, 9)).double()
    net[2].weight = net[0].weight
    assert_torchs(net, torch.randn(16, 9, dtype=F64))


def test_frozen_weights_have_no_gradient() -> None:
    net, x = model_and_batch("vgg-4", 8)
    for name, p in net.named_parameters():
        p.requires_grad_("bn" not in name and "conv2" not in name)
    assert_torchs(net, x, 1e-9)


def test_a_head_of_another_precision() -> None:
    net = Written(lambda net, x: net.head(net.c(x).double().flatten(1)), c=conv(), head=head(256))
    net.head.double()
    x = torch.randn(16, 3, 8, 8)
    output, gradients, _ = by_torch(net, x)
    done = Program(net).run(examples_last(x), of(net), of(net))
    assert done.output.dtype is F64
    assert_same(done.output, output, 1e-5)
    for name, found in done.backward(some_gradient(output)).items():
        assert found.dtype is gradients[name].dtype
        assert_same(found, gradients[name], 1e-5)


def test_weights_of_which_some_are_there() -> None:
    net, x = model_and_batch("lenet-5", 16)
    program = Program(net)
    assert program.skippable == {n for n in of(net) if n.endswith("weight")}
    levels = {n: (torch.rand(w.shape) * 255).byte() for n, w in of(net).items()}
    ranked = {n: Ranked(levels[n], 100) for n in program.skippable}
    weights: dict[str, Any] = of(net)
    for name, lists in ranked.items():
        weights[name] = lists.at(70), weights[name].flatten()[lists.index]
    done = program.run(program.enter(x), weights, of(net), again="never recorded")
    with torch.no_grad():
        for name, p in net.named_parameters():
            if name in ranked:
                p.mul_(levels[name] <= 70)
    output, gradients, _ = by_torch(net, x)
    assert_same(done.output, output)
    found = done.backward(some_gradient(output))
    assert found.keys() == gradients.keys()
    for name, gradient in gradients.items():
        if name in ranked:
            inside = (levels[name].flatten() <= 70)[ranked[name].index]
            gradient = gradient.flatten()[ranked[name].index] * inside
        assert_same(found[name], gradient, 1e-10)


def test_weights_of_a_narrower_network() -> None:
    def net_of(a: int, b: int) -> nn.Module:
        layers = (conv(3, a), nn.BatchNorm2d(a), nn.ReLU(), conv(a, b), nn.MaxPool2d(2))
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), head(b)).double()

    program, x = Program(net_of(16, 24)), torch.randn(16, 3, 8, 8, dtype=F64)
    for narrow in (net_of(9, 8), net_of(1, 24), net_of(16, 3)):
        output, gradients, _ = by_torch(narrow, x)
        for _ in range(2):
            done = program.run(program.enter(x), of(narrow), of(narrow), again="narrow")
            assert_same(done.output, output)
            found = done.backward(some_gradient(output))
            assert found.keys() == gradients.keys()
            for name in gradients.keys() - {"0.bias"}:  # which BatchNorm makes zero
                assert_same(found[name], gradients[name], 1e-10)


def test_statistics_stay_unless_they_are_to_follow() -> None:
    net, x = model_and_batch("vgg-4", 8)
    before = {name: b.clone() for name, b in net.named_buffers()}
    program = Program(net)
    program.run(program.enter(x), of(net), []).backward(torch.ones(8, 10, dtype=F64))
    assert all(torch.equal(b, before[name]) for name, b in net.named_buffers())

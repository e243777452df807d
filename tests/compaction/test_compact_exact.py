"""The compact model is the masked model: every architecture, mask and precision."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from compaction_nets import (
    NETS,
    Separable,
    filter_mask,
    lab_net,
    masked,
    outputs,
    randomize,
    relative,
    weight_mask,
)
from dessilbi import Mask, project, recalibrate_batchnorm
from dessilbi.compaction import CompactError, compact

if TYPE_CHECKING:
    from collections.abc import Callable

    from dessilbi.compaction._compact import Streams

# Of some networks nothing can leave, and they are the same function all the same.
pytestmark = pytest.mark.filterwarnings("ignore:nothing was removed")

LAB = {"lenet-5": (28, 1), "conv-4": (32, 3), "vgg-16": (32, 3), "resnet-56": (32, 3)}

pytestmark = pytest.mark.filterwarnings("ignore:nothing was removed")


def check(
    model: nn.Module, mask: Mask, shape: tuple[int, ...], streams: Streams = "keep"
) -> nn.Module:
    """Compact in float64 and compare on inputs that compact() has not seen."""
    model = deepcopy(model).double().eval()
    before = deepcopy(model.state_dict())
    x = torch.randn(3, *shape, dtype=torch.float64)
    small = compact(model, mask, x[:1], streams=streams, latency=False)
    with torch.no_grad():
        found = outputs(small.model(x))
    assert relative(found, masked(model, mask, x)) <= 1e-10
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())
    assert small.report.compact.parameters <= small.report.dense.parameters
    return small.model


@pytest.mark.parametrize("off", [0.2, 0.5, 0.8])
@pytest.mark.parametrize("name", LAB)
def test_the_networks_of_the_paper(name: str, off: float) -> None:
    side, channels = LAB[name]
    model = randomize(lab_net(name, side, channels))
    check(
        model, filter_mask(model, off), (channels, side, side), "scatter" if off < 0.8 else "keep"
    )


@pytest.mark.parametrize("name", ["conv-2", "resnet-20", "digits-net"])
def test_networks_as_they_are_born(name: str) -> None:
    """BatchNorm of a new network sends zeros where a filter is off: nothing is left to carry."""
    model = lab_net(name, 8, 3)
    check(model, filter_mask(model, 0.5, seed=1), (3, 8, 8))


@pytest.mark.parametrize("name", [*LAB, "separable"])
def test_single_precision(name: str) -> None:
    side, channels = LAB.get(name, (16, 3))
    model = randomize(Separable() if name == "separable" else lab_net(name, side, channels))
    mask = filter_mask(model, 0.5)
    x = torch.randn(2, channels, side, side)
    small = compact(model, mask, x, streams="scatter", latency=False)
    with torch.no_grad():
        assert relative([small.model(x)], masked(model, mask, x)) <= 1e-5
    kinds = {(d.inputs, d.dtype) for d in small.report.differences}
    assert kinds == {("random", "float64"), ("random", "float32")}
    assert small.report.differences[0].relative <= 1e-10


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("off", [0.2, 0.5, 0.8, 1.0])
@pytest.mark.parametrize("name", NETS)
def test_hard_architectures_with_filters_off(name: str, off: float, seed: int) -> None:
    make, shape = NETS[name]
    torch.manual_seed(seed)
    model = randomize(make(), seed)
    check(model, filter_mask(model, off, seed, head=seed == 1 and off < 1), shape)
    check(model, filter_mask(model, off, seed), shape, "scatter")


@pytest.mark.parametrize("make", [lambda: lab_net("resnet-20", 8, 3), Separable])
def test_statistics_of_training(make: Callable[[], nn.Module]) -> None:
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(4):
        x, y = torch.randn(16, 3, 8, 8), torch.randint(5, (16,))
        optimizer.zero_grad()
        cross_entropy(model.train()(x), y).backward()
        optimizer.step()
    for off in (0.2, 0.5, 0.8):
        check(model, filter_mask(model, off), (3, 8, 8), "scatter")


@pytest.mark.parametrize("density", [0.02, 0.2])
@pytest.mark.parametrize("name", NETS)
def test_hard_architectures_with_weights_off(name: str, density: float) -> None:
    make, shape = NETS[name]
    model = randomize(make())
    check(model, weight_mask(model, density), shape, "scatter")


@pytest.mark.parametrize("name", NETS)
def test_masks_by_input_channel(name: str) -> None:
    make, shape = NETS[name]
    model = randomize(make())
    mask = {}
    for key, p in model.named_parameters():
        if p.ndim > 1:
            keep = torch.rand(p.shape[1]) < 0.5
            mask[key] = keep.view(1, -1, *[1] * (p.ndim - 2)).expand(p.shape)
    check(model, Mask(mask), shape)


@pytest.mark.parametrize("name", NETS)
def test_nothing_off_changes_nothing(name: str) -> None:
    make, shape = NETS[name]
    model = randomize(make())
    small = compact(model, Mask({}), torch.zeros(1, *shape), latency=False)
    sizes = {n: p.shape for n, p in model.named_parameters()}
    for key, p in small.model.named_parameters():
        assert p.shape == sizes[key], key


def test_everything_off_but_the_classifier_leaves_the_biases() -> None:
    model = randomize(lab_net("digits-net", 8, 1))
    weights = {n: p for n, p in model.named_parameters() if p.ndim > 1}
    mask = Mask({n: torch.zeros_like(p).bool() for n, p in weights.items()})
    with pytest.raises(CompactError, match="the mask keeps no weight at all"):
        compact(model, mask, torch.zeros(1, 1, 8, 8), latency=False)
    mask = Mask({**mask, "fc.weight": torch.ones(10, 512).bool()})
    small = check(model, mask, (1, 8, 8))
    # A layer that is still computed keeps one channel; no other is left.
    assert {p.shape[0] for n, p in small.named_parameters() if n.startswith("conv")} == {1}


def test_channels_last_and_other_batch_and_image_sizes() -> None:
    model = randomize(lab_net("resnet-20", 32, 3)).double()
    mask = filter_mask(model, 0.5)
    small = compact(
        model,
        mask,
        torch.zeros(1, 3, 16, 16).double(),
        streams="scatter",
        channels_last=True,
        latency=False,
    )
    weight = small.model.get_parameter("stage1.0.conv1.weight")
    assert weight.is_contiguous(memory_format=torch.channels_last)
    x = torch.randn(5, 3, 20, 24, dtype=torch.float64)
    with torch.no_grad():
        assert relative([small.model(x)], masked(model, mask, x)) <= 1e-10


def test_batchnorm_is_measured_anew_before_the_cut() -> None:
    model = randomize(lab_net("digits-net", 8, 1))
    mask = filter_mask(model, 0.5)
    inputs = [torch.randn(32, 1, 8, 8) for _ in range(2)]
    small = compact(model, mask, inputs[0][:1], recalibrate=iter(inputs), latency=False)
    with torch.no_grad(), project(model, mask):
        recalibrate_batchnorm(model, inputs)
        wanted = model(inputs[0])
    with torch.no_grad():
        found = small.model(inputs[0])
    assert relative([found], [wanted]) <= 1e-5
    assert relative([found], masked(model, mask, inputs[0])) > 1e-2, "it matters"

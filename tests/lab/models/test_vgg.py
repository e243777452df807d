import itertools

import pytest
import torch
from torch import nn

from dessilbi.compaction import Size
from dessilbi.lab.models.task import Task
from dessilbi.lab.models.vgg import vgg_4, vgg_7, vgg_16


@pytest.fixture(scope="module")
def model():
    return vgg_16(Task(10, 3, 32))


def test_thirteen_convolutions_without_bias_and_one_linear_layer(model):
    convolutions = [m for m in model.modules() if isinstance(m, nn.Conv2d)]
    widths = [m.out_channels for m in convolutions]
    assert widths == [64] * 2 + [128] * 2 + [256] * 3 + [512] * 6
    assert all(m.bias is None and m.kernel_size == (3, 3) for m in convolutions)
    linear = [m for m in model.modules() if isinstance(m, nn.Linear)]
    assert [(m.in_features, m.out_features) for m in linear] == [(512, 10)]


def test_parameter_count(model):
    # 14_710_464 in convolutions, 2 * 4224 in BatchNorm, 5130 in the classifier: "14.7 M".
    assert sum(p.numel() for p in model.parameters()) == 14_724_042


def test_every_convolution_is_followed_by_its_batchnorm(model):
    layers = list(model.features)
    for layer, following in itertools.pairwise(layers):
        if isinstance(layer, nn.Conv2d):
            assert isinstance(following, nn.BatchNorm2d)
            assert following.num_features == layer.out_channels


@pytest.mark.parametrize("input_size", [32, 40, 64])
def test_the_classifier_fits_every_size(model, input_size):
    with torch.no_grad():
        assert model.eval()(torch.rand(1, 3, input_size, input_size)).shape == (1, 10)


@pytest.mark.parametrize("side", [8, 28, 32])
def test_the_small_one(side):
    net = vgg_4(Task(10, 3, side))
    assert net(torch.zeros(2, 3, side, side)).shape == (2, 10)
    widths = [m.out_channels for m in net.modules() if isinstance(m, nn.Conv2d)]
    assert widths == [16, 32, 64, 64]
    weights = 9 * (3 * 16 + 16 * 32 + 32 * 64 + 64 * 64)
    assert sum(p.numel() for p in net.parameters()) == weights + 2 * sum(widths) + 650


@pytest.mark.parametrize("side", [8, 28, 32])
def test_the_fast_one(side):
    net = vgg_7(Task(10, 3, side))
    assert net(torch.zeros(2, 3, side, side)).shape == (2, 10)
    widths = [m.out_channels for m in net.modules() if isinstance(m, nn.Conv2d)]
    assert widths == [24, 64, 64, 128, 192, 256, 256]


def test_the_fast_one_has_fewer_than_a_hundred_million_multiply_adds():
    net = vgg_7(Task(10, 3, 32))
    sides = [32, 32, 16, 16, 8, 8, 4]
    by_hand = (
        sum(
            9 * i * o * side**2
            for i, o, side in zip(
                [3, 24, 64, 64, 128, 192, 256], [24, 64, 64, 128, 192, 256, 256], sides, strict=True
            )
        )
        + 256 * 10
    )
    assert Size.of(net, (torch.zeros(1, 3, 32, 32),)).macs == by_hand < 100e6

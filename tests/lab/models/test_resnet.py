import pytest
import torch
from torch import nn

from dessilbi.lab.models.resnet import BasicBlock, Bottleneck, resnet_50, resnet_basic
from dessilbi.lab.models.task import Task

# He et al. (2016), table 6: 0.27, 0.46, 0.66, 0.85, 1.7 M with parameter-free shortcuts; the two
# 1x1 convolutions with BatchNorm add 16*32 + 2*32 + 32*64 + 2*64 = 2752. Six layers more are
# always 97,216 parameters more, which gives the smallest.
TOTALS = {8: 78_042, 20: 272_474, 32: 466_906, 44: 661_338, 56: 855_770, 110: 1_730_714}


@pytest.mark.parametrize(("depth", "total"), TOTALS.items())
def test_parameter_counts_of_basic_resnets(depth, total):
    model = resnet_basic(depth, Task(10, 3, 32))
    assert sum(p.numel() for p in model.parameters()) == total


@pytest.mark.parametrize("depth", TOTALS)
def test_depth_counts_weighted_layers_outside_the_shortcuts(depth):
    model = resnet_basic(depth, Task(10, 3, 32))
    layers = [
        name
        for name, m in model.named_modules()
        if isinstance(m, nn.Conv2d | nn.Linear) and "shortcut" not in name
    ]
    assert len(layers) == depth


def test_resnet_50():
    model = resnet_50(Task(10, 3, 32))
    assert sum(p.numel() for p in model.parameters()) == 23_520_842
    assert [len(getattr(model, f"stage{i}")) for i in (1, 2, 3, 4)] == [3, 4, 6, 3]
    assert not any(isinstance(m, nn.MaxPool2d) for m in model.modules())
    with torch.no_grad():
        assert model.eval()(torch.rand(1, 3, 32, 32)).shape == (1, 10)


def test_shortcuts_are_1x1_convolutions_exactly_where_the_shape_changes():
    model = resnet_basic(20, Task(10, 3, 32))
    projected = [
        name
        for name, m in model.named_modules()
        if isinstance(m, BasicBlock) and not isinstance(m.shortcut, nn.Identity)
    ]
    assert projected == ["stage2.0", "stage3.0"]
    assert model.stage2[0].shortcut.conv.kernel_size == (1, 1)
    assert isinstance(model.stage2[0].shortcut.bn, nn.BatchNorm2d)


@pytest.mark.parametrize(("input_size", "in_channels"), [(32, 3), (28, 1), (9, 2)])
def test_output_shape(input_size, in_channels):
    model = resnet_basic(20, Task(4, in_channels, input_size))
    assert model(torch.rand(2, in_channels, input_size, input_size)).shape == (2, 4)


@pytest.mark.parametrize(
    ("kind", "width", "stride"), [(BasicBlock, 4, 1), (BasicBlock, 6, 2), (Bottleneck, 3, 2)]
)
def test_a_block_has_the_gradient_of_finite_differences(kind, width, stride):
    torch.manual_seed(0)
    block = kind(4, width, stride)
    x = torch.randn(2, 4, 4, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(block.double().eval(), (x,))


def test_a_block_leaves_its_input_alone():
    x = torch.randn(2, 4, 4, 4)
    before = x.clone()
    BasicBlock(4, 4, 1)(x)
    assert torch.equal(x, before)

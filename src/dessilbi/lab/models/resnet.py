"""Residual nets for CIFAR: ResNet-20/32/44/56/110 (basic blocks) and ResNet-50 (bottlenecks).

Shortcuts are the identity, or a 1x1 convolution with BatchNorm where the shape changes. The stem is
one 3x3 convolution of stride 1 without pooling. Every ReLU is out of place, so that neither the
residual sum nor a shortcut's input is overwritten before the backward pass reads it.
"""

from collections import OrderedDict

from torch import Tensor, nn

from dessilbi.lab.models.task import Task


def resnet_basic(depth: int, task: Task) -> nn.Module:
    """ResNet of basic blocks, as He et al. (2016) built it for CIFAR.

    Three stages of 16, 32 and 64 filters, each of ``(depth - 2) / 6`` blocks. Images of any size
    will do, the last map is averaged.

    Args:
        depth: Layers from the stem to the classifier: ``6 k + 2``.
        task: What it is asked to do.
    """
    return _resnet(BasicBlock, 16, ((depth - 2) // 6,) * 3, task)


def resnet_50(task: Task) -> nn.Module:
    """ResNet-50 for small images: the bottlenecks of the ImageNet net behind a 3x3 stem."""
    return _resnet(Bottleneck, 64, (3, 4, 6, 3), task)


class BasicBlock(nn.Module):
    """``relu(shortcut(x) + bn2(conv2(relu1(bn1(conv1(x))))))``, both convolutions 3x3.

    Args:
        in_channels: Channels of the block's input.
        width: Filters of each convolution.
        stride: Stride of the first convolution and of the shortcut.
    """

    expansion = 1

    def __init__(self, in_channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, width, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.shortcut = _shortcut(in_channels, width, stride)
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output."""
        residual = self.relu1(self.bn1(self.conv1(x)))
        residual = self.bn2(self.conv2(residual))
        out: Tensor = self.relu(self.shortcut(x) + residual)
        return out


class Bottleneck(nn.Module):
    """1x1 down, 3x3, 1x1 up to four times the width, each with BatchNorm; the 3x3 strides.

    Args:
        in_channels: Channels of the block's input.
        width: Filters of the first two convolutions; the third has ``4 * width``.
        stride: Stride of the 3x3 convolution and of the shortcut.
    """

    expansion = 4

    def __init__(self, in_channels: int, width: int, stride: int) -> None:
        super().__init__()
        out_channels = self.expansion * width
        self.conv1 = nn.Conv2d(in_channels, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.relu2 = nn.ReLU()
        self.conv3 = nn.Conv2d(width, out_channels, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(out_channels)
        self.shortcut = _shortcut(in_channels, out_channels, stride)
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output."""
        residual = self.relu1(self.bn1(self.conv1(x)))
        residual = self.relu2(self.bn2(self.conv2(residual)))
        residual = self.bn3(self.conv3(residual))
        out: Tensor = self.relu(self.shortcut(x) + residual)
        return out


def _shortcut(in_channels: int, out_channels: int, stride: int) -> nn.Module:
    """The identity where the shape stays, else a 1x1 convolution with BatchNorm."""
    if stride == 1 and in_channels == out_channels:
        return nn.Identity()
    return nn.Sequential(
        OrderedDict[str, nn.Module](
            conv=nn.Conv2d(in_channels, out_channels, 1, stride=stride, bias=False),
            bn=nn.BatchNorm2d(out_channels),
        )
    )


def _resnet(
    block: type[BasicBlock] | type[Bottleneck],
    stem_width: int,
    stage_blocks: tuple[int, ...],
    task: Task,
) -> nn.Module:
    """Stem, stages that halve the map and double the width, average, linear classifier."""
    layers = OrderedDict[str, nn.Module](
        conv1=nn.Conv2d(task.in_channels, stem_width, 3, padding=1, bias=False),
        bn1=nn.BatchNorm2d(stem_width),
        relu1=nn.ReLU(),
    )
    channels = stem_width
    for stage, blocks in enumerate(stage_blocks):
        width = stem_width * 2**stage
        members: list[nn.Module] = []
        for index in range(blocks):
            stride = 2 if stage > 0 and index == 0 else 1
            members.append(block(channels, width, stride))
            channels = block.expansion * width
        layers[f"stage{stage + 1}"] = nn.Sequential(*members)
    layers["average"] = nn.AdaptiveAvgPool2d(1)
    layers["flatten"] = nn.Flatten()
    layers["fc"] = nn.Linear(channels, task.num_classes)
    return nn.Sequential(layers)

"""VGG-16 with BatchNorm, the variant that is common on CIFAR, and two small ones for the CPU.

A pooling comes before its ReLU: the two commute, gradients included, and ReLU then has a quarter of
the work.
"""

from collections import OrderedDict
from collections.abc import Iterable

from torch import nn

from dessilbi.lab.models.task import Task

_WIDTHS = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))


def vgg_16(task: Task) -> nn.Module:
    """Thirteen 3x3 convolutions, each with BatchNorm and ReLU, and one linear classifier.

    Five poolings take a 32x32 image to one pixel of 512 channels; what a larger image leaves is
    averaged, so the classifier is 512 wide at every size. Convolutions carry no bias: BatchNorm
    would subtract it. Names follow Simonyan and Zisserman: ``features.conv3_2`` is the second
    convolution of the third block.
    """
    return _vgg(
        (
            (f"{block}_{index}", width, index == len(widths))
            for block, widths in enumerate(_WIDTHS, start=1)
            for index, width in enumerate(widths, start=1)
        ),
        task,
    )


def vgg_4(task: Task) -> nn.Module:
    """Four 3x3 convolutions with BatchNorm (16, 32, 64, 64 filters) and a linear classifier.

    Minutes on a CPU where VGG-16 takes hours; poolings after the first, second and fourth, and what
    they leave is averaged.
    """
    return _vgg([("1", 16, True), ("2", 32, True), ("3", 64, False), ("4", 64, True)], task)


def vgg_7(task: Task) -> nn.Module:
    """Seven 3x3 convolutions with BatchNorm (24, 64, 64, 128, 192, 256, 256 filters), for speed.

    Narrow where maps are large and wide where they are small, as Jordan's airbench (2024): 95
    million multiply-adds for a 32x32 image. Poolings after the second, fourth and sixth, and what
    they leave is averaged.
    """
    widths = (24, 64, 64, 128, 192, 256, 256)
    pooled = (2, 4, 6)
    return _vgg([(str(n), width, n in pooled) for n, width in enumerate(widths, start=1)], task)


def _vgg(layers: Iterable[tuple[str, int, bool]], task: Task) -> nn.Module:
    """Convolutions, given by number, width and whether a pooling follows, and a classifier."""
    features = OrderedDict[str, nn.Module]()
    channels = task.in_channels
    for number, width, pooled in layers:
        features[f"conv{number}"] = nn.Conv2d(channels, width, 3, padding=1, bias=False)
        features[f"bn{number}"] = nn.BatchNorm2d(width)
        if pooled:
            features[f"pool{number.split('_')[0]}"] = nn.MaxPool2d(2)
        features[f"relu{number}"] = nn.ReLU()
        channels = width
    return nn.Sequential(
        OrderedDict[str, nn.Module](
            features=nn.Sequential(features),
            average=nn.AdaptiveAvgPool2d(1),
            flatten=nn.Flatten(),
            classifier=nn.Linear(channels, task.num_classes),
        )
    )

"""VGG-16 with BatchNorm, the variant that is common on CIFAR, and a small one for the CPU.

A pooling comes before its ReLU: the two commute, gradients included, and ReLU then has a quarter of
the work.
"""

from collections import OrderedDict

from torch import nn

from dessilbi.lab.models.errors import require_side

WIDTHS = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))


def vgg_16(*, num_classes: int, in_channels: int, input_size: int) -> nn.Module:
    """Thirteen 3x3 convolutions, each with BatchNorm and ReLU, and one linear classifier.

    Five poolings take a 32x32 image to one pixel of 512 channels; what a larger image leaves is
    averaged, so the classifier is 512 wide at every size. Convolutions carry no bias: BatchNorm
    would subtract it. Names follow Simonyan and Zisserman: ``features.conv3_2`` is the second
    convolution of the third block.

    Args:
        num_classes: Number of outputs.
        in_channels: Channels of the images.
        input_size: Side of the square images, at least 32.
    """
    require_side("vgg-16", input_size, 2 ** len(WIDTHS))
    features = OrderedDict[str, nn.Module]()
    channels = in_channels
    for block, widths in enumerate(WIDTHS, start=1):
        for index, width in enumerate(widths, start=1):
            features[f"conv{block}_{index}"] = nn.Conv2d(channels, width, 3, padding=1, bias=False)
            features[f"bn{block}_{index}"] = nn.BatchNorm2d(width)
            if index == len(widths):
                features[f"pool{block}"] = nn.MaxPool2d(2)
            features[f"relu{block}_{index}"] = nn.ReLU()
            channels = width
    return _averaged_and_classified(features, channels, num_classes)


def vgg_4(*, num_classes: int, in_channels: int, input_size: int) -> nn.Module:
    """Four 3x3 convolutions with BatchNorm (16, 32, 64, 64 filters) and a linear classifier.

    Minutes on a CPU where VGG-16 takes hours; poolings after the first, second and fourth, and what
    they leave is averaged.

    Args:
        num_classes: Number of outputs.
        in_channels: Channels of the images.
        input_size: Side of the square images, at least 8.
    """
    require_side("vgg-4", input_size, 8)
    features = OrderedDict[str, nn.Module]()
    channels = in_channels
    for index, width in enumerate((16, 32, 64, 64), start=1):
        features[f"conv{index}"] = nn.Conv2d(channels, width, 3, padding=1, bias=False)
        features[f"bn{index}"] = nn.BatchNorm2d(width)
        if index != 3:
            features[f"pool{index}"] = nn.MaxPool2d(2)
        features[f"relu{index}"] = nn.ReLU()
        channels = width
    return _averaged_and_classified(features, channels, num_classes)


def _averaged_and_classified(
    features: OrderedDict[str, nn.Module], channels: int, num_classes: int
) -> nn.Module:
    return nn.Sequential(
        OrderedDict[str, nn.Module](
            features=nn.Sequential(features),
            average=nn.AdaptiveAvgPool2d(1),
            flatten=nn.Flatten(),
            classifier=nn.Linear(channels, num_classes),
        )
    )

"""Conv-2 and Conv-4: VGG scaled down, from Frankle and Carbin (2019)."""

from collections import OrderedDict

from torch import nn

from dessilbi.lab.models.errors import require_side


def conv_2(*, num_classes: int, in_channels: int, input_size: int) -> nn.Module:
    """Two 3x3 convolutions of 64 filters, one pooling, three linear layers.

    Args:
        num_classes: Number of outputs.
        in_channels: Channels of the images.
        input_size: Side of the square images, at least 2.
    """
    require_side("conv-2", input_size, 2)
    return _conv_net((64,), num_classes, in_channels, input_size)


def conv_4(*, num_classes: int, in_channels: int, input_size: int) -> nn.Module:
    """Four 3x3 convolutions (64, 64, 128, 128 filters), two poolings, three linear layers.

    Args:
        num_classes: Number of outputs.
        in_channels: Channels of the images.
        input_size: Side of the square images, at least 4.
    """
    require_side("conv-4", input_size, 4)
    return _conv_net((64, 128), num_classes, in_channels, input_size)


def _conv_net(
    widths: tuple[int, ...], num_classes: int, in_channels: int, input_size: int
) -> nn.Module:
    """Two convolutions and a pooling for each width, then linear layers 256, 256, classes."""
    layers = OrderedDict[str, nn.Module]()
    channels, side = in_channels, input_size
    for block, width in enumerate(widths, start=1):
        for index in (2 * block - 1, 2 * block):
            layers[f"conv{index}"] = nn.Conv2d(channels, width, 3, padding=1)
            if index == 2 * block:
                layers[f"pool{block}"] = nn.MaxPool2d(2)  # commutes with ReLU, which is cheaper so
            layers[f"relu{index}"] = nn.ReLU()
            channels = width
        side //= 2
    layers["flatten"] = nn.Flatten()
    layers["fc1"] = nn.Linear(channels * side**2, 256)
    layers["fc1_relu"] = nn.ReLU()
    layers["fc2"] = nn.Linear(256, 256)
    layers["fc2_relu"] = nn.ReLU()
    layers["fc3"] = nn.Linear(256, num_classes)
    return nn.Sequential(layers)

"""A very small net for the 8x8 digits of scikit-learn: the demo trains it in seconds."""

from collections import OrderedDict

from torch import nn

from dessilbi.lab.models.errors import require_side


def digits_net(*, num_classes: int, in_channels: int, input_size: int) -> nn.Module:
    """Two 3x3 convolutions (16, 32 filters) with BatchNorm, one pooling, a linear classifier.

    Args:
        num_classes: Number of outputs.
        in_channels: Channels of the images.
        input_size: Side of the square images, at least 2.
    """
    require_side("digits-net", input_size, 2)
    return nn.Sequential(
        OrderedDict[str, nn.Module](
            conv1=nn.Conv2d(in_channels, 16, 3, padding=1, bias=False),
            bn1=nn.BatchNorm2d(16),
            relu1=nn.ReLU(),
            conv2=nn.Conv2d(16, 32, 3, padding=1, bias=False),
            bn2=nn.BatchNorm2d(32),
            relu2=nn.ReLU(),
            pool=nn.MaxPool2d(2),
            flatten=nn.Flatten(),
            fc=nn.Linear(32 * (input_size // 2) ** 2, num_classes),
        )
    )

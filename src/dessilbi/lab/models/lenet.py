"""LeNet-5 and LeNet-300-100: the two nets for handwritten digits."""

from collections import OrderedDict

from torch import nn

from dessilbi.lab.models.errors import require_side


def lenet_5(*, num_classes: int, in_channels: int, input_size: int) -> nn.Module:
    """LeNet-5 with ReLU and max pooling; layers are named as LeCun et al. (1998) number them.

    The third convolution is ``conv.c5``, the layer whose filters the paper draws. The original
    reads 32x32 images. Smaller ones (28 to 31) are zero-padded by two pixels a side in ``c1``; on
    larger ones ``c5`` keeps a map of more than one pixel and ``f6`` widens with it. Pooling comes
    before ReLU: the two commute, gradients included, and ReLU then has a quarter of the work.

    Args:
        num_classes: Number of outputs.
        in_channels: Channels of the images.
        input_size: Side of the square images, at least 28.
    """
    require_side("lenet-5", input_size, 28)
    padding = 2 if input_size < 32 else 0
    side = ((input_size + 2 * padding - 4) // 2 - 4) // 2 - 4
    conv = nn.Sequential(
        OrderedDict[str, nn.Module](
            c1=nn.Conv2d(in_channels, 6, 5, padding=padding),
            s2=nn.MaxPool2d(2),
            relu1=nn.ReLU(),
            c3=nn.Conv2d(6, 16, 5),
            s4=nn.MaxPool2d(2),
            relu3=nn.ReLU(),
            c5=nn.Conv2d(16, 120, 5),
            relu5=nn.ReLU(),
        )
    )
    fc = nn.Sequential(
        OrderedDict[str, nn.Module](
            f6=nn.Linear(120 * side**2, 84),
            relu6=nn.ReLU(),
            f7=nn.Linear(84, num_classes),
        )
    )
    return nn.Sequential(OrderedDict[str, nn.Module](conv=conv, flatten=nn.Flatten(), fc=fc))


def lenet_300_100(*, num_classes: int, in_channels: int, input_size: int) -> nn.Module:
    """LeNet-300-100, two hidden layers and no convolution; the paper calls it LeNet-3.

    Args:
        num_classes: Number of outputs.
        in_channels: Channels of the images.
        input_size: Side of the square images.
    """
    return nn.Sequential(
        OrderedDict[str, nn.Module](
            flatten=nn.Flatten(),
            fc1=nn.Linear(in_channels * input_size**2, 300),
            relu1=nn.ReLU(),
            fc2=nn.Linear(300, 100),
            relu2=nn.ReLU(),
            fc3=nn.Linear(100, num_classes),
        )
    )

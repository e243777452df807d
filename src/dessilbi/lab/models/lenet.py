"""LeNet-5 and LeNet-300-100: the two nets for handwritten digits."""

from collections import OrderedDict

from torch import nn

from dessilbi.lab.models.task import Task


def lenet_5(task: Task) -> nn.Module:
    """LeNet-5 with ReLU and max pooling; layers are named as LeCun et al. (1998) number them.

    The third convolution is ``conv.c5``, the layer whose filters the paper draws. The original
    reads 32x32 images. Smaller ones (28 to 31) are zero-padded by two pixels a side in ``c1``; on
    larger ones ``c5`` keeps a map of more than one pixel and ``f6`` widens with it. Pooling comes
    before ReLU: the two commute, gradients included, and ReLU then has a quarter of the work.
    """
    padding = 2 if task.input_size < 32 else 0
    side = ((task.input_size + 2 * padding - 4) // 2 - 4) // 2 - 4
    conv = nn.Sequential(
        OrderedDict[str, nn.Module](
            c1=nn.Conv2d(task.in_channels, 6, 5, padding=padding),
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
            f7=nn.Linear(84, task.num_classes),
        )
    )
    return nn.Sequential(OrderedDict[str, nn.Module](conv=conv, flatten=nn.Flatten(), fc=fc))


def lenet_300_100(task: Task) -> nn.Module:
    """LeNet-300-100, two hidden layers and no convolution; the paper calls it LeNet-3."""
    return nn.Sequential(
        OrderedDict[str, nn.Module](
            flatten=nn.Flatten(),
            fc1=nn.Linear(task.in_channels * task.input_size**2, 300),
            relu1=nn.ReLU(),
            fc2=nn.Linear(300, 100),
            relu2=nn.ReLU(),
            fc3=nn.Linear(100, task.num_classes),
        )
    )

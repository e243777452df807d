"""Small nets without shortcuts: Conv-2 and Conv-4 of Frankle and Carbin (2019), and the demo's."""

from collections import OrderedDict

from torch import nn

from dessilbi.lab.models.task import Task


def conv_2(task: Task) -> nn.Module:
    """Two 3x3 convolutions of 64 filters, one pooling, three linear layers."""
    return _conv_net((64,), task)


def conv_4(task: Task) -> nn.Module:
    """Four 3x3 convolutions (64, 64, 128, 128 filters), two poolings, three linear layers."""
    return _conv_net((64, 128), task)


def _conv_net(widths: tuple[int, ...], task: Task) -> nn.Module:
    """Two convolutions and a pooling for each width, then linear layers 256, 256, classes."""
    layers = OrderedDict[str, nn.Module]()
    _, channels, side = task
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
    layers["fc3"] = nn.Linear(256, task.num_classes)
    return nn.Sequential(layers)


def digits_net(task: Task) -> nn.Module:
    """Two 3x3 convolutions (16, 32 filters) with BatchNorm, one pooling, a linear classifier.

    The demo trains it on the 8x8 digits of scikit-learn in seconds.
    """
    return nn.Sequential(
        OrderedDict[str, nn.Module](
            conv1=nn.Conv2d(task.in_channels, 16, 3, padding=1, bias=False),
            bn1=nn.BatchNorm2d(16),
            relu1=nn.ReLU(),
            conv2=nn.Conv2d(16, 32, 3, padding=1, bias=False),
            bn2=nn.BatchNorm2d(32),
            relu2=nn.ReLU(),
            pool=nn.MaxPool2d(2),
            flatten=nn.Flatten(),
            fc=nn.Linear(32 * (task.input_size // 2) ** 2, task.num_classes),
        )
    )

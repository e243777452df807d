"""Models by name: the nets of the paper, or anything importable as ``module:callable``."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, NamedTuple

import torch
from torch import nn

from dessilbi._text import did_you_mean
from dessilbi.lab.models.conv import conv_2, conv_4, digits_net
from dessilbi.lab.models.gpt import char_gpt, char_gpt_tiny
from dessilbi.lab.models.import_path import build_from_path
from dessilbi.lab.models.init import Scheme, initialize
from dessilbi.lab.models.lenet import lenet_5, lenet_300_100
from dessilbi.lab.models.resnet import resnet_50, resnet_basic
from dessilbi.lab.models.task import ModelError, Task
from dessilbi.lab.models.vgg import vgg_4, vgg_7, vgg_16


class Known(NamedTuple):
    """A net of the registry."""

    build: Callable[[Task], nn.Module]
    smallest: int = 1
    """Side of the smallest image that leaves every layer something to read."""
    reads_text: bool = False
    init: Scheme | None = "he"
    """Its usual initial weights; ``None``: as it is built."""


MODELS: Final[Mapping[str, Known]] = {
    "digits-net": Known(digits_net, 2),
    "lenet-5": Known(lenet_5, 28),
    "lenet-300-100": Known(lenet_300_100),
    "lenet-3": Known(lenet_300_100),  # the paper's name for it
    "conv-2": Known(conv_2, 2),
    "conv-4": Known(conv_4, 4),
    "vgg-4": Known(vgg_4, 8),
    "vgg-7": Known(vgg_7, 8),
    "vgg-16": Known(vgg_16, 32),
    **{
        f"resnet-{depth}": Known(partial(resnet_basic, depth)) for depth in (8, 20, 32, 44, 56, 110)
    },
    "resnet-50": Known(resnet_50),
    "char-gpt": Known(char_gpt, reads_text=True, init=None),
    "char-gpt-tiny": Known(char_gpt_tiny, reads_text=True, init=None),
}


def make_model(
    name: str,
    *,
    num_classes: int,
    in_channels: int,
    input_size: int,
    init: Scheme | None = None,
    dtype: torch.dtype | None = None,
) -> nn.Module:
    """Build a model and draw its initial weights.

    The weights depend on torch's global generator only: seed it first. They are drawn before
    ``dtype`` is applied, so one seed gives the same net, up to rounding, in every precision.

    Args:
        name: A key of ``MODELS``, or an import path ``module:callable`` such as
            ``torchvision.models:resnet18``; see ``build_from_path`` for how it is called.
        num_classes: Number of outputs.
        in_channels: Channels of the images; 0 for a text.
        input_size: Side of the square images, or characters of a window of a text.
        init: A scheme of ``initialize``. ``None`` means what ``MODELS`` says, ``"he"`` for images,
            and for an import path that the weights stay as the callable returned them: they may be
            pretrained.
        dtype: Type of the parameters; ``None`` leaves it as built.

    Raises:
        ModelError: If the name is unknown, the path cannot be imported or does not give a module,
            or the net does not fit the task.
    """
    task = Task(num_classes, in_channels, input_size)
    for argument, value in task._asdict().items():
        least = 0 if argument == "in_channels" else 1
        if value < least:
            raise ModelError(f"{argument} must be >= {least}, got {value}")
    if ":" in name:
        model = build_from_path(name, task)
    else:
        known = _find(name, task)
        model = known.build(task)
        init = known.init if init is None else init
    if init is not None:
        initialize(model, init)
    return model if dtype is None else model.to(dtype)


def _find(name: str, task: Task) -> Known:
    """Look a name up, or say what comes nearest."""
    if name not in MODELS:
        hint = did_you_mean(name, MODELS, otherwise=".")
        raise ModelError(
            f"unknown model {name!r}{hint} Known: {', '.join(MODELS)}; "
            "or an import path with a colon, such as torchvision.models:resnet18"
        )
    found = MODELS[name]
    if found.reads_text != (task.in_channels == 0):
        reads, given = ("texts", "images") if found.reads_text else ("images", "a text")
        able = ", ".join(n for n, known in MODELS.items() if known.reads_text != found.reads_text)
        raise ModelError(
            f"{name} reads {reads}, got {given} (in_channels={task.in_channels}); choose one of "
            f"{able}, or other data"
        )
    if task.input_size < found.smallest:
        raise ModelError(
            f"{name} needs input_size >= {found.smallest}, got {task.input_size}; "
            "pad or resize the images, or choose a net with fewer poolings"
        )
    return found

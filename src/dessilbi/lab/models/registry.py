"""Models by name: the nets of the paper, or anything importable as ``module:callable``."""

from collections.abc import Mapping
from functools import partial
from typing import Final, Protocol

import torch
from torch import nn

from dessilbi._text import did_you_mean
from dessilbi.lab.models.conv import conv_2, conv_4
from dessilbi.lab.models.digits import digits_net
from dessilbi.lab.models.errors import ModelError
from dessilbi.lab.models.import_path import build_from_path
from dessilbi.lab.models.init import Scheme, initialize
from dessilbi.lab.models.lenet import lenet_5, lenet_300_100
from dessilbi.lab.models.resnet import resnet_50, resnet_basic
from dessilbi.lab.models.vgg import vgg_4, vgg_16


class ModelBuilder(Protocol):
    """A net as a function of the task: how many classes, channels, and pixels a side."""

    def __call__(self, *, num_classes: int, in_channels: int, input_size: int) -> nn.Module:
        """Build the net."""


MODELS: Final[Mapping[str, ModelBuilder]] = {
    "digits-net": digits_net,
    "lenet-5": lenet_5,
    "lenet-300-100": lenet_300_100,
    "lenet-3": lenet_300_100,  # the paper's name for it
    "conv-2": conv_2,
    "conv-4": conv_4,
    "vgg-4": vgg_4,
    "vgg-16": vgg_16,
    "resnet-8": partial(resnet_basic, 8),
    "resnet-20": partial(resnet_basic, 20),
    "resnet-32": partial(resnet_basic, 32),
    "resnet-44": partial(resnet_basic, 44),
    "resnet-56": partial(resnet_basic, 56),
    "resnet-110": partial(resnet_basic, 110),
    "resnet-50": resnet_50,
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
        in_channels: Channels of the images.
        input_size: Side of the square images.
        init: A scheme of ``initialize``. ``None`` means ``"he"`` for the nets of ``MODELS``, and
            for an import path that the weights stay as the callable returned them: they may be
            pretrained.
        dtype: Type of the parameters; ``None`` leaves it as built.

    Raises:
        ModelError: If the name is unknown, the path cannot be imported or does not give a module,
            or the net does not fit the task.
    """
    for argument, value in (
        ("num_classes", num_classes),
        ("in_channels", in_channels),
        ("input_size", input_size),
    ):
        if value < 1:
            raise ModelError(f"{argument} must be >= 1, got {value}")
    build: ModelBuilder
    if ":" in name:
        build, scheme = partial(build_from_path, name), init
    else:
        build, scheme = _named(name), "he" if init is None else init
    model = build(num_classes=num_classes, in_channels=in_channels, input_size=input_size)
    if scheme is not None:
        initialize(model, scheme)
    return model if dtype is None else model.to(dtype)


def _named(name: str) -> ModelBuilder:
    """Look a name up, or say what comes nearest."""
    if name in MODELS:
        return MODELS[name]
    hint = did_you_mean(name, MODELS, otherwise=".")
    raise ModelError(
        f"unknown model {name!r}{hint} Known: {', '.join(MODELS)}; "
        "or an import path with a colon, such as torchvision.models:resnet18"
    )

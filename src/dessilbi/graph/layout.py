"""Memory formats that a CPU's convolutions cannot take."""

from __future__ import annotations

from typing import Any

import torch

NARROW = 16
"""Input channels from which a 1x1 convolution may see channels-last images on a CPU. oneDNN's
weight gradient of a strided one writes beyond its memory below (torch 2.13; seen from 2 to 7
channels, one less than a vector of that machine had numbers, and others have vectors of 16)."""


def channels_first(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """The same with copies of CPU tensors in torch's plain layout."""
    return tuple(
        # Not ``contiguous``, which leaves images of a single channel as they are.
        a.clone(memory_format=torch.contiguous_format)
        if isinstance(a, torch.Tensor) and a.device.type == "cpu"
        else a
        for a in arguments
    )

"""Networks that must not see their images channels-last on a CPU."""

from __future__ import annotations

from typing import Any

from torch import nn

from dessilbi.graph.layout import NARROW, channels_first


def needs_plain_layout(model: nn.Module) -> bool:
    """Whether a backward pass after channels-last images would write beyond its memory on a CPU.

    oneDNN's kernel for a strided 1x1 convolution of few channels does (torch 2.13); the process
    then dies, or goes on with wrong numbers.
    """
    return any(
        isinstance(m, nn.Conv2d)
        and m.kernel_size == (1, 1)
        and m.stride != (1, 1)
        and m.in_channels < NARROW
        for m in model.modules()
    )


def plain_images(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """A forward pre-hook: images on a CPU are put channels first."""
    return channels_first(inputs)

"""Which networks must not see their images channels-last."""

from __future__ import annotations

from torch import nn

NARROW = 16
"""Input channels from which the kernel in question is sound; it was seen to fail below 8."""


def needs_plain_layout(model: nn.Module) -> bool:
    """Whether training on channels-last images would write beyond its memory on a CPU.

    oneDNN's backward pass of a strided 1x1 convolution of few channels does (torch 2.13); the
    process then dies, or goes on with wrong numbers.
    """
    return any(
        isinstance(m, nn.Conv2d)
        and m.kernel_size == (1, 1)
        and m.stride != (1, 1)
        and m.in_channels < NARROW
        for m in model.modules()
    )

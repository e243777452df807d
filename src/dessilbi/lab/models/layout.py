"""Networks that must not be trained on channels-last images on a CPU."""

from __future__ import annotations

from torch import nn

from dessilbi.graph.layout import NARROW


def needs_channels_first(model: nn.Module) -> bool:
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

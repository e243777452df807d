"""Pad, crop and flip a whole batch at once, by random numbers of (seed, epoch, image).

Of a text a window is drawn instead.

An augmentation has two halves. ``draw`` makes the random numbers of a whole epoch, one row an
image; applying it is then a pure function of images and rows. So a batch does not depend on how
many batches came before it in this process, on the batch size, or on how many ranks share it.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad as zero_pad

_DRAWS: Final = 1
_FIRST_SIDE: Final = 2
"""Purposes of random numbers; 0 is the order of an epoch's images."""


def seeded(seed: int, epoch: int, purpose: int) -> torch.Generator:
    """A generator for one purpose of one epoch; on the CPU, so that all devices see the same."""
    if seed < 0 or epoch < 0:
        raise ValueError(f"seed and epoch must be >= 0, got seed={seed}, epoch={epoch}")
    # SeedSequence hashes its words: (1, 2) and (2, 1), or epoch 1 of seed 0 and epoch 0 of
    # seed 1, have nothing in common, which seed + epoch would not give.
    state = np.random.SeedSequence([seed, epoch, purpose]).generate_state(1, np.uint64)
    return torch.Generator().manual_seed(int(state[0]) >> 1)


@dataclass(frozen=True)
class PadCropFlip:
    """Zero-pad, crop back at a random place and mirror half of the images: CIFAR's standard."""

    pad: int = 4
    """Pixels added on each side; the crop is shifted by up to this many."""
    flip: bool = True
    """Whether each image is mirrored left-right with probability one half."""
    alternating: bool = False
    """Whether it is instead mirrored in every other epoch, half of the images in the even ones: two
    epochs then show both sides of each (Jordan 2024, airbench)."""

    def __post_init__(self) -> None:
        if self.pad < 0:
            raise ValueError(f"pad must be >= 0, got {self.pad}")
        if self.alternating and not self.flip:
            raise ValueError("alternating=True says how images are flipped, got flip=False")

    def draw(self, images: int, generator: torch.Generator) -> Tensor:
        """Random numbers for ``images`` images: rows of (top, left, mirrored), int64."""
        corner = torch.randint(0, 2 * self.pad + 1, (images, 2), generator=generator)
        mirrored = torch.randint(0, 2, (images, 1), generator=generator) * int(self.flip)
        return torch.cat([corner, mirrored], dim=1)

    def __call__(self, images: Tensor, draws: Tensor) -> Tensor:
        """Crop ``images`` (N, C, H, W) at each row's (top, left), then mirror where it says so.

        A crop, mirrored or not, is a choice of rows and of columns of the padded image, so the
        whole batch is one gather, with indices that an image's channels share.
        """
        count, channels, height, width = images.shape
        padded = zero_pad(images, (self.pad,) * 4)
        wide = padded.shape[-1]
        top, left, mirrored = draws.unsqueeze(2).unbind(1)  # each (N, 1)

        across = torch.arange(width, device=images.device)
        rows = top + torch.arange(height, device=images.device)
        columns = left + torch.where(mirrored == 1, across.flip(0), across)
        index = (rows.unsqueeze(2) * wide + columns.unsqueeze(1)).view(count, 1, -1)
        picked = padded.reshape(count, channels, -1).gather(2, index.expand(-1, channels, -1))
        return picked.view(images.shape)


@dataclass(frozen=True)
class _OneNumber:
    """An augmentation that needs one random number an image."""

    def draw(self, images: int, generator: torch.Generator) -> Tensor:
        """A number an image, from which all else follows."""
        return torch.randint(0, 2**62, (images, 1), generator=generator)


@dataclass(frozen=True)
class ResizedCropFlip(_OneNumber):
    """Random area and aspect ratio, then a random flip: ImageNet's standard, by torchvision."""

    size: int = 224
    """Side of the square that comes out."""


@dataclass(frozen=True)
class RandomWindows(_OneNumber):
    """Windows of a text that begin anywhere: the standard of language models."""

    def __call__(self, positions: int, draws: Tensor) -> Tensor:
        """Where each window begins, of so many positions, whatever the length of the text."""
        return draws.squeeze(1) % positions


def draw_epoch(augment: "Augmentation", images: int, *, seed: int, epoch: int) -> Tensor:
    """The random numbers of an epoch, one row an image."""
    draws = augment.draw(images, seeded(seed, epoch, _DRAWS))
    if isinstance(augment, PadCropFlip) and augment.alternating:
        first = torch.randint(0, 2, (images,), generator=seeded(seed, 0, _FIRST_SIDE))
        draws[:, 2] = (first + epoch) % 2
    return draws


Augmentation = PadCropFlip | ResizedCropFlip | RandomWindows

"""A data set in memory: bytes on the device, turned into numbers a batch at a time.

Images stay uint8, as they were published. Picking bytes and converting them costs no more than
picking floats (one CPU thread, CIFAR-10 out of cache: 2 + 2 against 7 microseconds an image), the
set takes a quarter of the memory (184 MB, not 737 MB), and augmentation pads with black, as the
published recipes do.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Self, cast

import torch
from torch import Tensor

from dessilbi.lab.data.augment import Augmentation, PadCropFlip

Batch = tuple[Tensor, Tensor]
Bounds = Sequence[tuple[int, int]]


class RawSet(NamedTuple):
    """What a reader returns: images uint8 (N, C, H, W), labels int64, and where they came from."""

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    source: str


@dataclass(frozen=True, eq=False)
class Pixels:
    """How stored bytes become the numbers that a network sees."""

    white: int
    """The byte that becomes 1.0: 255, or 16 for the digits."""
    dtype: torch.dtype
    gain: Tensor | None = None
    """With ``offset``: normalised value = byte * gain + offset, per channel; None means [0, 1]."""
    offset: Tensor | None = None
    channels_last: bool | None = None
    """Whether the channels of a pixel lie side by side, whatever the shape says; by default on a
    CPU: oneDNN trains the convolutions that follow 1.0 to 1.6 times as fast
    (benchmarks/layout.py)."""

    @classmethod
    def normalized(
        cls,
        white: int,
        dtype: torch.dtype,
        mean: Sequence[float],
        std: Sequence[float],
        device: torch.device,
    ) -> Self:
        """Conversion to (value - mean) / std, folded into one multiplication and one addition."""
        mean_, std_ = (torch.tensor(v, dtype=torch.float64).view(-1, 1, 1) for v in (mean, std))
        gain, offset = 1 / (white * std_), -mean_ / std_
        return cls(white, dtype, gain.to(device, dtype), offset.to(device, dtype))

    def __call__(self, raw: Tensor) -> Tensor:
        """Convert bytes (N, C, H, W) to ``dtype``."""
        last = self.channels_last
        if last is None:
            last = raw.device.type == "cpu"
        layout = torch.channels_last if last else torch.contiguous_format
        values = raw.to(self.dtype, memory_format=layout)
        if self.gain is None or self.offset is None:
            return values.div_(self.white)
        return values.mul_(self.gain).add_(self.offset)


class Split(ABC):
    """Images and labels that can be read in any order: what :func:`batches` needs of a set."""

    takes: ClassVar[type[Augmentation]]
    """The kind of augmentation that fits."""

    @abstractmethod
    def __len__(self) -> int: ...

    def laid_out(self, *, channels_last: bool) -> Self:
        """The same, its images in one layout on every device."""
        return self

    @abstractmethod
    def take(self, index: Tensor) -> Self:
        """The split made of the images numbered ``index``."""

    @abstractmethod
    def stream(
        self, order: Tensor, bounds: Bounds, augment: Augmentation | None, draws: Tensor | None
    ) -> Iterator[Batch]:
        """Yield ``order[a:b]`` for each ``(a, b)`` of ``bounds``, as (images, labels).

        Args:
            order: Image numbers of the epoch, on the CPU.
            bounds: Batches, as ranges of positions in ``order``.
            augment: Augmentation to apply, or None.
            draws: Its random numbers, one row an image (by image number, not by position).
        """


class ImageSplit(Split):
    """Images, with a label each."""

    labels: Tensor
    pixels: Pixels

    def __len__(self) -> int:
        return len(self.labels)

    def laid_out(self, *, channels_last: bool) -> Self:
        """The same, its images in one layout on every device."""
        pixels = replace(self.pixels, channels_last=channels_last)
        return cast("Self", replace(cast("Any", self), pixels=pixels))


@dataclass(frozen=True, eq=False)
class TensorSplit(ImageSplit):
    """A split that fits in memory, resident on its device."""

    takes = PadCropFlip
    images: Tensor
    """uint8 (N, C, H, W)."""
    labels: Tensor
    """int64 (N,), on the same device."""
    pixels: Pixels

    def __post_init__(self) -> None:
        if len(self.images) != len(self.labels):
            raise ValueError(
                "images and labels must have the same length, "
                f"got {len(self.images)} and {len(self.labels)}"
            )

    def tensors(self) -> Batch:
        """The whole split as (images, labels), converted; for sets small enough for one batch."""
        return self.pixels(self.images), self.labels

    def take(self, index: Tensor) -> Self:
        """The split made of the images numbered ``index``."""
        index = index.to(self.labels.device)
        return replace(
            self,
            images=self.images.index_select(0, index),
            labels=self.labels.index_select(0, index),
        )

    def stream(
        self, order: Tensor, bounds: Bounds, augment: Augmentation | None, draws: Tensor | None
    ) -> Iterator[Batch]:
        """See :meth:`Split.stream`."""
        assert augment is None or isinstance(augment, PadCropFlip)
        device = self.labels.device
        order = order.to(device)
        if draws is not None:
            draws = draws.to(device)
        for first, last in bounds:
            index = order[first:last]
            # index_select copies whole images; images[index] takes a slower, general path.
            raw = self.images.index_select(0, index)
            if augment is not None and draws is not None:
                raw = augment(raw, draws.index_select(0, index))
            yield self.pixels(raw), self.labels.index_select(0, index)


@dataclass(frozen=True, eq=False)
class Dataset:
    """A named set, split, with what a model and a report need to know about it."""

    name: str
    train: Split
    test: Split
    validation: Split | None
    """Images held out of the training set, so that nobody tunes on the test set."""
    classes: tuple[str, ...]
    """Of a text its characters."""
    shape: tuple[int, ...]
    """(channels, height, width) of one image; of a text (characters of a window,)."""
    augmentation: Augmentation | None
    """The standard augmentation, to pass to :func:`batches`; None where there is none."""
    source: str
    """Where the bytes came from, to print beside a figure."""

    def laid_out(self, *, channels_last: bool) -> Self:
        """The same set, its images in one layout on every device."""
        held_out = self.validation
        return replace(
            self,
            train=self.train.laid_out(channels_last=channels_last),
            test=self.test.laid_out(channels_last=channels_last),
            validation=None if held_out is None else held_out.laid_out(channels_last=channels_last),
        )

    @property
    def is_text(self) -> bool:
        """Whether it is windows of a text, and a label for each character of them."""
        return len(self.shape) == 1

    @property
    def num_classes(self) -> int:
        """How many classes the labels count."""
        return len(self.classes)

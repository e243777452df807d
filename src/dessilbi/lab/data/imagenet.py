"""ImageNet-2012 from folders, decoded by torchvision in loader processes.

Too large for memory, so it is the one set that is read while it trains; its splits have the same
interface as those in memory. torchvision comes with the ``imagenet`` extra. What it does with real
photographs is exercised only where it imports; elsewhere a small stand-in tests the plumbing.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from dessilbi.lab.data.augment import Augmentation, ResizedCropFlip
from dessilbi.lab.data.errors import DataError, require
from dessilbi.lab.data.places import folders, missing
from dessilbi.lab.data.splits import Batch, Bounds, ImageSplit, Pixels

SIDE = 224
_RESIZED = 256


class ImageFolders(NamedTuple):
    """The two splits, the class folders and where they are."""

    train: "FolderSplit"
    test: "FolderSplit"
    classes: tuple[str, ...]
    source: str


def read_imagenet(
    data_dir: str | Path | None, pixels: Pixels, device: torch.device, workers: int
) -> ImageFolders:
    """List ``train/<class>/*`` and ``val/<class>/*``; images are decoded when they are asked for.

    ``pixels`` makes numbers of bytes on ``device``; with 0 ``workers`` this process decodes.
    """
    places = folders(data_dir, "imagenet", "ImageNet", "ILSVRC2012", "")
    found = [f for f in places if (f / "train").is_dir() and (f / "val").is_dir()]
    if not found:
        raise missing(
            "imagenet",
            "train/<class>/*.JPEG and val/<class>/*.JPEG",
            places,
            "ImageNet-2012 needs an account, so --download cannot fetch it: get it from "
            "image-net.org and sort both splits into class folders",
        )
    datasets = require("torchvision.datasets", purpose="imagenet", install="dessilbi[imagenet]")
    try:
        train, test = (datasets.ImageFolder(str(found[0] / split)) for split in ("train", "val"))
    except (FileNotFoundError, RuntimeError) as error:  # no class folders, or an empty one
        raise DataError(
            f"{found[0]} cannot be listed: {error}. Every class needs a folder with images in "
            "train/ and in val/."
        ) from error
    if train.classes != test.classes:
        odd = sorted(set(train.classes) ^ set(test.classes))
        raise DataError(
            f"{found[0]}: train/ and val/ must have the same class folders; "
            f"only one of them has {', '.join(odd[:5])}{' ...' if len(odd) > 5 else ''}"
        )
    splits = [
        FolderSplit(
            tuple(path for path, _ in folder.samples),
            torch.tensor([label for _, label in folder.samples], dtype=torch.int64),
            pixels,
            device,
            workers,
            folder.loader,
        )
        for folder in (train, test)
    ]
    return ImageFolders(splits[0], splits[1], tuple(train.classes), str(found[0]))


@dataclass(frozen=True, eq=False)
class FolderSplit(ImageSplit):
    """A split whose images stay on disk until their batch is due."""

    takes = ResizedCropFlip

    paths: tuple[str, ...]
    labels: Tensor
    pixels: Pixels
    device: torch.device
    workers: int
    loader: Any
    """Opens a path as an RGB image; torchvision's own unless told otherwise."""

    def take(self, index: Tensor) -> Self:
        """The split made of the images numbered ``index``."""
        numbers = index.tolist()
        return replace(
            self, paths=tuple(self.paths[i] for i in numbers), labels=self.labels[index.cpu()]
        )

    def stream(
        self, order: Tensor, bounds: Bounds, augment: Augmentation | None, draws: Tensor | None
    ) -> Iterator[Batch]:
        """See :meth:`Split.stream`. Without ``augment``: resize to 256, take the middle 224."""
        assert augment is None or isinstance(augment, ResizedCropFlip)
        numbers = order.tolist()
        batches: DataLoader[tuple[Tensor, int]] = DataLoader(
            _Decoder(self, _transform(augment), draws),
            batch_sampler=[numbers[first:last] for first, last in bounds],
            num_workers=self.workers,
            pin_memory=self.device.type == "cuda",
            # Its own generator: the loader would otherwise take a number from the global one.
            generator=torch.Generator().manual_seed(0),
        )
        for images, labels in batches:
            # Bytes travel, from the workers and to the device; floats are made there.
            raw = images.to(self.device, non_blocking=True)
            yield self.pixels(raw), labels.to(self.device, non_blocking=True)


def _transform(augment: ResizedCropFlip | None) -> Any:
    """Torchvision's standard recipe, from an image to uint8 (3, side, side)."""
    t = require("torchvision.transforms", purpose="imagenet", install="dessilbi[imagenet]")
    if augment is None:
        return t.Compose([t.Resize(_RESIZED), t.CenterCrop(SIDE), t.PILToTensor()])
    return t.Compose([t.RandomResizedCrop(augment.size), t.RandomHorizontalFlip(), t.PILToTensor()])


class _Decoder(TorchDataset[tuple[Tensor, int]]):
    """Opens, transforms and seeds single images, inside a loader process."""

    def __init__(self, split: FolderSplit, transform: Any, draws: Tensor | None) -> None:
        self.split, self.transform, self.draws = split, transform, draws

    def __len__(self) -> int:
        return len(self.split)

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        path = self.split.paths[number]
        try:
            image = self.split.loader(path)
        except (OSError, SyntaxError, ValueError) as error:
            raise DataError(f"{path} cannot be decoded ({error}); replace or delete it") from error
        label = int(self.split.labels[number])
        if self.draws is None:
            return self.transform(image), label
        # torchvision's transforms use the global generator: lend them one seeded for this image.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(self.draws[number, 0]))
            return self.transform(image), label

"""``load_dataset``: a name in, a split, converted and placed data set out."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch

from dessilbi._text import did_you_mean
from dessilbi.lab.data import cifar10, imagenet, text
from dessilbi.lab.data.augment import Augmentation, PadCropFlip, RandomWindows, ResizedCropFlip
from dessilbi.lab.data.errors import require
from dessilbi.lab.data.mnist import read_mnist
from dessilbi.lab.data.splits import Dataset, Pixels, RawSet, Split, TensorSplit


@dataclass(frozen=True)
class DatasetInfo:
    """What is known of a set before it is read."""

    classes: tuple[str, ...]
    shape: tuple[int, ...]
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    read: Callable[[str | Path | None, bool], RawSet] | None = None
    """Takes (data_dir, download); None for texts, and images that do not fit in memory."""
    white: int = 255
    # Grey sets stay in [0, 1] by default: normalised inputs made LeNet-5 collapse at lr 0.1.
    normalize: bool = False
    augmentation: Augmentation | None = None


def _read_digits(data_dir: str | Path | None, download: bool) -> RawSet:
    """The 8x8 digits that ship inside scikit-learn, which need no file and no network.

    Every fifth of the 1,797 images of each class is for testing: no random numbers, so that the
    split is the same in every version of every library.
    """
    datasets = require("sklearn.datasets", purpose="the digits set", install="dessilbi[lab]")
    bunch = datasets.load_digits()
    images = torch.from_numpy(bunch.images.astype(np.uint8)).unsqueeze(1)
    labels = torch.from_numpy(bunch.target.astype(np.int64))
    one_hot = torch.nn.functional.one_hot(labels)
    rank_in_class = one_hot.cumsum(0).gather(1, labels.unsqueeze(1)).squeeze(1) - 1
    test = rank_in_class % 5 == 4
    return RawSet(images[~test], labels[~test], images[test], labels[test], "scikit-learn")


_DIGITS = tuple("0123456789")
_CLOTHES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat",
    "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip

DATASET_INFO = {
    "digits": DatasetInfo(_DIGITS, (1, 8, 8), (0.3051,), (0.3762,), _read_digits, white=16),
    "mnist": DatasetInfo(_DIGITS, (1, 28, 28), (0.1307,), (0.3081,), partial(read_mnist, "mnist")),
    "fashion-mnist": DatasetInfo(
        _CLOTHES, (1, 28, 28), (0.2860,), (0.3530,), partial(read_mnist, "fashion-mnist")
    ),
    "cifar10": DatasetInfo(
        cifar10.CLASSES,
        (3, 32, 32),
        (0.4914, 0.4822, 0.4465),
        (0.2470, 0.2435, 0.2616),
        cifar10.read_cifar10,
        normalize=True,
        augmentation=PadCropFlip(pad=4),
    ),
    "imagenet": DatasetInfo(
        (),  # the folders say
        (3, imagenet.SIDE, imagenet.SIDE),
        (0.485, 0.456, 0.406),
        (0.229, 0.224, 0.225),
        None,
        normalize=True,
        augmentation=ResizedCropFlip(imagenet.SIDE),
    ),
}

DATASETS = (*DATASET_INFO, text.SHAKESPEARE)
CONTEXT = 64
"""Characters of a window of a text, by default."""


def dataset_info(name: str, context: int = CONTEXT) -> DatasetInfo:
    """What is known of one of :data:`DATASETS`, or of a text file, before it is read."""
    if text.is_text(name):
        return DatasetInfo(text.vocabulary(name), (context,), augmentation=RandomWindows())
    if name not in DATASET_INFO:
        known = f"{', '.join(DATASETS)}, or name a text file (my.txt)"
        hint = did_you_mean(name, DATASETS, otherwise=f"; choose one of {known}")
        raise ValueError(f"unknown data set {name!r}{hint}")
    return DATASET_INFO[name]


def load_dataset(
    name: str,
    *,
    data_dir: str | Path | None = None,
    download: bool = False,
    normalize: bool | None = None,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
    validation: int = 0,
    images: int | None = None,
    test_images: int | None = None,
    split_seed: int = 0,
    workers: int = 4,
    context: int = CONTEXT,
) -> Dataset:
    """Load one of :data:`DATASETS`, or a text file.

    Looked for in ``data_dir``, then ``$DESSILBI_DATA``, the user cache and Debian's
    ``/usr/share/datasets``. ``digits`` needs no file.

    Args:
        name: Of the set, or of a text file.
        data_dir: First place to look in.
        download: Fetch what is not found, with its checksum (not ``imagenet``, no texts).
        normalize: Batches are (value - mean) / std per channel; False leaves them in [0, 1].
            None takes the set's habit: colour sets are normalised, grey ones are not.
        dtype: Floating-point type of the images in a batch.
        device: Where images and labels live.
        validation: How many training images to hold out; of a text the last tenth always is.
        images: How many of the others to train on; of a text the windows of an epoch.
        test_images: How many of the test images to keep.
        split_seed: Chooses which; the same for every run that is to be compared.
        workers: Loader processes, for ``imagenet`` only.
        context: Characters of a window, for texts only.
    """
    if not dtype.is_floating_point:
        raise ValueError(f"dtype must be a floating-point type, got {dtype}")
    if context < 1:
        raise ValueError(f"context must be >= 1, got {context}")
    info, device = dataset_info(name, context), torch.device(device)
    normalized = info.normalize if normalize is None else normalize
    if normalized:
        pixels = Pixels.normalized(info.white, dtype, info.mean, info.std, device)
    else:
        pixels = Pixels(info.white, dtype)

    train: Split
    test: Split
    if text.is_text(name):
        for option, given in (("validation", validation), ("normalize", normalize)):
            if given:
                raise ValueError(
                    f"{option} is for images, got {given}; leave it out for {name}, a text, whose "
                    "last tenth is held out"
                )
        train, test, source = text.read_text(name, data_dir, context, device)
        classes = info.classes
    elif info.read is None:
        train, test, classes, source = imagenet.read_imagenet(data_dir, pixels, device, workers)
    else:
        raw, classes = info.read(data_dir, download), info.classes
        train = TensorSplit(raw.train_images.to(device), raw.train_labels.to(device), pixels)
        test = TensorSplit(raw.test_images.to(device), raw.test_labels.to(device), pixels)
        source = raw.source
    train, held_out = _hold_out(train, validation, images, split_seed)
    if test_images is not None:
        if not 1 <= test_images <= len(test):
            raise ValueError(f"test_images must be in [1, {len(test)}], got {test_images}")
        order = torch.randperm(len(test), generator=torch.Generator().manual_seed(split_seed))
        test = test.take(order[:test_images].sort().values)
    if text.is_text(name):
        held_out = test  # a text has no third part
    return Dataset(
        name,
        train,
        test,
        held_out,
        classes=classes,
        shape=info.shape,
        augmentation=info.augmentation,
        source=source,
    )


def _hold_out(
    train: Split, validation: int, images: int | None, seed: int
) -> tuple[Split, Split | None]:
    """Move random images out of the training set; the others, or some of them, keep their order."""
    total = len(train)
    if not 0 <= validation < total:
        raise ValueError(
            f"validation must be in [0, {total}), the training images, got {validation}"
        )
    left = total - validation
    if images is not None and not 1 <= images <= left:
        raise ValueError(f"images must be in [1, {left}], what validation leaves, got {images}")
    if validation == 0 and images is None:
        return train, None
    order = torch.randperm(total, generator=torch.Generator().manual_seed(seed))
    kept, held_out = order[:left][:images].sort().values, order[left:].sort().values
    return train.take(kept), train.take(held_out) if validation else None

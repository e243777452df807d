"""MNIST and Fashion-MNIST: four idx files with the same names, told apart by their checksums."""

import gzip
import hashlib
import struct
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dessilbi.lab.data import download
from dessilbi.lab.data.errors import DataError, damaged, warn_unofficial
from dessilbi.lab.data.places import folders, missing
from dessilbi.lab.data.splits import RawSet

FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)

# SHA-256 in the order of FILES, of uncompressed bytes: copies differ in how they were compressed.
CONTENT = {
    "mnist": (
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
    "fashion-mnist": (
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    ),
}

_COUNTS = (60_000, 60_000, 10_000, 10_000)
_TORCHVISION = {"mnist": "MNIST", "fashion-mnist": "FashionMNIST"}


def read_mnist(name: str, data_dir: str | Path | None, fetch: bool) -> RawSet:
    """Find (or fetch) and read one of the two sets.

    Args:
        name: ``mnist`` or ``fashion-mnist``.
        data_dir: First place to look in, or None.
        fetch: Download what is not found.
    """
    files = _find(name, data_dir, fetch)
    arrays = [_read_file(name, number, file) for number, file in enumerate(files)]
    for images, labels in ((0, 1), (2, 3)):
        _check_pair(files[labels], arrays[images], arrays[labels])
    train_images, train_labels, test_images, test_labels = arrays
    return RawSet(
        train_images.unsqueeze(1),
        train_labels.to(torch.int64),
        test_images.unsqueeze(1),
        test_labels.to(torch.int64),
        str(files[0].parent),
    )


def _find(name: str, data_dir: str | Path | None, fetch: bool) -> list[Path]:
    """The four files, from the first folder that has them all."""
    # Flat, too: a folder is what the user says it is, and the checksums have the last word.
    places = folders(data_dir, name, f"{_TORCHVISION[name]}/raw", "", "raw")
    for folder in places:
        # Plain if there is a choice: no time spent on gzip.
        pairs = [(folder / stem, folder / f"{stem}.gz") for stem in FILES]
        found = [path for pair in pairs for path in pair if path.is_file()]
        if {path.stem for path in found} == set(FILES):
            return [next(path for path in pair if path.is_file()) for pair in pairs]
    if not fetch:
        wanted = ", ".join(f"{stem}[.gz]" for stem in FILES)
        raise missing(name, wanted, places, download.way_out(name))
    download.fetch(name, places[0])
    return [places[0] / f"{stem}.gz" for stem in FILES]


def _read_file(name: str, number: int, path: Path) -> Tensor:
    """Read one of the four files and make sure that it belongs to this set."""
    stem, official = FILES[number], _COUNTS[number]
    content = _read_bytes(path)
    sha256 = hashlib.sha256(content).hexdigest()
    for other, checksums in CONTENT.items():
        if sha256 in checksums and sha256 != CONTENT[name][number]:
            real = FILES[checksums.index(sha256)]
            raise DataError(
                f"{path} is {real} of {other}, not {stem} of {name}. Put each set in a folder "
                f"of its own name ({name}/, {other}/) and name their parent in --data-dir."
            )
    values = _parse_idx(content, path, 3 if "images" in stem else 1)
    if sha256 != CONTENT[name][number]:
        if values.shape[1:] not in ((), (28, 28)):
            raise damaged(path, f"its images are {tuple(values.shape[1:])} pixels, not (28, 28)")
        if len(values) == official:
            raise damaged(path, f"its content has SHA-256 {sha256}, not that of {name}")
        warn_unofficial(path, f"{len(values):,} entries", f"{official:,}")
    return values


def _read_bytes(path: Path) -> bytearray:
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            return bytearray(file.read())
    except (OSError, EOFError, zlib.error) as error:
        raise damaged(path, f"it cannot be read ({error})") from error


def _parse_idx(content: bytearray, path: Path, dimensions: int) -> Tensor:
    """An idx file: a magic number that tells type and dimensions, big-endian sizes, bytes."""
    magic, start = bytes([0, 0, 0x08, dimensions]), 4 * (1 + dimensions)
    if content[:4] != magic or len(content) < start:
        raise damaged(
            path, f"it starts with {content[:4].hex()}, must with {magic.hex()} and sizes"
        )
    shape = struct.unpack_from(f">{dimensions}I", content, 4)
    try:
        return torch.from_numpy(np.frombuffer(content, np.uint8, offset=start).reshape(shape))
    except ValueError as error:
        found = len(content) - start
        raise damaged(
            path, f"it has {found:,} bytes for the shape {shape} in its header"
        ) from error


def _check_pair(path: Path, images: Tensor, labels: Tensor) -> None:
    if len(images) != len(labels):
        raise damaged(path, f"it has {len(labels):,} labels for {len(images):,} images")
    if len(labels) and int(labels.max()) > 9:
        raise damaged(path, f"its labels go up to {int(labels.max())}, must be in 0..9")

"""MNIST and Fashion-MNIST: four idx files with the same names, told apart by their checksums."""

import hashlib
import struct
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dessilbi.lab.data.errors import DataError, damaged, read_bytes, warn_unofficial
from dessilbi.lab.data.places import SOURCES, fetch, folders, missing
from dessilbi.lab.data.splits import RawSet

COUNTS = {
    "train-images-idx3-ubyte": 60_000,
    "train-labels-idx1-ubyte": 60_000,
    "t10k-images-idx3-ubyte": 10_000,
    "t10k-labels-idx1-ubyte": 10_000,
}
"""Entries of each published file."""
_TORCHVISION = {"mnist": "MNIST", "fashion-mnist": "FashionMNIST"}


def read_mnist(name: str, data_dir: str | Path | None, download: bool) -> RawSet:
    """Find (or download) and read one of the two sets."""
    files = _find(name, data_dir, download)
    x, y, u, v = (_read_file(name, stem, file) for stem, file in zip(COUNTS, files, strict=True))
    for images, labels, file in ((x, y, files[1]), (u, v, files[3])):
        if len(images) != len(labels):
            raise damaged(file, f"it has {len(labels):,} labels for {len(images):,} images")
        if len(labels) and int(labels.max()) > 9:
            raise damaged(file, f"its labels go up to {int(labels.max())}, must be in 0..9")
    return RawSet(x.unsqueeze(1), y.long(), u.unsqueeze(1), v.long(), str(files[0].parent))


def _find(name: str, data_dir: str | Path | None, download: bool) -> list[Path]:
    """The four files, from the first folder that has them all."""
    # Flat, too: a folder is what the user says it is, and the checksums have the last word.
    places = folders(data_dir, name, f"{_TORCHVISION[name]}/raw", "", "raw")
    for folder in places:
        # Plain if there is a choice: no time spent on gzip.
        pairs = [(folder / stem, folder / f"{stem}.gz") for stem in COUNTS]
        found = [next((path for path in pair if path.is_file()), None) for pair in pairs]
        whole = [path for path in found if path is not None]
        if len(whole) == len(pairs):
            return whole
    if not download:
        raise missing(name, ", ".join(f"{stem}[.gz]" for stem in COUNTS), places)
    fetch(name, places[0])
    return [places[0] / f"{stem}.gz" for stem in COUNTS]


def _read_file(name: str, stem: str, path: Path) -> Tensor:
    """Read one of the four files and make sure that it belongs to this set."""
    content = read_bytes(path)
    sha256 = hashlib.sha256(content).hexdigest()
    for other in _TORCHVISION:
        for real, checksum in SOURCES[other].sha256.items():
            if sha256 == checksum and (other, real) != (name, stem):
                raise DataError(
                    f"{path} is {real} of {other}, not {stem} of {name}. Put each set in a folder "
                    f"of its own name ({name}/, {other}/) and name their parent in --data-dir."
                )
    values = parse_idx(content, path, 3 if "images" in stem else 1)
    if sha256 != SOURCES[name].sha256[stem]:
        if values.shape[1:] not in ((), (28, 28)):
            raise damaged(path, f"its images are {tuple(values.shape[1:])} pixels, not (28, 28)")
        if len(values) == COUNTS[stem]:
            raise damaged(path, f"its content has SHA-256 {sha256}, not that of {name}")
        warn_unofficial(path, f"{len(values):,} entries", f"{COUNTS[stem]:,}")
    return values


def parse_idx(content: bytes, path: Path, dimensions: int) -> Tensor:
    """An idx file: a magic number that tells type and dimensions, big-endian sizes, bytes."""
    magic, start = bytes([0, 0, 0x08, dimensions]), 4 * (1 + dimensions)
    if content[:4] != magic or len(content) < start:
        raise damaged(
            path, f"it starts with {content[:4].hex()}, must with {magic.hex()} and sizes"
        )
    shape = struct.unpack_from(f">{dimensions}I", content, 4)
    values = np.frombuffer(bytearray(content), np.uint8, offset=start)
    try:
        return torch.from_numpy(values.reshape(shape))
    except ValueError as error:
        raise damaged(
            path, f"it has {len(values):,} bytes for the shape {shape} in its header"
        ) from error

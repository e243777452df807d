"""CIFAR-10 as it is found: binary batches or image files, in folders or in an archive."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from dessilbi.lab.data import download, image_tree
from dessilbi.lab.data.archive import members
from dessilbi.lab.data.cache import cached
from dessilbi.lab.data.errors import DataError, damaged, warn_unofficial
from dessilbi.lab.data.places import download_root, missing, search_roots
from dessilbi.lab.data.splits import RawSet

CLASSES = (
    "airplane", "automobile", "bird", "cat", "deer",
    "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip

_FILES = (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin")
_PIXELS = 3 * 32 * 32
_LARGEST_BATCH = 64 << 20  # bytes; the published batches have 31 million


def read_cifar10(data_dir: str | Path | None, fetch: bool) -> RawSet:
    """Find (or fetch) and read CIFAR-10; what takes long to decode is kept in the user cache.

    Args:
        data_dir: First place to look in, or None.
        fetch: Download the binary archive if no form of the set is found.
    """
    folders = [
        folder
        for root in search_roots(data_dir)
        for folder in (root / "cifar10", root / "cifar-10", root)
    ]
    raw = _read_first(folders)
    if raw is None and fetch:
        folder = download_root(data_dir) / "cifar10"
        download.fetch("cifar10", folder)
        raw = _read_first([folder])
    if raw is None:
        raise missing(
            "cifar10",
            "cifar-10-batches-bin/, train/<class>/*.jpg, cifar-10-binary.tar.gz or "
            "cifar10-jpeg.tar.gz (cifar-10-batches-py is pickled, and pickles are not read)",
            folders,
            f"Run again with --download ({download.megabytes('cifar10')}), "
            "or name the folder in --data-dir or DESSILBI_DATA.",
        )
    for labels, official in ((raw.train_labels, 50_000), (raw.test_labels, 10_000)):
        if len(labels) != official:
            warn_unofficial(raw.source, f"{len(labels):,} images in a split", f"{official:,}")
    return raw


def _read_first(folders: Sequence[Path]) -> RawSet | None:
    """Read the first form of the set that is there; the exact and the quick forms come first."""
    forms: list[tuple[str, Callable[[Path], RawSet]]] = [
        ("cifar-10-batches-bin", _binary_folder),
        ("data_batch_1.bin", lambda file: _binary_folder(file.parent)),
        ("cifar-10-binary.tar.gz", _binary_archive),
        *((f"train/{name}", lambda sub: _image_folder(sub.parent.parent)) for name in CLASSES),
        ("cifar10-jpeg.tar.gz", _image_archive),
    ]
    for folder in folders:
        for sign, read in forms:
            if (folder / sign).exists():
                return read(folder / sign)
    return None


def _binary_folder(folder: Path) -> RawSet:
    try:
        files = {name: (folder / name).read_bytes() for name in _FILES if (folder / name).exists()}
    except OSError as error:
        raise DataError(f"{folder} cannot be read: {error}") from error
    return _join(files, folder)


def _binary_archive(path: Path) -> RawSet:
    def build() -> RawSet:
        found = members(path, lambda member: member.name in _FILES, _LARGEST_BATCH)
        return _join({name.name: content for name, content in found}, path)

    return _cached_archive(path, build, str(path))


def _image_archive(path: Path) -> RawSet:
    def build() -> RawSet:
        files = members(path, image_tree.is_image, image_tree.LARGEST_FILE)
        return image_tree.decode(files, path, CLASSES, (32, 32))

    return _cached_archive(path, build, f"{path} (image files; JPEG is lossy)")


def _image_folder(folder: Path) -> RawSet:
    files = image_tree.list_tree(folder)

    def build() -> RawSet:
        return image_tree.decode(image_tree.read_files(folder, files), folder, CLASSES, (32, 32))

    source = f"{folder} (image files; JPEG is lossy)"
    return cached("cifar10", image_tree.fingerprint(folder, files), source, build)


def _cached_archive(path: Path, build: Callable[[], RawSet], source: str) -> RawSet:
    try:
        with path.open("rb") as file:
            fingerprint = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    return cached("cifar10", fingerprint, source, build)


def _join(files: Mapping[str, bytes], origin: Path) -> RawSet:
    """Parse the six batches: five make the training set, the last is the test set."""
    if absent := [name for name in _FILES if name not in files]:
        raise damaged(origin, f"it has no {', '.join(absent)}")
    parts = [_parse(files[name], origin / name) for name in _FILES]
    images = [torch.from_numpy(part[0].reshape(-1, 3, 32, 32)) for part in parts]
    labels = [torch.from_numpy(part[1]) for part in parts]
    return RawSet(
        torch.cat(images[:-1]), torch.cat(labels[:-1]), images[-1], labels[-1], str(origin)
    )


def _parse(content: bytes, path: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Records of one label byte and 3,072 pixel bytes."""
    if not content or len(content) % (1 + _PIXELS):
        raise damaged(
            path,
            f"it has {len(content):,} bytes, no whole number of {1 + _PIXELS:,}-byte records",
        )
    records = np.frombuffer(content, np.uint8).reshape(-1, 1 + _PIXELS)
    labels = records[:, 0].astype(np.int64)
    if labels.max() >= len(CLASSES):
        raise damaged(path, f"its labels go from {labels.min()} to {labels.max()}, must be in 0..9")
    return records[:, 1:].copy(), labels

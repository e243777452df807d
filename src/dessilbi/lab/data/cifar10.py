"""CIFAR-10 in whatever form it is found: binary or python batches, images, or an archive."""

import hashlib
import io
import pickle
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

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

# A pickle is a program: these are opened only when they are, byte for byte, the published ones.
PYTHON_MD5 = {
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
}
_BINARY_FILES = tuple(f"{stem}.bin" for stem in PYTHON_MD5)
_PYTHON_FILES = tuple(PYTHON_MD5)
_PIXELS = 3 * 32 * 32
_LARGEST_BATCH = 64 << 20  # bytes; the published batches have 31 million

Arrays = tuple[NDArray[np.uint8], NDArray[np.int64]]


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
            "cifar-10-batches-bin/, cifar-10-batches-py/, train/<class>/*.jpg, "
            "cifar-10-binary.tar.gz, cifar-10-python.tar.gz or cifar10-jpeg.tar.gz",
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
        ("cifar-10-batches-py", _python_folder),
        ("data_batch_1", lambda file: _python_folder(file.parent)),
        ("cifar-10-binary.tar.gz", _binary_archive),
        ("cifar-10-python.tar.gz", _python_archive),
        *((f"train/{name}", lambda sub: _image_folder(sub.parent.parent)) for name in CLASSES),
        ("cifar10-jpeg.tar.gz", _image_archive),
    ]
    for folder in folders:
        for sign, read in forms:
            if (folder / sign).exists():
                return read(folder / sign)
    return None


def _binary_folder(folder: Path) -> RawSet:
    return _join(_files(folder, _BINARY_FILES), _BINARY_FILES, folder, _parse_binary)


def _python_folder(folder: Path) -> RawSet:
    return _join(_files(folder, _PYTHON_FILES), _PYTHON_FILES, folder, _parse_python)


def _binary_archive(path: Path) -> RawSet:
    def build() -> RawSet:
        return _join(_archived(path, _BINARY_FILES), _BINARY_FILES, path, _parse_binary)

    return _cached_archive(path, build, str(path))


def _python_archive(path: Path) -> RawSet:
    def build() -> RawSet:
        return _join(_archived(path, _PYTHON_FILES), _PYTHON_FILES, path, _parse_python)

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


def _files(folder: Path, names: tuple[str, ...]) -> dict[str, bytes]:
    """The batch files of a folder, by name."""
    try:
        return {name: (folder / name).read_bytes() for name in names if (folder / name).exists()}
    except OSError as error:
        raise DataError(f"{folder} cannot be read: {error}") from error


def _archived(path: Path, names: tuple[str, ...]) -> dict[str, bytes]:
    """The batch files of an archive, by name."""
    found = members(path, lambda member: member.name in names, _LARGEST_BATCH)
    return {name.name: content for name, content in found}


def _join(
    files: Mapping[str, bytes],
    names: tuple[str, ...],
    origin: Path,
    parse: Callable[[str, bytes, Path], Arrays],
) -> RawSet:
    """Parse the six batches: five make the training set, the last is the test set."""
    if absent := [name for name in names if name not in files]:
        raise damaged(origin, f"it has no {', '.join(absent)}")
    parts = [parse(name, files[name], origin) for name in names]
    images = [torch.from_numpy(part[0].reshape(-1, 3, 32, 32)) for part in parts]
    labels = [torch.from_numpy(part[1]) for part in parts]
    return RawSet(
        torch.cat(images[:-1]), torch.cat(labels[:-1]), images[-1], labels[-1], str(origin)
    )


def _parse_binary(name: str, content: bytes, origin: Path) -> Arrays:
    """Records of one label byte and 3,072 pixel bytes."""
    if not content or len(content) % (1 + _PIXELS):
        raise damaged(
            origin / name,
            f"it has {len(content):,} bytes, no whole number of {1 + _PIXELS:,}-byte records",
        )
    records = np.frombuffer(content, np.uint8).reshape(-1, 1 + _PIXELS)
    return _checked(records[:, 1:].copy(), records[:, 0].astype(np.int64), origin / name)


def _parse_python(name: str, content: bytes, origin: Path) -> Arrays:
    """A pickled dictionary of Python 2, opened only after its checksum was found right."""
    found, expected = hashlib.md5(content, usedforsecurity=False).hexdigest(), PYTHON_MD5[name]
    if found != expected:
        raise damaged(
            origin / name, f"its MD5 is {found}, not {expected}, so the pickle was not opened"
        )
    batch = _ArraysOnly(io.BytesIO(content), encoding="latin1").load()
    images = np.array(batch["data"], dtype=np.uint8)
    return _checked(images, np.array(batch["labels"], dtype=np.int64), origin / name)


def _checked(images: NDArray[np.uint8], labels: NDArray[np.int64], path: Path) -> Arrays:
    if images.shape != (len(labels), _PIXELS):
        raise damaged(path, f"it has images {images.shape} for {len(labels):,} labels")
    if labels.min() < 0 or labels.max() >= len(CLASSES):
        raise damaged(path, f"its labels go from {labels.min()} to {labels.max()}, must be in 0..9")
    return images, labels


class _ArraysOnly(pickle.Unpickler):
    """A second lock behind the checksum: a pickle may build numpy arrays and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        """Resolve the three names that a pickled array needs."""
        # numpy's own constructor, taken from an array: where it lives differs between versions.
        reconstruct = np.empty(0).__reduce__()[0]
        allowed = {
            ("numpy.core.multiarray", "_reconstruct"): reconstruct,
            ("numpy._core.multiarray", "_reconstruct"): reconstruct,
            ("numpy", "ndarray"): np.ndarray,
            ("numpy", "dtype"): np.dtype,
        }
        if (module, name) not in allowed:
            raise DataError(f"a CIFAR-10 batch asks for {module}.{name}, which it may not use")
        return allowed[module, name]

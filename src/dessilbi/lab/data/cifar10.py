"""CIFAR-10 as it is found: binary batches in a folder or an archive, or an archive of images."""

from pathlib import Path

import torch
from torch import Tensor

from dessilbi.lab.data.errors import damaged, read_bytes, warn_unofficial
from dessilbi.lab.data.image_archive import members, read_image_archive
from dessilbi.lab.data.places import fetch, folders, missing
from dessilbi.lab.data.splits import RawSet

CLASSES = (
    "airplane", "automobile", "bird", "cat", "deer",
    "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip

_FILES = (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin")
_RECORD = 1 + 3 * 32 * 32  # a label byte and the pixels


def read_cifar10(data_dir: str | Path | None, download: bool) -> RawSet:
    """Find (or download) and read CIFAR-10; images, slow to decode, are kept in the user cache."""
    places = folders(data_dir, "cifar10", "cifar-10", "")
    found = (raw for folder in places if (raw := _read(folder)) is not None)
    raw = next(found, None)
    if raw is None and download:
        fetch("cifar10", places[0])
        raw = _read(places[0])
    if raw is None:
        raise missing(
            "cifar10",
            "cifar-10-batches-bin/, cifar-10-binary.tar.gz or cifar10-jpeg.tar.gz "
            "(cifar-10-batches-py is pickled, and pickles are not read)",
            places,
        )
    for labels, official in ((raw.train_labels, 50_000), (raw.test_labels, 10_000)):
        if len(labels) != official:
            warn_unofficial(raw.source, f"{len(labels):,} images in a split", f"{official:,}")
    return raw


def _read(folder: Path) -> RawSet | None:
    """Read the first form of the set that is there; the exact and the quick forms come first."""
    for batches in (folder / "cifar-10-batches-bin", folder):
        there = [batches / name for name in _FILES if (batches / name).exists()]
        if there:
            return _join({path.name: read_bytes(path) for path in there}, batches)
    archive = folder / "cifar-10-binary.tar.gz"
    if archive.exists():
        found = members(archive, lambda member: member.name in _FILES)
        return _join({path.name: content for path, content in found}, archive)
    images = folder / "cifar10-jpeg.tar.gz"
    return read_image_archive(images, CLASSES, (32, 32)) if images.exists() else None


def _join(files: dict[str, bytes], origin: Path) -> RawSet:
    """Parse the six batches: five make the training set, the last is the test set."""
    if absent := [name for name in _FILES if name not in files]:
        raise damaged(origin, f"it has no {', '.join(absent)}")
    *training, test = (_parse(files[name], origin / name) for name in _FILES)
    return RawSet(*_taken_apart(torch.cat(training)), *_taken_apart(test), str(origin))


def _parse(content: bytes, path: Path) -> Tensor:
    if not content or len(content) % _RECORD:
        raise damaged(
            path, f"it has {len(content):,} bytes, no whole number of {_RECORD:,}-byte records"
        )
    records = torch.frombuffer(bytearray(content), dtype=torch.uint8).view(-1, _RECORD)
    if (largest := int(records[:, 0].max())) >= len(CLASSES):
        raise damaged(path, f"its labels go up to {largest}, must be in 0..9")
    return records


def _taken_apart(records: Tensor) -> tuple[Tensor, Tensor]:
    """Images and labels."""
    return records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0].to(torch.int64)

"""A set kept as ``train/<class>/*.jpg`` and ``test/<class>/*.jpg`` (or png), decoded once.

The files are in a folder or in an archive; the decoded set is kept in the user's cache.
"""

import hashlib
import io
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePath, PurePosixPath
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dessilbi._disk import cache_dir, write_whole
from dessilbi.lab.data.archive import members
from dessilbi.lab.data.errors import DataError, damaged, require
from dessilbi.lab.data.splits import RawSet

_Image = tuple[PurePosixPath, int, NDArray[np.uint8]]


def read_image_files(
    name: str, origin: Path, classes: Sequence[str], size: tuple[int, int]
) -> RawSet:
    """Decode a folder or an archive of image files, ordered by path, or take what was kept of it.

    A cache that cannot be written to costs a warning and the same work next time, not the run.

    Args:
        name: Name of the set.
        origin: The folder that holds ``train/`` and ``test/``, or a ``.tar.gz`` of it.
        classes: Class folders, in the order of the labels; all must be there, and no other.
        size: (width, height) that every image must have.

    Raises:
        DataError: An image is damaged or of another size, or a class is missing or unknown.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load, save

    source = f"{origin} (image files; JPEG is lossy)"
    path = cache_dir("decoded") / f"{name}-{_fingerprint(origin)}.safetensors"
    try:
        return RawSet(**load(path.read_bytes()), source=source)
    except (SafetensorError, OSError):
        raw = _decode(origin, classes, size)._replace(source=source)
    tensors = {field: t for field, t in raw._asdict().items() if field != "source"}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, save(tensors))
    except OSError as error:
        warnings.warn(
            f"{path} cannot be written ({error}), so {name} will be decoded again next time. "
            "Set DESSILBI_CACHE to a folder that can be written to.",
            UserWarning,
            stacklevel=2,
        )
    return raw


def _is_image(path: PurePath) -> bool:
    """Whether a file is called ``[.../](train|test)/<class>/<something>.(jpg|jpeg|png)``."""
    suffixes = (".jpg", ".jpeg", ".png")
    return path.parts[-3:-2] in (("train",), ("test",)) and path.suffix.lower() in suffixes


def _images_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*/*/*") if _is_image(path))


def _fingerprint(origin: Path) -> str:
    """A hash of names, sizes and times: sees every usual change without opening 60,000 files."""
    digest = hashlib.sha256()
    for path in _images_in(origin) if origin.is_dir() else [origin]:
        status = path.stat()
        digest.update(f"{path}\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:32]


def _files(origin: Path) -> Iterator[tuple[PurePosixPath, bytes]]:
    if not origin.is_dir():
        yield from members(origin, _is_image)
        return
    for path in _images_in(origin):
        try:
            yield PurePosixPath(path.relative_to(origin).as_posix()), path.read_bytes()
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error}") from error


def _decode(origin: Path, classes: Sequence[str], size: tuple[int, int]) -> RawSet:
    library = require("PIL.Image", purpose=f"{origin}, a tree of image files,", install="pillow")
    found: dict[str, list[_Image]] = {"train": [], "test": []}
    for path, content in _files(origin):
        split, class_name = path.parts[-3:-1]
        if class_name not in classes:
            raise DataError(
                f"{origin}: folder {class_name!r} of {path} is none of the classes "
                f"{', '.join(classes)}. Remove it or name another folder in --data-dir."
            )
        pixels = _decode_image(library, content, f"{origin}: {path}", size)
        found[split].append((path, classes.index(class_name), pixels))
    for split, images in found.items():
        empty = sorted(set(classes) - {classes[label] for _, label, _ in images})
        if empty:
            raise DataError(
                f"{origin}: {split}/ has no images of {', '.join(empty)}. Every class needs images "
                "in train/ and in test/; add them, or name another folder in --data-dir."
            )
        images.sort(key=lambda entry: entry[0])
    return RawSet(*_stacked(found["train"]), *_stacked(found["test"]), str(origin))


def _stacked(images: list[_Image]) -> tuple[Tensor, Tensor]:
    """Images (N, C, H, W) and their labels."""
    pixels = torch.from_numpy(np.stack([pixels for _, _, pixels in images]))
    labels = torch.tensor([label for _, label, _ in images])
    return pixels.permute(0, 3, 1, 2).contiguous(), labels


def _decode_image(
    library: Any, content: bytes, label: str, size: tuple[int, int]
) -> NDArray[np.uint8]:
    try:
        with library.open(io.BytesIO(content), formats=("JPEG", "PNG")) as image:
            if image.size != size:  # known from the header, before any pixel is decoded
                raise damaged(label, f"it is {image.size} pixels, must be {size}")
            return np.asarray(image.convert("RGB"))
    except (OSError, SyntaxError, ValueError, library.DecompressionBombError) as error:
        raise damaged(label, f"it cannot be decoded ({error})") from error

"""A small-image set kept as ``train/<class>/*.jpg`` and ``test/<class>/*.jpg`` (or png)."""

import hashlib
import io
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dessilbi.lab.data.errors import DataError, damaged, require
from dessilbi.lab.data.splits import RawSet

_SUFFIXES = {".jpg", ".jpeg", ".png"}
LARGEST_FILE = 1 << 20
"""Bytes; far above any 32x32 image, far below what would hurt."""


def is_image(path: PurePosixPath) -> bool:
    """Whether a file is called ``[.../](train|test)/<class>/<something>.(jpg|jpeg|png)``."""
    return (
        len(path.parts) >= 3
        and path.parts[-3] in ("train", "test")
        and path.suffix.lower() in _SUFFIXES
    )


def list_tree(folder: Path) -> list[Path]:
    """The images below ``folder``, sorted, so that a set does not depend on the file system."""
    return sorted(
        path
        for split in ("train", "test")
        for path in (folder / split).glob("*/*")
        if is_image(PurePosixPath(path.relative_to(folder).as_posix()))
    )


def fingerprint(folder: Path, files: Sequence[Path]) -> str:
    """A hash of names, sizes and times: sees every usual change without opening 60,000 files."""
    digest = hashlib.sha256()
    for path in files:
        status = path.stat()
        digest.update(
            f"{path.relative_to(folder).as_posix()}\0{status.st_size}\0{status.st_mtime_ns}\n".encode()
        )
    return digest.hexdigest()


def read_files(folder: Path, files: Iterable[Path]) -> Iterator[tuple[PurePosixPath, bytes]]:
    """The content of each file, in the form that :func:`decode` takes."""
    for path in files:
        try:
            content = path.read_bytes()
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error}") from error
        yield PurePosixPath(path.relative_to(folder).as_posix()), content


def decode(
    files: Iterable[tuple[PurePosixPath, bytes]],
    origin: Path,
    classes: Sequence[str],
    size: tuple[int, int],
) -> RawSet:
    """Decode images into one set, ordered by path whatever the order they come in.

    Args:
        files: (path, content) pairs; paths end in ``<split>/<class>/<file>``.
        origin: The folder or archive they are from, for messages.
        classes: Class folders, in the order of the labels; all must be there, and no other.
        size: (width, height) that every image must have.

    Raises:
        DataError: An image is damaged or of another size, or a class is missing or unknown.
    """
    library = require("PIL.Image", purpose=f"{origin}, a tree of image files,", install="pillow")
    numbers = {name: number for number, name in enumerate(classes)}
    found: dict[str, list[tuple[PurePosixPath, int, NDArray[np.uint8]]]] = {"train": [], "test": []}
    for path, content in files:
        split, class_name = path.parts[-3:-1]
        if class_name not in numbers:
            raise DataError(
                f"{origin}: folder {class_name!r} of {path} is none of the classes "
                f"{', '.join(classes)}. Remove it or name another folder in --data-dir."
            )
        pixels = _decode_image(library, content, f"{origin}: {path}", size)
        found[split].append((path, numbers[class_name], pixels))

    for split, images in found.items():
        empty = sorted(set(classes) - {classes[label] for _, label, _ in images})
        if empty:
            raise DataError(
                f"{origin}: {split}/ has no images of {', '.join(empty)}. Every class needs images "
                "in train/ and in test/; add them, or name another folder in --data-dir."
            )
        images.sort(key=lambda entry: entry[0])
    return RawSet(*_stack(found["train"]), *_stack(found["test"]), str(origin))


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


def _stack(images: list[tuple[PurePosixPath, int, NDArray[np.uint8]]]) -> tuple[Tensor, Tensor]:
    """Images (N, H, W, C) as a contiguous (N, C, H, W) tensor, and their labels."""
    pixels = torch.from_numpy(np.stack([entry[2] for entry in images]))
    labels = torch.tensor([entry[1] for entry in images], dtype=torch.int64)
    return pixels.permute(0, 3, 1, 2).contiguous(), labels

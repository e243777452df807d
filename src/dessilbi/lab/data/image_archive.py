"""A set as a ``.tar.gz`` of ``train/<class>/*.jpg`` and ``test/<class>/*.jpg`` (or png).

Archives are read in place: nothing is extracted to disk. Images are decoded once, and kept in the
user's cache.
"""

import gzip
import io
import tarfile
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dessilbi._disk import cache_dir, write_whole
from dessilbi.lab.data.errors import DataError, damaged, require
from dessilbi.lab.data.splits import RawSet

_CHUNK = 1 << 20


def members(
    path: Path, wanted: Callable[[PurePosixPath], bool]
) -> Iterator[tuple[PurePosixPath, bytes]]:
    """The regular files of a tar archive that ``wanted`` accepts by name, as (name, content).

    Names only ever serve as labels, so ``../`` and links in an archive have no effect.
    """
    try:
        # gzip apart from tar: tarfile's own streaming mode "r|gz" never looks at gzip's checksum.
        with gzip.open(path) as stream, tarfile.open(fileobj=stream, mode="r|") as tar:
            for member in tar:
                content = tar.extractfile(member) if member.isreg() else None
                if content is not None and wanted(name := PurePosixPath(member.name)):
                    yield name, content.read()
            while stream.read(_CHUNK):  # what follows the last member, and then the checksum
                pass
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise damaged(path, f"the archive cannot be read to its end ({error})") from error


def read_image_archive(archive: Path, classes: Sequence[str], size: tuple[int, int]) -> RawSet:
    """Decode an archive, its images ordered by path, or take what was kept of it.

    A cache that cannot be written to costs a warning and the same work next time, not the run.

    Args:
        archive: The file.
        classes: Class folders, in the order of the labels; all must be there, and no other.
        size: (width, height) that every image must have.

    Raises:
        DataError: An image is damaged or of another size, or a class is missing or unknown.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load, save

    source, status = f"{archive} (image files; JPEG is lossy)", archive.stat()
    key = f"{archive.name.removesuffix('.tar.gz')}-{status.st_size}-{status.st_mtime_ns}"
    kept = cache_dir("decoded") / f"{key}.safetensors"
    try:
        return RawSet(**load(kept.read_bytes()), source=source)
    except (SafetensorError, OSError):
        raw = _decode(archive, classes, size)._replace(source=source)
    tensors = {field: t for field, t in raw._asdict().items() if field != "source"}
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        write_whole(kept, save(tensors))
    except OSError as error:
        warnings.warn(
            f"{kept} cannot be written ({error}), so {archive.name} will be decoded again next "
            "time. Set DESSILBI_CACHE to a folder that can be written to.",
            UserWarning,
            stacklevel=2,
        )
    return raw


def _is_image(path: PurePosixPath) -> bool:
    """Whether a file is called ``[.../](train|test)/<class>/<something>.(jpg|jpeg|png)``."""
    suffixes = (".jpg", ".jpeg", ".png")
    return path.parts[-3:-2] in (("train",), ("test",)) and path.suffix.lower() in suffixes


def _decode(archive: Path, classes: Sequence[str], size: tuple[int, int]) -> RawSet:
    library = require("PIL.Image", purpose=f"{archive}, an archive of images,", install="pillow")
    found: dict[str, dict[PurePosixPath, NDArray[np.uint8]]] = {"train": {}, "test": {}}
    for path, content in members(archive, _is_image):
        pixels = _decode_image(library, content, f"{archive}: {path}", size)
        found[path.parts[-3]][path] = pixels
    tensors: list[Tensor] = []
    for split, images in found.items():
        folders = {path.parts[-2] for path in images}
        if odd := sorted(folders - set(classes)):
            raise DataError(
                f"{archive}: folder {odd[0]!r} in {split}/ is none of the classes "
                f"{', '.join(classes)}. Name another folder in --data-dir."
            )
        if empty := sorted(set(classes) - folders):
            raise DataError(
                f"{archive}: {split}/ has no images of {', '.join(empty)}. Every class needs "
                "images in train/ and in test/; name another folder in --data-dir."
            )
        paths = sorted(images)
        stacked = torch.from_numpy(np.stack([images[path] for path in paths]))
        labels = torch.tensor([classes.index(path.parts[-2]) for path in paths])
        tensors += [stacked.permute(0, 3, 1, 2).contiguous(), labels]
    x, y, u, v = tensors
    return RawSet(x, y, u, v, str(archive))


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

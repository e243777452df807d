"""The idx format of MNIST: a magic number, big-endian sizes, bytes; plain or in gzip."""

import gzip
import hashlib
import math
import struct
import zlib
from io import BufferedIOBase
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dessilbi.lab.data.errors import DataError, damaged

_UNSIGNED_BYTE = 0x08
_CHUNK = 1 << 20


class IdxArray(NamedTuple):
    """The array of one file, and the SHA-256 of its uncompressed bytes.

    Of the uncompressed bytes because copies differ in how they were compressed.
    """

    values: NDArray[np.uint8]
    sha256: str


def read_idx(path: Path, dimensions: int) -> IdxArray:
    """Read an idx file of unsigned bytes and check everything its header promises.

    Args:
        path: The file; ``.gz`` means gzip.
        dimensions: How many axes it must have: 3 for images, 1 for labels.

    Raises:
        DataError: The file cannot be read, is no such idx file, is damaged, too short or too long.
    """
    try:
        with path.open("rb") as file:
            stream = gzip.GzipFile(fileobj=file) if path.suffix == ".gz" else file
            return _read(stream, path, dimensions)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error}") from error


def _read(stream: BufferedIOBase, path: Path, dimensions: int) -> IdxArray:
    magic = bytes([0, 0, _UNSIGNED_BYTE, dimensions])
    header, problem = _read_up_to(stream, 4 * (1 + dimensions))
    if len(header) < 4 * (1 + dimensions):
        expected = 4 * (1 + dimensions)
        raise damaged(path, f"its header has {len(header)} of {expected} bytes{problem}")
    if header[:4] != magic:
        raise damaged(
            path,
            f"it starts with {header[:4].hex()}, an idx file of {dimensions}-dimensional bytes "
            f"with {magic.hex()}",
        )
    shape = struct.unpack(f">{dimensions}I", header[4:])
    promised = math.prod(shape)
    # One byte more than promised: that notices what is too long, and makes gzip reach its checksum.
    body, problem = _read_up_to(stream, promised + 1)
    if problem or len(body) != promised:
        found = "more" if len(body) > promised else f"{len(body):,} bytes"
        raise damaged(path, f"its header promises {promised:,} bytes, found {found}{problem}")
    digest = hashlib.sha256(header)
    digest.update(body)
    return IdxArray(np.frombuffer(body, np.uint8).reshape(shape), digest.hexdigest())


def _read_up_to(stream: BufferedIOBase, wanted: int) -> tuple[bytearray, str]:
    """At most ``wanted`` bytes, and what ended a damaged stream (empty if nothing did)."""
    data = bytearray()
    try:
        while len(data) < wanted and (chunk := stream.read(min(_CHUNK, wanted - len(data)))):
            data += chunk
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        return data, f" (gzip: {error})"
    return data, ""

"""Tensor files that know what they are: versioned, checksummed, written whole or not at all.

A file is safetensors with one metadata entry, ``dessilbi``: JSON with the format's name, its
version, a checksum over names, dtypes, shapes and bytes of everything else, and plain values. (One
entry: safetensors writes several in no fixed order, and equal contents shall make equal files.)
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from dessilbi._disk import write_whole
from dessilbi.errors import DessilbiError

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

    Arrays = Mapping[str, NDArray[np.generic]]

_KEY = "dessilbi"


class FormatError(DessilbiError, ValueError):
    """A file that is damaged, foreign or too new; the message says which."""


def write(file: str | Path, kind: str, version: int, values: dict[str, Any], arrays: Arrays) -> int:
    """Write a file of format ``kind``, whole or not at all; returns its size."""
    path = Path(file)
    header = {"format": kind, "version": version, **values}
    header["crc32"] = _checksum(header, arrays)
    content = save(dict(arrays), metadata={_KEY: json.dumps(header, sort_keys=True)})
    write_whole(path, content)
    return len(content)


def read(
    file: str | Path, kind: str, version: int
) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Values and arrays of a file of format ``kind``.

    Raises:
        FormatError: the file is damaged, of another format, or of a newer version.
        FileNotFoundError: there is no such file.
    """
    path = Path(file)
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist or is not a file")
    try:
        with safe_open(path, framework="np") as opened:
            header = _header(path, kind, version, opened.metadata())
            arrays = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    except (SafetensorError, TypeError, OSError) as error:
        raise FormatError(
            f"{path} is damaged or not a safetensors file ({error}); restore it from a backup, or "
            "remove it and record again"
        ) from error
    expected = header.pop("crc32", None)
    if _checksum(header, arrays) != expected:
        raise FormatError(
            f"{path} is damaged: its checksum does not match; restore it from a backup, or remove "
            "it and record again"
        )
    return header, arrays


def _header(path: Path, kind: str, version: int, metadata: dict[str, str] | None) -> dict[str, Any]:
    """The header of a file of this format and a version that can be read."""
    text = (metadata or {}).get(_KEY)
    if text is None:
        raise FormatError(f"{path} is a safetensors file of something else, not a {kind} file")
    try:
        header = json.loads(text)
    except json.JSONDecodeError as error:
        raise FormatError(f"{path} is damaged: its header is not JSON ({error})") from error
    if not isinstance(header, dict) or header.get("format") != kind:
        found = header.get("format") if isinstance(header, dict) else "unknown"
        raise FormatError(f"{path} is a {found} file, not a {kind} file")
    if not isinstance(header.get("version"), int) or header["version"] > version:
        raise FormatError(
            f"{path} is a {kind} file of version {header.get('version')}; this dessilbi reads "
            f"versions up to {version}: upgrade dessilbi"
        )
    return header


def _checksum(header: dict[str, Any], arrays: Arrays) -> int:
    crc = zlib.crc32(json.dumps(header, sort_keys=True).encode())
    for name in sorted(arrays):
        array = arrays[name]
        crc = zlib.crc32(f"{name} {array.dtype.str} {array.shape}".encode(), crc)
        crc = zlib.crc32(array.tobytes(), crc)
    return crc

"""Where data is looked for; what is fetched goes into the first of these folders."""

import os
import shutil
import tomllib
from collections.abc import Sequence
from http.client import HTTPException
from pathlib import Path
from typing import NamedTuple
from urllib.error import HTTPError
from urllib.request import urlopen

from dessilbi._disk import cache_dir
from dessilbi.lab.data.errors import DataError, require

SYSTEM_DATASETS = Path("/usr/share/datasets")
"""Debian's folder for packaged sets, e.g. ``dataset-fashion-mnist``."""
_TIMEOUT = 30  # seconds without a byte


class Source(NamedTuple):
    """Where a set is published."""

    base: str
    megabytes: int
    md5: dict[str, str]
    """By file."""
    sha256: dict[str, str] = {}  # noqa: RUF012 - never changed
    """Of uncompressed files."""


_CONTENT = tomllib.loads(Path(__file__).with_name("sources.toml").read_text())
SOURCES = {name: Source(**content) for name, content in _CONTENT.items()}


def folders(data_dir: str | Path | None, *names: str) -> list[Path]:
    """Each of ``names`` in the argument, ``$DESSILBI_DATA``, the user cache and Debian's folder."""
    named = [data_dir, os.environ.get("DESSILBI_DATA")]
    roots = [Path(place).expanduser() for place in named if place]
    roots += [cache_dir("data"), SYSTEM_DATASETS]
    return [root / name for root in roots for name in names]


def missing(
    name: str, wanted: str, looked_in: Sequence[Path], way_out: str | None = None
) -> DataError:
    """The error for a set that is nowhere, with every folder that was looked at."""
    places = "\n".join(
        f"  {place}{'' if place.is_dir() else '  (no such folder)'}" for place in looked_in
    )
    if way_out is None:
        way_out = f"Run again with --download ({SOURCES[name].megabytes} MB)"
    return DataError(
        f"{name} was not found. Looked for {wanted} in:\n{places}\n"
        f"{way_out}, or name the folder in --data-dir or DESSILBI_DATA."
    )


def fetch(name: str, folder: Path) -> None:
    """Download the files of a set, except those already there and sound.

    ``DESSILBI_MIRROR`` replaces the official hosts: files come from ``$DESSILBI_MIRROR/<set>/``.
    The checksums stay, so a mirror needs no trust. A file gets its name only after its checksum
    was found right; until then it is a temporary file, removed on any failure.
    """
    pooch = require("pooch", purpose="--download", install="dessilbi[lab]")
    mirror = os.environ.get("DESSILBI_MIRROR")
    base = f"{mirror.rstrip('/')}/{name}" if mirror else SOURCES[name].base
    for file, md5 in SOURCES[name].md5.items():
        url = f"{base}/{file}"
        try:
            pooch.retrieve(
                url, known_hash=f"md5:{md5}", fname=file, path=folder, downloader=_stream
            )
        except (OSError, ValueError, HTTPException) as error:
            raise DataError(
                f"{url} could not be fetched to {folder}: {error}\n"
                "Try again, set DESSILBI_MIRROR to a mirror's address, or get the file by hand "
                f"and put it in {folder}."
            ) from error


def _stream(url: str, temporary: str, _pooch: object) -> None:
    """Copy ``url`` to pooch's temporary file; pooch's own downloader leaves failed sockets open."""
    from rich.console import Console
    from rich.progress import wrap_file

    try:
        response = urlopen(url, timeout=_TIMEOUT)
    except HTTPError as error:
        error.close()
        raise
    with response, open(temporary, "wb") as file:
        size = int(response.headers.get("Content-Length", 0))
        name, console = url.rpartition("/")[2], Console(stderr=True)
        with wrap_file(response, size, description=name, console=console) as body:
            shutil.copyfileobj(body, file)

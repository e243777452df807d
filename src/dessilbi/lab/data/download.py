"""Fetch official files with pooch: checked against their published checksums, never half there."""

import os
import shutil
from http.client import HTTPException
from pathlib import Path
from typing import NamedTuple
from urllib.error import HTTPError
from urllib.request import urlopen

from dessilbi.lab.data.errors import DataError, require


class Source(NamedTuple):
    """Where a set is published."""

    base: str
    megabytes: int
    md5: dict[str, str]
    """By file; torchvision publishes the same."""


SOURCES = {
    "mnist": Source(
        "https://ossci-datasets.s3.amazonaws.com/mnist",
        12,
        {
            "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
            "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
            "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
        },
    ),
    "fashion-mnist": Source(
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
        31,
        {
            "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
            "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
            "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
        },
    ),
    "cifar10": Source(
        "https://www.cs.toronto.edu/~kriz",
        170,
        {"cifar-10-binary.tar.gz": "c32a1d4ab5d03f1284b67883e8d87530"},
    ),
}

_TIMEOUT = 30  # seconds without a byte


def way_out(name: str) -> str:
    """What to do about a set that is not there."""
    return f"Run again with --download ({SOURCES[name].megabytes} MB)"


def fetch(name: str, folder: Path) -> None:
    """Download the files of a set into ``folder``, except those already there and sound.

    ``DESSILBI_MIRROR`` replaces the official hosts: files come from ``$DESSILBI_MIRROR/<set>/``.
    The checksums stay, so a mirror needs no trust. A file gets its name only after its checksum
    was found right; until then it is a temporary file, removed on any failure.

    Raises:
        DataError: The host refuses, the file is not there, or its checksum is wrong.
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

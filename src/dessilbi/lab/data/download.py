"""Fetch official files with pooch: checked against their published checksums, never half there."""

import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from dessilbi.lab.data.errors import DataError, require


@dataclass(frozen=True)
class Remote:
    """One published file."""

    file: str
    md5: str
    size: int


# The checksums are those that torchvision publishes for the same files.
BASES = {
    "mnist": "https://ossci-datasets.s3.amazonaws.com/mnist",
    "fashion-mnist": "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
    "cifar10": "https://www.cs.toronto.edu/~kriz",
}
REMOTES = {
    "mnist": (
        Remote("train-images-idx3-ubyte.gz", "f68b3c2dcbeaaa9fbdd348bbdeb94873", 9_912_422),
        Remote("train-labels-idx1-ubyte.gz", "d53e105ee54ea40749a09fcbcd1e9432", 28_881),
        Remote("t10k-images-idx3-ubyte.gz", "9fb629c4189551a2d022fa330f9573f3", 1_648_877),
        Remote("t10k-labels-idx1-ubyte.gz", "ec29112dd5afa0611ce80d1b7f02629c", 4_542),
    ),
    "fashion-mnist": (
        Remote("train-images-idx3-ubyte.gz", "8d4fb7e6c68d591d4c3dfef9ec88bf0d", 26_421_880),
        Remote("train-labels-idx1-ubyte.gz", "25c81989df183df01b3e8a0aad5dffbe", 29_515),
        Remote("t10k-images-idx3-ubyte.gz", "bef4ecab320f06d8554ea6380940ec79", 4_422_102),
        Remote("t10k-labels-idx1-ubyte.gz", "bb300cfdad3c16e7a12a480ee83cd310", 5_148),
    ),
    "cifar10": (Remote("cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530", 170_052_171),),
}


_TIMEOUT = 30  # seconds without a byte
_CHUNK = 1 << 16


def megabytes(name: str) -> str:
    """How much a download of the set is, for messages."""
    return f"{sum(remote.size for remote in REMOTES[name]) / 1e6:.0f} MB"


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
    base = f"{mirror.rstrip('/')}/{name}" if mirror else BASES[name]
    for remote in REMOTES[name]:
        url = f"{base}/{remote.file}"
        try:
            pooch.retrieve(
                url,
                known_hash=f"md5:{remote.md5}",
                fname=remote.file,
                path=folder,
                downloader=partial(_stream, remote),
            )
        except (OSError, ValueError) as error:  # requests' errors are OSErrors
            raise DataError(
                f"{url} could not be fetched to {folder}: {error}\n"
                "Try again, set DESSILBI_MIRROR to a mirror's address, or get the file by hand "
                f"and put it in {folder}."
            ) from error


def _stream(remote: Remote, url: str, temporary: str, _pooch: object) -> None:
    """Copy ``url`` to pooch's temporary file; pooch's own downloader leaves failed sockets open."""
    requests = require("requests", purpose="--download", install="dessilbi[lab]")
    from rich.console import Console
    from rich.progress import Progress

    # identity: a server that declares .gz files as an encoding would have them unpacked on the way.
    headers = {"Accept-Encoding": "identity"}
    with (
        requests.get(url, stream=True, timeout=_TIMEOUT, headers=headers) as response,
        open(temporary, "wb") as file,
        Progress(console=Console(stderr=True)) as progress,
    ):
        response.raise_for_status()
        task = progress.add_task(remote.file, total=remote.size)
        for chunk in response.iter_content(_CHUNK):
            file.write(chunk)
            progress.advance(task, len(chunk))

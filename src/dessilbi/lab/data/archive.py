"""Read files out of a ``.tar.gz`` in place: nothing is ever extracted to disk."""

import gzip
import tarfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

from dessilbi.lab.data.errors import damaged

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

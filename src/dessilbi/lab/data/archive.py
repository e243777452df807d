"""Read files out of a ``.tar.gz`` in place: nothing is ever extracted to disk."""

import gzip
import tarfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

from dessilbi.lab.data.errors import damaged

_CHUNK = 1 << 20


def members(
    path: Path, wanted: Callable[[PurePosixPath], bool], largest: int
) -> Iterator[tuple[PurePosixPath, bytes]]:
    """Stream the regular files of a tar archive that ``wanted`` accepts, as (name, content).

    Names only ever serve as labels, so ``../`` and links in an archive have no effect.

    Args:
        path: The archive.
        wanted: Says by its name whether a member is read or passed over.
        largest: A wanted member with more bytes than this is an error rather than a surprise for
            the memory.

    Raises:
        DataError: The archive is truncated, damaged, or holds a member that is too large.
    """
    try:
        # gzip apart from tar: tarfile's own streaming mode "r|gz" never looks at gzip's checksum.
        with gzip.open(path) as stream, tarfile.open(fileobj=stream, mode="r|") as tar:
            for member in tar:
                name = PurePosixPath(member.name)
                if not member.isreg() or not wanted(name):
                    continue
                if member.size > largest:
                    raise damaged(
                        path, f"{name} in it has {member.size:,} bytes, limit {largest:,}"
                    )
                content = tar.extractfile(member)
                yield name, content.read() if content else b""
            while stream.read(_CHUNK):  # what follows the last member, and then the checksum
                pass
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise damaged(path, f"the archive cannot be read to its end ({error})") from error

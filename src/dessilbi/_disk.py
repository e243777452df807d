"""How this package writes to disk, and where it keeps what it can make or fetch again."""

from __future__ import annotations

import os
from pathlib import Path


def cache_dir(*parts: str) -> Path:
    """A folder below ``$DESSILBI_CACHE``, ``$XDG_CACHE_HOME/dessilbi`` or ``~/.cache/dessilbi``.

    The folder is not created.
    """
    if own := os.environ.get("DESSILBI_CACHE"):
        root = Path(own).expanduser()
    elif xdg := os.environ.get("XDG_CACHE_HOME"):
        root = Path(xdg) / "dessilbi"
    else:
        root = Path.home() / ".cache" / "dessilbi"
    return root.joinpath(*parts)


def write_whole(path: Path, content: bytes) -> None:
    """Write a file to a temporary name, flush and rename: a reader sees all of it or nothing."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)

"""Where this package keeps what it can make or fetch again: compiled kernels, data sets."""

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

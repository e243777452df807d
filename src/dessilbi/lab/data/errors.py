"""What this room says when data is missing, damaged, or needs a package that is not there."""

import gzip
import importlib
import warnings
import zlib
from pathlib import Path
from typing import Any

from dessilbi.errors import DessilbiError


class DataError(DessilbiError, RuntimeError):
    """Data could not be found, read or fetched; the message says which file and what to do."""


def damaged(path: Path | str, problem: str) -> DataError:
    """The error for a file that exists and cannot be trusted."""
    return DataError(
        f"{path}: {problem}. Delete it and run again with --download, "
        "or name a folder with a good copy in --data-dir or DESSILBI_DATA."
    )


def warn_unofficial(path: Path | str, found: str, official: str) -> None:
    """Warn that a sound file is not the published set, so that its figures are not compared."""
    warnings.warn(
        f"{path} holds {found}; the published set has {official}. "
        "Figures measured on it cannot be compared with published ones.",
        UserWarning,
        stacklevel=2,
    )


def require(module: str, *, purpose: str, install: str) -> Any:
    """Import an optional package, or say what needs it (``purpose``) and how to get it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise DataError(
            f"{purpose} needs {module!r}, which does not import here ({error}). "
            f"Try: pip install '{install}'"
        ) from error


def read_bytes(path: Path) -> bytes:
    """The content of a file, uncompressed if its name ends in ``.gz``."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            return file.read()
    except (OSError, EOFError, zlib.error) as error:
        raise damaged(path, f"it cannot be read ({error})") from error

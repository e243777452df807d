"""Where data is looked for, where it is fetched to, and where decoded copies are kept."""

import os
from collections.abc import Sequence
from pathlib import Path

from dessilbi._disk import cache_dir
from dessilbi.lab.data.errors import DataError

SYSTEM_DATASETS = Path("/usr/share/datasets")
"""Debian's folder for packaged sets, e.g. ``dataset-fashion-mnist``."""


def search_roots(data_dir: str | Path | None) -> list[Path]:
    """Folders to look in, in order: the argument, ``$DESSILBI_DATA``, the user cache, Debian's."""
    named = [data_dir, os.environ.get("DESSILBI_DATA")]
    roots = [Path(place).expanduser() for place in named if place]
    return [*roots, cache_dir("data"), SYSTEM_DATASETS]


def download_root(data_dir: str | Path | None) -> Path:
    """Where ``--download`` puts files: the first place that is searched."""
    return search_roots(data_dir)[0]


def missing(name: str, wanted: str, looked_in: Sequence[Path], way_out: str) -> DataError:
    """The error for a set that is nowhere, with every folder that was looked at."""
    places = "\n".join(
        f"  {place}{'' if place.is_dir() else '  (no such folder)'}" for place in looked_in
    )
    return DataError(f"{name} was not found. Looked for {wanted} in:\n{places}\n{way_out}")

"""Where data is looked for; what is downloaded goes to the first of these folders."""

import os
from collections.abc import Sequence
from pathlib import Path

from dessilbi._disk import cache_dir
from dessilbi.lab.data.errors import DataError

SYSTEM_DATASETS = Path("/usr/share/datasets")
"""Debian's folder for packaged sets, e.g. ``dataset-fashion-mnist``."""


def folders(data_dir: str | Path | None, *names: str) -> list[Path]:
    """Each of ``names`` in the argument, ``$DESSILBI_DATA``, the user cache and Debian's folder."""
    named = [data_dir, os.environ.get("DESSILBI_DATA")]
    roots = [Path(place).expanduser() for place in named if place]
    roots += [cache_dir("data"), SYSTEM_DATASETS]
    return [root / name for root in roots for name in names]


def missing(name: str, wanted: str, looked_in: Sequence[Path], way_out: str) -> DataError:
    """The error for a set that is nowhere, with every folder that was looked at."""
    places = "\n".join(
        f"  {place}{'' if place.is_dir() else '  (no such folder)'}" for place in looked_in
    )
    return DataError(
        f"{name} was not found. Looked for {wanted} in:\n{places}\n"
        f"{way_out}, or name the folder in --data-dir or DESSILBI_DATA."
    )

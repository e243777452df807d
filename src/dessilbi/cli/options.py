"""Options that several commands have: where the data lies, and how many threads compute."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeVar

import tyro

from dessilbi.lab.run.config import ConfigError

T = TypeVar("T")
Flat = Annotated[T, tyro.conf.arg(name="")]
"""Options of a group without its name before them."""
Output = Annotated[Path | None, tyro.conf.arg(aliases=["-o"])]


@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """Where the data lies, and how many threads compute."""

    data_dir: Path | None = None
    """Where the data lies; also $DESSILBI_DATA and the user cache are searched."""
    download: bool = False
    """Fetch the data if it is not found."""
    threads: int | None = None
    """Threads of torch on the CPU; by default all cores."""


def set_threads(threads: int | None) -> None:
    """Let torch use so many threads; ``None`` leaves it as it is."""
    if threads is None:
        return
    if threads < 1:
        raise ConfigError(f"threads must be >= 1, got {threads}")
    import torch

    torch.set_num_threads(threads)

"""The Lyapunov value of a run, if somebody watched it and left ``lyapunov.npz`` there."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dessilbi.lab.run.files import LYAPUNOV

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dessilbi.lab.run.directory import RunDir

_LARGEST = 4000  # points of a curve; more cannot be seen


@dataclass(frozen=True)
class Lyapunov:
    """What ``LyapunovHistory.save`` keeps, as far as it is drawn."""

    step: NDArray[np.int64]
    F: NDArray[np.float64]


def read_lyapunov(run: RunDir, notes: list[str]) -> Lyapunov | None:
    """The recorded values; ``None`` if there are none."""
    file = run.path / LYAPUNOV
    if not file.exists():
        return None
    try:
        with np.load(file) as found:
            step, F = found["step"].astype(np.int64), found["F"].astype(np.float64)
        if step.shape != F.shape or step.ndim != 1:
            raise ValueError(f"shapes {step.shape} and {F.shape}")
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        notes.append(f"{LYAPUNOV} is no Lyapunov history and is left out ({error})")
        return None
    every = max(1, -(-len(step) // _LARGEST))
    return Lyapunov(step[::every], F[::every])

"""What is kept of a recorded epoch, beside its support."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from .layers import Layer


@dataclass(frozen=True)
class Snapshot:
    """One recorded epoch; arrays have one entry a layer unless said otherwise."""

    epoch: int
    step: int
    loss: float
    """As given to ``record``; NaN if it was not."""
    counts: NDArray[np.int64]
    """Weights in the support."""
    gap: NDArray[np.float64]
    """``||W - Gamma||^2``."""
    coupling: NDArray[np.float64]
    """``||W - Gamma||^2 / (2 nu)``."""
    norms: NDArray[np.float32]
    """Of W, Gamma and V: 3 x rows of all layers."""


def snapshots_to_arrays(
    snapshots: Sequence[Snapshot], layers: Sequence[Layer]
) -> dict[str, NDArray[np.generic]]:
    """What a file keeps of the marks."""
    n, rows = len(layers), sum(layer.rows for layer in layers)
    return {
        "epoch": np.array([m.epoch for m in snapshots], dtype=np.int64),
        "step": np.array([m.step for m in snapshots], dtype=np.int64),
        "loss": np.array([m.loss for m in snapshots], dtype=np.float64),
        "counts": np.array([m.counts for m in snapshots], dtype=np.int64).reshape(-1, n),
        "gap": np.array([m.gap for m in snapshots], dtype=np.float64).reshape(-1, n),
        "coupling": np.array([m.coupling for m in snapshots], dtype=np.float64).reshape(-1, n),
        "norms": np.array([m.norms for m in snapshots], dtype=np.float32).reshape(-1, 3, rows),
    }


def snapshots_from_arrays(arrays: dict[str, NDArray[Any]]) -> list[Snapshot]:
    """The inverse of :func:`snapshots_to_arrays`."""
    columns = [arrays[name] for name in ("epoch", "step", "loss")]
    columns += [arrays[name] for name in ("counts", "gap", "coupling", "norms")]
    return [
        Snapshot(int(epoch), int(step), float(loss), counts, gap, coupling, norms)
        for epoch, step, loss, counts, gap, coupling, norms in zip(*columns, strict=True)
    ]

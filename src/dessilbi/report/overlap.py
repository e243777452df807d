"""How much two supports share: weights in both, over weights in either."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from dessilbi.path import SolutionPath

LARGEST = 40_000_000
"""Groups times epochs, beyond which only some epochs are compared."""
_BLOCK = 1 << 16
"""Groups that are counted at a time."""


@dataclass(frozen=True)
class Overlap:
    """Between the epochs of one run."""

    epochs: tuple[int, ...]
    shares: NDArray[np.float32]
    """1 on the diagonal, also of an empty support."""


def between_epochs(path: SolutionPath) -> Overlap:
    """Of every two recorded epochs, or of some if there are too many."""
    epochs = _some(path.epochs, path)
    shares = _shares([_bits(path, epoch) for epoch in epochs], path)
    return Overlap(tuple(epochs), np.nan_to_num(shares, nan=1).astype(np.float32))


def between_runs(a: SolutionPath, b: SolutionPath) -> dict[int, float]:
    """Of two runs after the same epoch, as far as both recorded it; empty for other layers.

    Epochs at which both supports are empty are left out: they share nothing worth a number.
    """
    if a.layers != b.layers:
        return {}
    epochs = _some(sorted({*a.epochs} & {*b.epochs}), a)
    shares = {e: _shares([_bits(a, e), _bits(b, e)], a)[0, 1] for e in epochs}
    return {epoch: float(share) for epoch, share in shares.items() if not np.isnan(share)}


def _some(epochs: Sequence[int], path: SolutionPath) -> list[int]:
    most = max(8, LARGEST // max(path.groups, 1))
    if len(epochs) <= most:
        return list(epochs)
    return [epochs[i] for i in np.linspace(0, len(epochs) - 1, most).round().astype(int)]


def _bits(path: SolutionPath, epoch: int) -> NDArray[np.bool_]:
    return path.supports.at(path.epochs.index(epoch))


def _shares(supports: Sequence[NDArray[np.bool_]], path: SolutionPath) -> NDArray[np.float64]:
    """Of every two supports; NaN of two empty ones."""
    sizes = np.concatenate([np.full(layer.groups, layer.group_size) for layer in path.layers])
    both = np.zeros((len(supports), len(supports)))
    for start in range(0, len(sizes), _BLOCK):
        block = slice(start, start + _BLOCK)
        bits = np.stack([support[block] for support in supports]).astype(np.float64)
        both += (bits * sizes[block]) @ bits.T
    own = both.diagonal()
    either = own[:, None] + own[None, :] - both
    return np.divide(both, either, out=np.full_like(both, np.nan), where=either > 0)

"""How much two supports share: weights in both, over weights in either."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from dessilbi.path import SolutionPath

    Counts = NDArray[np.float64]

LARGEST = 40_000_000
"""Groups times epochs, beyond which only some epochs are compared."""
_POPCOUNT = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).sum(axis=1)


@dataclass(frozen=True)
class Overlap:
    """Between the epochs of one run."""

    epochs: tuple[int, ...]
    shares: NDArray[np.float32]
    """1 on the diagonal, also of an empty support."""


@dataclass(frozen=True)
class _Support:
    """Groups of many weights as numbers, which multiply fast; single weights as packed bits."""

    groups: NDArray[np.float64]
    singles: NDArray[np.uint8]


def between_epochs(path: SolutionPath) -> Overlap:
    """Of every two marked epochs, or of some if there are too many."""
    indices = _indices(path)
    both = _shared([_support(path, i) for i in indices], _sizes(path))
    epochs = tuple(path.epochs[i] for i in indices)
    return Overlap(epochs, _shares(both).astype(np.float32))


def between_runs(
    paths: Sequence[SolutionPath | None], epochs: Sequence[int]
) -> NDArray[np.float32]:
    """Of every two runs at each epoch, epochs x runs x runs; NaN where it makes no sense.

    That is where a run has no path, did not mark the epoch, has other layers, or where both
    supports are empty.
    """
    result = np.full((len(epochs), len(paths), len(paths)), np.nan, dtype=np.float32)
    for e, epoch in enumerate(epochs):
        there = [i for i, p in enumerate(paths) if p is not None and epoch in p.epochs]
        for i in there:
            mine = paths[i]
            assert mine is not None
            alike = [j for j in there if (p := paths[j]) is not None and p.layers == mine.layers]
            found = [_support(p, p.epochs.index(epoch)) for j in alike if (p := paths[j])]
            both = _shared(found, _sizes(mine))
            empty = both.diagonal() == 0
            shares = _shares(both)[alike.index(i)]
            result[e, i, alike] = np.where(empty & empty[alike.index(i)], np.nan, shares)
    return result


def _indices(path: SolutionPath) -> list[int]:
    snapshots = len(path.snapshots)
    most = max(8, min(snapshots, LARGEST // max(path.groups, 1)))
    if snapshots <= most:
        return list(range(snapshots))
    return [int(i) for i in np.unique(np.linspace(0, snapshots - 1, most).round())]


def _sizes(path: SolutionPath) -> NDArray[np.float64]:
    """Weights of each group of the group layers."""
    parts = [np.full(layer.groups, float(layer.group_size)) for layer in path.layers if layer.exact]
    return np.concatenate([np.zeros(0), *parts])


def _support(path: SolutionPath, index: int) -> _Support:
    bits = path.supports.at(index)
    groups = [bits[layer.slice] for layer in path.layers if layer.exact]
    singles = [bits[layer.slice] for layer in path.layers if not layer.exact]
    none = np.zeros(0, dtype=np.bool_)
    return _Support(
        np.concatenate([none, *groups]).astype(np.float64),
        np.packbits(np.concatenate([none, *singles])),
    )


def _shared(found: Sequence[_Support], sizes: NDArray[np.float64]) -> Counts:
    """Weights that each two supports share; their own on the diagonal."""
    groups = np.stack([support.groups for support in found])
    both: Counts = (groups * sizes) @ groups.T
    for i, a in enumerate(found):
        for j, b in enumerate(found[: i + 1]):
            if not a.singles.size:
                break
            shared = int(_POPCOUNT[a.singles & b.singles].sum())
            both[i, j] += shared
            if i != j:
                both[j, i] += shared
    return both


def _shares(both: Counts) -> Counts:
    own = both.diagonal()
    either = own[:, None] + own[None, :] - both
    shares: Counts = np.where(either > 0, both / np.maximum(either, 1), 1.0)
    return shares

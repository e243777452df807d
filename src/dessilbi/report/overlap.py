"""How much two supports share: weights in both, over weights in either."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from dessilbi.path import StabilityRule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from dessilbi.path import SolutionPath

MOST, LARGEST = 50, 40_000_000
"""Epochs, and groups times epochs, beyond which only some epochs are compared."""


@dataclass(frozen=True)
class Overlap:
    """Between the epochs of one run."""

    epochs: tuple[int, ...]
    shares: NDArray[np.float32]
    """1 on the diagonal, also of an empty support."""


def between_epochs(path: SolutionPath) -> Overlap:
    """Of every two recorded epochs, or of some if there are too many."""
    epochs = _some(path.epochs, path)
    rule = StabilityRule(window=len(epochs))
    shares = np.eye(len(epochs), dtype=np.float32)
    for i, epoch in enumerate(epochs):
        _show(rule, path, epoch)
        shares[i, :i] = shares[:i, i] = 1 - np.array(rule.distances)
    return Overlap(tuple(epochs), shares)


def _some(epochs: Sequence[int], path: SolutionPath) -> list[int]:
    most = min(MOST, max(8, LARGEST // max(path.groups, 1)))
    if len(epochs) <= most:
        return list(epochs)
    return [epochs[i] for i in np.linspace(0, len(epochs) - 1, most).round().astype(int)]


def _show(rule: StabilityRule, path: SolutionPath, epoch: int) -> None:
    bits = torch.from_numpy(path.supports.at(path.epochs.index(epoch)))
    sizes = {layer.name: layer.group_size for layer in path.layers}
    rule.update({layer.name: bits[layer.slice] for layer in path.layers}, sizes)

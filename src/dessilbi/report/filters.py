"""The rows of a path: one a filter or neuron, for every layer, with what was recorded of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dessilbi.path import Layer, SolutionPath

NEVER = -1


@dataclass(frozen=True)
class Filters:
    """Arrays over all rows of all layers, by snapshot and row."""

    W: NDArray[np.float32]
    """Norms, snapshots x rows."""
    Gamma: NDArray[np.float32]
    V: NDArray[np.float32]
    joint: NDArray[np.float32]
    """What the threshold is for: the norm of V, of tied layers over all of them."""
    inside: NDArray[np.uint8]
    """Share of a row's weights in the support, 0 to 255; 0 is none, 255 is all."""
    entry: NDArray[np.int32]
    """Step at which a row first had a weight in the support; -1 if never."""
    entered: NDArray[np.float32]
    """The same in epochs and parts of them; NaN if never."""
    threshold: NDArray[np.float32]
    """lambd of a group; NaN for Lasso layers, or if it is not known."""
    partners: dict[str, tuple[str, ...]]
    """By tied layer, the others that its filters enter with."""
    slices: dict[str, slice]

    def rows(self, name: str) -> slice:
        """The rows of a layer."""
        return self.slices[name]

    def order(self, name: str) -> NDArray[np.intp]:
        """The rows of a layer from the first to enter, numbered within it."""
        return np.argsort(self.entered[self.rows(name)], kind="stable")  # NaN comes last


def filters_of(path: SolutionPath) -> Filters:
    """What a path tells of its rows."""
    starts = np.cumsum([0, *(layer.rows for layer in path.layers)]).tolist()
    slices = {
        layer.name: slice(start, start + layer.rows)
        for layer, start in zip(path.layers, starts, strict=False)
    }
    inside = np.zeros((len(path.snapshots), starts[-1]), dtype=np.uint8)
    for index in range(len(path.snapshots)):
        bits = path.supports.at(index)
        for layer in path.layers:
            inside[index, slices[layer.name]] = _share(bits[layer.slice], layer)
    entry = np.full(starts[-1], NEVER, dtype=np.int32)
    threshold = np.full(starts[-1], np.nan, dtype=np.float32)
    steps = np.array([s.step for s in path.snapshots], dtype=np.int32)
    for layer in path.layers:
        rows = slices[layer.name]
        if not layer.exact:
            seen = inside[:, rows] > 0
            entry[rows] = np.where(seen.any(axis=0), steps[seen.argmax(axis=0)], NEVER)
            continue
        entry[rows] = path.entry_steps(layer.name).numpy()
        if path.ranking is not None:
            threshold[rows] = path.ranking.thresholds[layer.name]
    W, Gamma, V = np.stack([s.norms for s in path.snapshots], axis=1)
    epochs = np.interp(entry, steps, path.epochs)
    entered = np.where(entry == NEVER, np.nan, epochs).astype(np.float32)
    partners = _partners(path.layers)
    joint = V.copy()
    for name, others in partners.items():
        parts = [V[:, slices[one]] for one in (name, *others)]
        joint[:, slices[name]] = np.linalg.norm(np.stack(parts), axis=0)
    return Filters(W, Gamma, V, joint, inside, entry, entered, threshold, partners, slices)


def _partners(layers: tuple[Layer, ...]) -> dict[str, tuple[str, ...]]:
    tied = [layer for layer in layers if layer.tied is not None]
    return {
        one.name: tuple(b.name for b in tied if b.tied == one.tied and b is not one)
        for one in tied
    }  # fmt: skip


def _share(bits: NDArray[np.bool_], layer: Layer) -> NDArray[np.uint8]:
    if layer.exact:
        return np.where(bits, np.uint8(255), np.uint8(0))
    counts = bits.reshape(layer.rows, -1).sum(axis=1)
    size = max(bits.size // max(layer.rows, 1), 1)
    # A single weight of thousands is not none, and all but one are not all.
    share = np.clip(counts * 255 // size, counts > 0, np.where(counts < size, 254, 255))
    rounded: NDArray[np.uint8] = share.astype(np.uint8)
    return rounded


def unit_word(layer: Layer) -> str:
    """What a row of a layer is called."""
    if layer.exact and layer.group_dim not in (0, None):
        return "input channel" if layer.group_dim == 1 else f"slice of dim {layer.group_dim}"
    return "filter" if len(layer.shape) > 2 else "neuron"


def short(name: str) -> str:
    """A layer's name without ``.weight``, which all of them have."""
    return name.removesuffix(".weight")


def best_layer(path: SolutionPath) -> str:
    """The layer to show first: of filters if there are any, and about half of it inside."""
    last = path.epochs[-1]
    layers = [layer for layer in path.layers if layer.exact] or list(path.layers)
    undecided = [abs(path.density(last, layer.name) - 0.5) for layer in layers]
    return layers[int(np.argmin(undecided))].name

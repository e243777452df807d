"""Weights as pictures: one small image a filter or neuron.

- Filters of one or three input channels are shown as they are, three as colours.
- Filters of more channels are a contact sheet: the kernels of the input channels side by side.
- Neurons are their weights in a rectangle, a square one if the inputs are (28 x 28).
- Where a layer is too large for that, neighbouring inputs are pooled into at most 16 bands and
  their root mean square is shown: where the filter looks, no longer its sign.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dessilbi.path import Layer

LARGEST = 256_000
"""Pixels of a layer at one kept epoch, beyond which it is pooled."""
BANDS = 16

Mode = Literal["signed", "colour", "pooled"]


@dataclass(frozen=True)
class Sheet:
    """How the images of a layer are laid out."""

    rows: int
    height: int
    width: int
    mode: Mode
    channels: int
    """Numbers a pixel: 3 for colours."""
    words: str
    """What a pixel is."""

    @property
    def size(self) -> int:
        """Numbers of all images."""
        return self.rows * self.height * self.width * self.channels


@dataclass(frozen=True)
class _Grid:
    """Inputs of a unit: ``tiles`` kernels of ``height`` x ``width``."""

    tiles: int
    height: int
    width: int

    @property
    def across(self) -> int:
        return math.ceil(math.sqrt(self.tiles))

    @property
    def down(self) -> int:
        return math.ceil(self.tiles / self.across)


def _grid(layer: Layer) -> _Grid:
    """Layers of 3-d kernels and more are flattened to two dimensions."""
    shape = [n for d, n in enumerate(layer.shape) if d != (layer.group_dim or 0)]
    if len(shape) >= 2:
        return _Grid(shape[0], shape[1], math.prod(shape[2:]))
    inputs = math.prod(shape)
    side = math.isqrt(inputs)
    if side * side == inputs:
        return _Grid(1, side, side)
    return _Grid(inputs, 1, 1)


def sheet_of(layer: Layer) -> Sheet:
    """The layout for a layer: a function of its shape alone."""
    grid, rows = _grid(layer), layer.rows
    pixels = grid.height * grid.width
    if grid.tiles == 3 and pixels > 1 and 3 * rows * pixels <= LARGEST:
        words = "the three input channels as red, green and blue; grey is zero"
        return Sheet(rows, grid.height, grid.width, "colour", 3, words)
    tiles, mode, words = grid.tiles, "signed", "the weights themselves"
    if rows * grid.tiles * grid.height * grid.width > LARGEST:
        mode, tiles = "pooled", min(BANDS, grid.tiles)
        band = math.ceil(grid.tiles / tiles)
        grid = _Grid(math.ceil(grid.tiles / band), grid.height, grid.width)
        words = f"root mean square over bands of {band} inputs: the layer is too large for more"
    elif tiles > 1 and grid.height * grid.width > 1:
        words = f"kernels of the {tiles} input channels side by side"
    return Sheet(
        rows, grid.down * grid.height, grid.across * grid.width,
        "pooled" if mode == "pooled" else "signed", 1, words,
    )  # fmt: skip


def draw_sheet(weights: NDArray[np.float32], layer: Layer) -> NDArray[np.float32]:
    """Images of a layer's weights: rows x height x width x channels."""
    sheet, grid = sheet_of(layer), _grid(layer)
    by_row = np.moveaxis(weights, layer.group_dim or 0, 0)
    x = by_row.reshape(sheet.rows, grid.tiles, grid.height, grid.width)
    if sheet.mode == "colour":
        return np.ascontiguousarray(np.moveaxis(x, 1, 3))
    if sheet.mode == "pooled":
        band = math.ceil(grid.tiles / min(BANDS, grid.tiles))
        cuts = np.arange(0, grid.tiles, band)
        sizes = np.diff([*cuts, grid.tiles]).reshape(1, -1, 1, 1)
        x = np.sqrt(np.add.reduceat(np.square(x, dtype=np.float64), cuts, axis=1) / sizes)
        grid = _Grid(len(cuts), grid.height, grid.width)
    sheet_of_tiles = np.zeros((sheet.rows, grid.down * grid.across, grid.height, grid.width))
    sheet_of_tiles[:, : grid.tiles] = x
    placed = sheet_of_tiles.reshape(sheet.rows, grid.down, grid.across, grid.height, grid.width)
    image = placed.transpose(0, 1, 3, 2, 4).reshape(sheet.rows, sheet.height, sheet.width, 1)
    return image.astype(np.float32)

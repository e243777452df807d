"""Pictures for the page and for printed figures: weights and entries as pixels.

Filters of one or three input channels are shown as they are, three as colours; filters of more are
their kernels side by side; neurons are their weights in a rectangle, a square one if the inputs are
(28 x 28). Zero and what is outside of the support are transparent, for light and dark pages.
"""

from __future__ import annotations

import base64
import math
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.colors import Colormap
    from numpy.typing import NDArray

    from dessilbi.path import Layer
    from dessilbi.report.filters import Filters

    Pixels = NDArray[np.uint8]

NEGATIVE, POSITIVE = (130, 85, 195), (205, 95, 10)
"""Red, green and blue of a weight."""


def kernels_of(layer: Layer) -> tuple[int, int, int]:
    """The inputs of a unit: how many kernels of which height and width."""
    shape = [n for d, n in enumerate(layer.shape) if d != (layer.group_dim or 0)]
    if len(shape) >= 2:
        return shape[0], shape[1], math.prod(shape[2:])
    inputs = math.prod(shape)
    side = math.isqrt(inputs)
    return (1, side, side) if side * side == inputs else (inputs, 1, 1)


def words_of(layer: Layer) -> str:
    """What a pixel is."""
    count, height, width = kernels_of(layer)
    if _is_colour(layer):
        return "the three input channels as red, green and blue; grey is zero"
    if min(count, height * width) > 1:
        return f"kernels of the {count} input channels side by side, orange where positive"
    return "a weight, orange where positive"


def _is_colour(layer: Layer) -> bool:
    count, height, width = kernels_of(layer)
    return count == 3 and height * width > 1


def draw(weights: NDArray[np.float32], layer: Layer) -> NDArray[np.float32]:
    """Pictures of a layer's weights: rows x height x width x channels."""
    count, height, width = kernels_of(layer)
    by_row = np.moveaxis(np.nan_to_num(weights), layer.group_dim or 0, 0)
    x = by_row.reshape(layer.rows, count, height, width, 1)
    if _is_colour(layer):
        return np.moveaxis(x[..., 0], 1, 3)
    return mosaic(x, math.ceil(math.sqrt(count)))


def coloured(pictures: NDArray[np.float32]) -> Pixels:
    """The same in red, green, blue and opacity."""
    strong = np.abs(pictures[pictures != 0])
    # A few large weights would leave the rest pale: the largest hundredth may saturate.
    share = np.clip(pictures / (np.quantile(strong, 0.99) if strong.size else 1), -1, 1)
    if pictures.shape[-1] == 3:
        opacity = np.ones_like(share[..., :1])
        colours = 127.5 + 127.5 * share
    else:
        opacity = np.rint(127 * np.abs(share)) / 127  # with two signs, 256 colours
        colours = np.where(share < 0, np.array(NEGATIVE), np.array(POSITIVE))
    pixels: Pixels = np.concatenate([colours, 255 * opacity], axis=-1).astype(np.uint8)
    return pixels


def across(pictures: Pixels) -> int:
    """How many pictures stand beside each other on a sheet that is about as wide as high."""
    count, height, width = pictures.shape[:3]
    return math.ceil(math.sqrt(count * height / width))


def mosaic(pictures: NDArray[Any], across: int) -> NDArray[Any]:
    """Pictures (..., n, height, width, channels) as one, so many beside each other."""
    *outer, n, height, width, channels = pictures.shape
    down = math.ceil(n / across)
    padded = np.zeros((*outer, down * across, height, width, channels), pictures.dtype)
    padded[..., :n, :, :, :] = pictures
    grid = padded.reshape(*outer, down, across, height, width, channels).swapaxes(-4, -3)
    return grid.reshape(*outer, down * height, across * width, channels)


def entry_map() -> Colormap:
    """Colours of an entry, from yellow at the start; violet would drown in a dark page."""
    from matplotlib import colormaps
    from matplotlib.colors import ListedColormap

    return ListedColormap(colormaps["viridis_r"](np.linspace(0, 0.8, 256)))


def entry_picture(filters: Filters, name: str, last: int) -> Pixels:
    """Rows of a layer in the order of entry x snapshots, coloured by the epoch of the entry.

    Of neurons whose weights enter one by one a tint says how many have.
    """
    rows = filters.rows(name)
    share = filters.inside[:, rows].T / 255
    colours = entry_map()(np.nan_to_num(filters.entered[rows]) / max(last, 1), bytes=True)
    picture: Pixels = np.repeat(colours[:, None, :], share.shape[1], axis=1)
    picture[..., 3] = np.where(share > 0, 255 * (0.35 + 0.65 * share), 0)
    return picture[filters.order(name)]


def png(pixels: Pixels) -> str:
    """A picture as a PNG in base64, of a byte a pixel where 256 colours are enough."""
    from PIL import Image  # matplotlib brings it

    image = Image.fromarray(pixels)
    flat = np.ascontiguousarray(pixels).reshape(-1, 4).view(np.uint32)
    colours, index = np.unique(flat, return_inverse=True)
    if len(colours) <= 256:
        image = Image.fromarray(index.reshape(pixels.shape[:2]).astype(np.uint8))
        image.putpalette(colours.tobytes(), "RGBA")
    content = BytesIO()
    image.save(content, "png")
    return base64.b64encode(content.getvalue()).decode()

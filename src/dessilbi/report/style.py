"""How figures look: sizes and fonts of a paper, colours that the colour-blind can tell apart."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dessilbi._style import OKABE_ITO

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INSIDE, OUTSIDE = "#1f5fbf", "#c8442f"
RUNS = (*OKABE_ITO, "#555555")
"""The first run is the one looked at."""
PALETTE = {"ink": "#1c1d20", "inside": INSIDE} | {f"run-{i}": c for i, c in enumerate(RUNS)}
"""Colours by their names in the style sheet of the page."""
COLUMN, PAGE = 3.35, 6.9
"""Inches: the width of one column and of a page of two."""

STYLE: dict[Any, Any] = {
    "font.size": 8,
    "font.family": "sans-serif",
    "axes.titlesize": 8,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.1,
    "legend.frameon": False,
    "legend.fontsize": 7,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "svg.fonttype": "none",  # text stays text: small, and can be searched
    "svg.hashsalt": "dessilbi",  # equal runs make equal files
    "pdf.fonttype": 42,
}


def new_figure(width: float, height: float) -> Figure:
    """A figure that belongs to no window."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def whole_epochs(axes: Axes) -> None:
    """Ticks at whole epochs."""
    from matplotlib.ticker import MaxNLocator

    axes.set_xlabel("epoch")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))

"""Panels as printed figures, one function a panel, for columns and pages of a paper."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dessilbi._style import OKABE_ITO
from dessilbi.report.filters import best_layer, short, unit_word
from dessilbi.report.pictures import entry_map, entry_picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from dessilbi.path import SolutionPath
    from dessilbi.report.charts import Chart
    from dessilbi.report.filters import Filters
    from dessilbi.report.run_data import RunData

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

_LINES = {"solid": "-", "dashed": "--", "dotted": ":", "none": ""}
_MARKS = {"": "", "dot": ".", "disc": "o", "square": "s"}
_MANY = 4000
"""Line segments, beyond which they become pixels in an SVG or PDF."""


def new_figure(width: float, height: float) -> Figure:
    """A figure that belongs to no window."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def whole_epochs(axes: Axes) -> None:
    """Ticks at whole epochs."""
    from matplotlib.ticker import MaxNLocator

    axes.set_xlabel("epoch")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))


def chart(described: Chart) -> Figure:
    """Curves and points."""
    figure = new_figure(COLUMN, 2.4)
    axes = figure.add_subplot()
    for one in described.series:
        axes.plot(
            one.x, one.y, _LINES[one.dash] + _MARKS[one.mark], color=PALETTE[one.colour],
            markersize=3, label=one.label,
        )  # fmt: skip
    axes.set_title(described.title)
    axes.set_ylabel(described.ylabel if described.ylabel != described.title else "")
    if described.log_first and described.log == "x":
        axes.set_xscale("log")
    if described.log_first and described.log == "y":
        axes.set_yscale("log", nonpositive="mask")
    if described.xlabel == "epoch":
        whole_epochs(axes)
    else:
        axes.set_xlabel(described.xlabel)
    if len(axes.lines) > 1:
        axes.legend()
    return figure


def paths(run: RunData, layer: str | None = None) -> Figure:
    """The norm of every filter of a layer: the paper's Figure 1."""
    from matplotlib.collections import LineCollection

    path, filters, name = _of(run, layer)
    rows = filters.rows(name)
    W, inside, entered = filters.W[:, rows], filters.inside[:, rows] > 0, filters.entered[rows]
    epochs = np.array(path.epochs, dtype=np.float64)
    came = np.flatnonzero(~np.isnan(entered))
    at = [np.interp(entered[i], epochs, W[:, i]) for i in came]
    points = np.stack([np.broadcast_to(epochs[:, None], W.shape), W], axis=-1)
    outside = np.stack([points[:-1], points[1:]], axis=2)
    # The step of an entry is known: what lies before it is still outside.
    enters = inside[1:] & (epochs[:-1, None] < entered) & (entered < epochs[1:, None])
    within = outside.copy()
    for i, value in zip(came, at, strict=True):
        within[enters[:, i], i, 0] = entered[i], value
    figure = new_figure(COLUMN, 2.8)
    axes = figure.add_subplot()
    for lines, colour, style, label in (
        (outside[~inside[1:] | enters], OUTSIDE, (0, (3, 1.5)), "outside"),
        (within[inside[1:]], INSIDE, "solid", "in the support"),
    ):
        axes.add_collection(LineCollection(
            list(lines), colors=colour, linestyles=[style], linewidths=0.7, alpha=0.8,
            label=label, rasterized=inside.size > _MANY,
        ))  # fmt: skip
    axes.plot(
        entered[came], at, "o", color=INSIDE, markersize=2.2, markerfacecolor="white",
        markeredgewidth=0.6, label="entry", rasterized=len(at) > _MANY,
    )  # fmt: skip
    axes.autoscale()
    axes.set_ylim(bottom=0)
    found = path.layer(name)
    axes.set_ylabel(f"norm of the {unit_word(found)}, ||W||")
    axes.set_title(f"{short(name)}: {len(came)} of {found.rows} entered")
    whole_epochs(axes)
    axes.legend()
    return figure


def entries(run: RunData) -> Figure:
    """Every filter of the net against epochs, coloured by the epoch of its entry."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    path, filters, _ = _of(run, None)
    last = path.epochs[-1]
    picture = np.concatenate([entry_picture(filters, one.name, last) for one in path.layers])
    figure = new_figure(PAGE, 3.4)
    axes = figure.add_subplot()
    axes.set_facecolor("#e8e8e8")
    extent = (path.epochs[0] - 0.5, last + 0.5, len(picture), 0)
    axes.imshow(picture, aspect="auto", extent=extent, interpolation="nearest")
    scale = ScalarMappable(Normalize(0, max(last, 1)), entry_map())
    figure.colorbar(scale, ax=axes, label="epoch of entry", pad=0.02)
    slices = [filters.rows(layer.name) for layer in path.layers]
    for rows in slices[1:]:
        axes.axhline(rows.start, color="white", linewidth=0.6)
    middles = [(rows.start + rows.stop) / 2 for rows in slices]
    axes.set_yticks(middles, [short(layer.name) for layer in path.layers])
    axes.tick_params(axis="y", labelsize=min(7, max(3, 200 / len(middles))))
    axes.grid(visible=False)
    axes.set_title("Who entered when")
    whole_epochs(axes)
    return figure


def _of(run: RunData, layer: str | None) -> tuple[SolutionPath, Filters, str]:
    assert run.path is not None
    assert run.filters is not None
    name = best_layer(run.path) if layer is None else run.path.layer(layer).name
    return run.path, run.filters, name

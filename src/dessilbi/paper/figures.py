"""Figures: curves with a shaded spread, points, means and grids of images; PNG and SVG."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import cycle
from typing import TYPE_CHECKING

import numpy as np

from dessilbi._style import BLUE, OKABE_ITO

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from torch import Tensor

    from dessilbi.paper.results import Results
    from dessilbi.paper.sweep import Label

COLOURS = (*OKABE_ITO, "#000000", "#999999")
MARKS = ("o", "s", "^", "D", "v", "P", "X", "*")


@dataclass(frozen=True)
class Line:
    """A curve: a list of values a seed, an entry an epoch."""

    label: str
    seeds: Sequence[Sequence[float]]
    first: int = 1
    """The epoch of the first entry."""
    each: str | None = None
    """A colour: then every list is drawn as a thin line of it, instead of mean and deviation."""


@dataclass(frozen=True)
class Panel:
    """One pair of axes."""

    title: str
    ylabel: str
    lines: Sequence[Line] = ()
    points: Mapping[str, tuple[Sequence[float], Sequence[float]]] = field(default_factory=dict)
    """Single results by label, each with its own x."""
    means: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """Values of the seeds by label: a dot at their mean, and their deviation if there are more."""
    verticals: Sequence[float] = ()
    horizontals: Mapping[str, float] = field(default_factory=dict)
    """Heights by label, to compare with."""
    xlabel: str = "epoch"
    log_x: bool = False
    log_y: bool = False


def lines_of(results: Results, curve: str, whose: Mapping[str, Mapping[str, Label]]) -> list[Line]:
    """The course of a value: a line for each of the labelled groups of runs that has some."""
    found = {name: results.curves(curve, **labels) for name, labels in whose.items()}
    return [Line(name, seeds) for name, seeds in found.items() if seeds]


def draw_panels(panels: Sequence[Panel], file: Path, title: str, columns: int = 2) -> list[Path]:
    """Draw panels beside each other; returns the files, or none if there is nothing to show."""
    shown = [p for p in panels if p.lines or p.points or p.means]
    if not shown:
        return []
    columns = min(columns, len(shown))
    rows = -(-len(shown) // columns)
    figure, axes = _axes(rows, columns, 5.2 * columns, 3.9 * rows)
    for panel, ax in zip(shown, axes, strict=False):
        _panel(panel, ax)
    return _save(figure, file, title)


def _panel(panel: Panel, ax: Axes) -> None:
    ax.set_visible(True)
    for i, line in enumerate(panel.lines):
        _line(line, ax, COLOURS[i % len(COLOURS)], "-" if i < len(COLOURS) else "--")
    styles = zip(cycle(COLOURS), cycle(MARKS), strict=True)
    for (label, (x, y)), (colour, mark) in zip(panel.points.items(), styles, strict=False):
        ax.plot(x, y, mark, color=colour, label=label, markersize=7)
    # Dots: the axis does not begin at 0, and a bar's length would say something untrue.
    for i, (values, colour) in enumerate(zip(panel.means.values(), cycle(COLOURS), strict=False)):
        deviation = np.std(values, ddof=1) if len(values) > 1 else None
        ax.errorbar(i, np.mean(values), yerr=deviation, fmt="o", capsize=3, color=colour)
    if panel.means:
        ax.set_xticks(
            range(len(panel.means)), list(panel.means), rotation=35, ha="right", fontsize=8
        )
        ax.margins(x=0.1, y=0.2)
    for (label, height), style in zip(panel.horizontals.items(), ("--", ":", "-."), strict=False):
        ax.axhline(height, color="#555555", linewidth=1.0, linestyle=style, label=label)
    for vertical in panel.verticals:
        ax.axvline(vertical, color=BLUE, linewidth=0.8, alpha=0.5)
    if panel.log_x:
        from matplotlib import ticker

        ax.set_xscale("log")
        ax.xaxis.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0)))
        ax.xaxis.set_major_formatter(ticker.FormatStrFormatter("%g"))  # 5, not 5 x 10^0
        ax.xaxis.set_minor_formatter(ticker.NullFormatter())
    if panel.log_y:
        ax.set_yscale("log")
    ax.set(title=panel.title, xlabel=panel.xlabel, ylabel=panel.ylabel)
    ax.grid(visible=True, alpha=0.3)
    ax.spines[["top", "right"]].set_visible(False)
    if panel.points:  # they may lie anywhere, so the legend stands below
        below = (0.5, -0.16)
        ax.legend(frameon=False, fontsize=7, loc="upper center", bbox_to_anchor=below, ncols=3)
    elif panel.lines:
        ax.legend(frameon=False, fontsize=7)


def _line(line: Line, ax: Axes, colour: str, style: str) -> None:
    """Mean and deviation over the seeds, or every list for itself."""
    epochs = min(map(len, line.seeds))
    values = np.array([seed[:epochs] for seed in line.seeds])
    x = np.arange(line.first, line.first + epochs)
    if line.each is not None:
        labels = [line.label, *[None] * (len(values) - 1)]
        ax.plot(x, values.T, color=line.each, linewidth=0.6, alpha=0.7, label=labels)
        return
    mean = values.mean(0)
    spread = values.std(0, ddof=1) if len(values) > 1 else np.zeros(epochs)
    ax.fill_between(x, mean - spread, mean + spread, color=colour, alpha=0.2, linewidth=0)
    label = f"{line.label} ({len(values)} seed{'s' if len(values) > 1 else ''})"
    ax.plot(x, mean, color=colour, label=label, linewidth=1.4, linestyle=style)


@dataclass(frozen=True)
class Images:
    """A block of small images under one title."""

    title: str
    images: Tensor
    """Count x channels x height x width, values in [0, 1]."""
    frame: str = "#000000"


def draw_images(
    blocks: Sequence[Images | None], file: Path, title: str, columns: int = 3
) -> list[Path]:
    """Blocks of images in rows, each in a frame of its colour; ``None`` leaves a place empty."""
    if not blocks:
        return []
    rows = -(-len(blocks) // columns)
    figure, axes = _axes(rows, columns, 2.9 * columns, 0.4 + 3.1 * rows)
    for block, ax in zip(blocks, axes, strict=False):
        if block is None:
            continue
        ax.set_visible(True)
        ax.imshow(tiled(block.images).numpy(), cmap="gray", vmin=0, vmax=1)
        ax.set_title(block.title, fontsize=9)
        ax.set(xticks=[], yticks=[])
        for side in ax.spines.values():
            side.set(color=block.frame, linewidth=2.5)
    return _save(figure, file, title)


def tiled(images: Tensor) -> Tensor:
    """Images as one, row by row from the upper left, with a pixel between."""
    from torch.nn.functional import pad

    side = max(int((len(images) - 1) ** 0.5) + 1, 1)
    missing = side**2 - len(images)
    padded = pad(images, (0, 1, 0, 1, 0, 0, 0, missing), value=1.0)
    grid = padded.reshape(side, side, *padded.shape[1:])  # rows, columns, channels, height, width
    sheet = grid.permute(0, 3, 1, 4, 2).flatten(2, 3).flatten(0, 1)
    return sheet[..., 0] if sheet.shape[-1] == 1 else sheet


def _axes(rows: int, columns: int, width: float, height: float) -> tuple[Figure, Sequence[Axes]]:
    """A figure of axes that are shown when they are used."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for ax in axes:
        ax.set_visible(False)
    return figure, axes


def _save(figure: Figure, file: Path, title: str) -> list[Path]:
    figure.suptitle(title, fontsize=10)
    file.parent.mkdir(parents=True, exist_ok=True)
    files = [file.with_name(f"{file.name}.{suffix}") for suffix in ("png", "svg")]
    for one in files:
        # Without a date, so that the same results give the same file.
        figure.savefig(one, dpi=150, metadata={"Date": None} if one.suffix == ".svg" else None)
    return files

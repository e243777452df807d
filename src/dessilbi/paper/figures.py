"""Figures: curves with a shaded spread, points, means and grids of images; PNG and SVG."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dessilbi._style import BLUE, OKABE_ITO

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from torch import Tensor

COLOURS = (*OKABE_ITO, "#000000", "#999999")
MARKS = ("o", "s", "^", "D", "v", "P", "X", "*")


@dataclass(frozen=True)
class Line:
    """A curve: a list of values a seed, all along the same x."""

    label: str
    x: Sequence[float]
    seeds: Sequence[Sequence[float]]
    each: str | None = None
    """A colour: then every list is drawn as a thin line of it, instead of mean and deviation."""


@dataclass(frozen=True)
class Points:
    """Single results, each with its own x."""

    label: str
    x: Sequence[float]
    y: Sequence[float]


@dataclass(frozen=True)
class Panel:
    """One pair of axes."""

    title: str
    xlabel: str
    ylabel: str
    lines: Sequence[Line] = ()
    points: Sequence[Points] = ()
    means: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """Values of the seeds by label: a dot at their mean, and their deviation if there are more."""
    verticals: Sequence[float] = ()
    horizontals: Mapping[str, float] = field(default_factory=dict)
    """Heights by label, to compare with."""
    log_x: bool = False
    log_y: bool = False


def draw_panels(panels: Sequence[Panel], file: Path, title: str, columns: int = 2) -> list[Path]:
    """Draw panels beside each other; returns the files, or none if there is nothing to show."""
    shown = [p for p in panels if p.lines or p.points or p.means]
    if not shown:
        return []
    columns = min(columns, len(shown))
    rows = -(-len(shown) // columns)
    figure = _figure(5.2 * columns, 3.9 * rows)
    axes = figure.subplots(rows, columns, squeeze=False).flatten()
    for panel, ax in zip(shown, axes, strict=False):
        _panel(panel, ax)
    for ax in axes[len(shown) :]:
        ax.set_visible(False)
    return _save(figure, file, title)


def _panel(panel: Panel, ax: Axes) -> None:
    for i, line in enumerate(panel.lines):
        if line.each is not None:
            for number, values in enumerate(line.seeds):
                label = line.label if number == 0 else None
                ax.plot(line.x, values, color=line.each, linewidth=0.6, alpha=0.7, label=label)
            continue
        colour = COLOURS[i % len(COLOURS)]
        columns = list(zip(*line.seeds, strict=False))
        x = list(line.x)[: len(columns)]
        middle = [statistics.fmean(c) for c in columns]
        spread = [statistics.stdev(c) if len(c) > 1 else 0.0 for c in columns]
        low = [m - s for m, s in zip(middle, spread, strict=True)]
        high = [m + s for m, s in zip(middle, spread, strict=True)]
        ax.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)
        style = "-" if i < len(COLOURS) else "--"
        count = f" ({len(line.seeds)} seeds)" if len(line.seeds) > 1 else " (1 seed)"
        ax.plot(
            x, middle, color=colour, label=f"{line.label}{count}", linewidth=1.4, linestyle=style
        )
    for i, points in enumerate(panel.points):
        mark: dict[str, Any] = {
            "color": COLOURS[i % len(COLOURS)],
            "marker": MARKS[i % len(MARKS)],
        }
        ax.plot(points.x, points.y, linestyle="none", label=points.label, markersize=7, **mark)
    # Dots: the axis does not begin at 0, and a bar's length would say something untrue.
    for i, values in enumerate(panel.means.values()):
        mean = statistics.fmean(values)
        deviation = statistics.stdev(values) if len(values) > 1 else None
        colour = COLOURS[i % len(COLOURS)]
        ax.errorbar(i, mean, yerr=deviation, fmt="o", capsize=3, color=colour)
    if panel.means:
        names = list(panel.means)
        ax.set_xticks(range(len(names)), names, rotation=35, ha="right", fontsize=8)
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
    """Blocks of images in rows, each in a frame of its colour; ``None`` leaves a options empty."""
    if not blocks:
        return []
    rows = -(-len(blocks) // columns)
    figure = _figure(2.9 * columns, 0.4 + 3.1 * rows)
    axes = figure.subplots(rows, columns, squeeze=False).flatten()
    for ax in axes[len(blocks) :]:
        ax.set_visible(False)
    for block, ax in zip(blocks, axes, strict=False):
        if block is None:
            ax.set_visible(False)
            continue
        ax.imshow(tiled(block.images).numpy(), cmap="gray", vmin=0, vmax=1)
        ax.set_title(block.title, fontsize=9)
        ax.set_xticks([])
        ax.set_yticks([])
        for side in ax.spines.values():
            side.set(color=block.frame, linewidth=2.5)
    return _save(figure, file, title)


def tiled(images: Tensor) -> Tensor:
    """Images as one, row by row from the upper left, with a pixel between."""
    import torch
    from torch.nn.functional import pad

    count, channels = images.shape[:2]
    side = max(int((count - 1) ** 0.5) + 1, 1)
    images = pad(images, (0, 1, 0, 1), value=1.0)
    _, _, height, width = images.shape
    sheet = torch.ones(channels, side * height, side * width)
    for i, image in enumerate(images):
        y, x = divmod(i, side)
        sheet[:, y * height : (y + 1) * height, x * width : (x + 1) * width] = image
    return sheet[0] if channels == 1 else sheet.permute(1, 2, 0)


def _figure(width: float, height: float) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _save(figure: Figure, file: Path, title: str) -> list[Path]:
    figure.suptitle(title, fontsize=10)
    file.parent.mkdir(parents=True, exist_ok=True)
    files = [file.with_name(f"{file.name}.{suffix}") for suffix in ("png", "svg")]
    for one in files:
        # Without a date, so that the same results give the same file.
        metadata = {"Date": None} if one.suffix == ".svg" else None
        figure.savefig(one, dpi=150, metadata=metadata)
    return files

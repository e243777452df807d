"""Accuracy against size, drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dessilbi._style import OKABE_ITO

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from dessilbi.lab.analysis.frontier import Curve

_COLOURS = (*OKABE_ITO, "#000000")
_MARKS = ("o", "s", "^", "D", "v", "P", "X")
_AXES = (
    ("density", "density, % of the weights", 1e-2),
    ("parameters", "parameters, thousands", 1e3),
    ("macs", "multiply-adds an image, millions", 1e6),
)
_MORE_AXES = (
    ("nonzeros", "parameters that are not zero, thousands", 1e3),
    ("nonzero_macs", "multiply-adds of weights that are not zero, millions", 1e6),
)


def draw(curves: Sequence[Curve], file: Path, title: str, axes: Sequence[str] = ()) -> None:
    """Write a picture of the curves; the suffix decides whether PNG, SVG or PDF."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    chosen = [axis for axis in _AXES + _MORE_AXES if axis[0] in axes] or list(_AXES)
    alone = len(chosen) == 1  # a wide panel, the legend within it: curves rise to the right
    figure = Figure(figsize=(8 if alone else 1 + 4.6 * len(chosen), 4.4), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(chosen), sharey=True, squeeze=False)[0]
    for panel, (attribute, label, unit) in zip(panels, chosen, strict=True):
        for i, curve in enumerate(curves):
            colour, mark = _COLOURS[i % len(_COLOURS)], _MARKS[i % len(_MARKS)]
            sizes = [sum(getattr(p, attribute) for p in at) / len(at) / unit for at in curve.points]
            middle, low, high = zip(
                *(curve.spread(k) for k in range(len(curve.points))), strict=True
            )
            panel.fill_between(sizes, low, high, color=colour, alpha=0.15, linewidth=0)
            panel.plot(sizes, middle, color=colour, marker=mark, markersize=4, label=_label(curve))
        panel.set_xscale("log")
        panel.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=12))
        panel.xaxis.set_major_formatter(FuncFormatter(lambda size, _: f"{size:g}"))
        panel.xaxis.set_minor_locator(NullLocator())
        panel.set_xlabel(label)
        panel.grid(visible=True, which="major", alpha=0.3)
        panel.spines[["top", "right"]].set_visible(False)
    best = max(curve.spread(k)[2] for curve in curves for k in range(len(curve.points)))
    worst, first = (
        min(curve.spread(k)[1] for curve in some for k in range(len(curve.points)))
        for some in (curves, curves[:1])
    )
    # A curve that falls to chance would press the others into a line; the first is shown whole.
    bottom = max(worst, min(best - 12, first - 4))
    margin = max(0.4, 0.04 * (best - bottom))  # so that no mark is cut
    panels[0].set_ylim(bottom - margin, best + margin)
    panels[0].set_ylabel(f"accuracy, % ({curves[0].judged_on} set)")
    if alone:
        panels[0].legend(frameon=False, loc="lower right", fontsize=9)
    else:
        handles, names = panels[0].get_legend_handles_labels()
        room = 13 * figure.get_figwidth()  # letters of this size, of which a mark takes eight
        columns = max(1, int(room / (8 + max(map(len, names)))))
        figure.legend(
            handles, names, frameon=False, loc="outside lower left", ncols=columns, fontsize=9
        )
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    figure.savefig(file, dpi=150)


def _label(curve: Curve) -> str:
    runs = "1 run" if curve.runs == 1 else f"{curve.runs} runs"
    seeds = f", {len(curve.seeds)} seeds" if len(curve.seeds) > 1 else ""
    return f"{curve.name}: {runs}, {curve.epochs} epochs{seeds}"

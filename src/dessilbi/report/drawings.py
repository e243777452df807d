"""Panels of curves and points as printed figures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dessilbi.report.style import COLUMN, PAGE, PALETTE, new_figure, whole_epochs

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from dessilbi.report.charts import Chart, Charts

_LINES = {"solid": "-", "dashed": "--", "dotted": ":", "none": ""}
_MARKS = {"": "", "dot": ".", "disc": "o", "square": "s"}


def draw_charts(panel: Charts, *, log: bool) -> Figure:
    """A figure of a panel; of alternatives the first, of the chosen run's series the first run's.

    Args:
        panel: the charts.
        log: whether axes that can be logarithmic are.
    """
    charts = panel.charts[:1] if panel.alternatives else panel.charts
    figure = new_figure(*((COLUMN, 2.4) if len(charts) == 1 else (PAGE, 2.1)))
    for i, chart in enumerate(charts):
        axes = figure.add_subplot(1, len(charts), i + 1)
        first = min(one.run for one in chart.series)
        for one in chart.series:
            if one.run == first or not panel.of_a_run:
                axes.plot(
                    one.x, one.y, _LINES[one.dash] + _MARKS[one.mark], color=PALETTE[one.colour],
                    markersize=3, label=one.label,
                )  # fmt: skip
        _dress(axes, chart, log=log)
        if i == 0 and len(axes.lines) > 1:
            axes.legend()
    return figure


def _dress(axes: Axes, chart: Chart, *, log: bool) -> None:
    axes.set_title(chart.title if chart.xlabel == "epoch" else f"Accuracy against {chart.title}")
    if chart.ylabel != chart.title:
        axes.set_ylabel(chart.ylabel)
    if log and chart.log == "x":
        axes.set_xscale("log")
    if log and chart.log == "y":
        axes.set_yscale("log", nonpositive="mask")
    if chart.xlabel == "epoch":
        whole_epochs(axes)
    else:
        axes.set_xlabel(chart.xlabel)

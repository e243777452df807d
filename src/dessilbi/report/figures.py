"""``dessilbi figures``: the panels of a report as figures to print."""

from __future__ import annotations

from functools import partial
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from dessilbi._disk import write_whole
from dessilbi.lab.run.directory import RunError, clear_errors
from dessilbi.lab.run.files import FIGURES
from dessilbi.report import drawings
from dessilbi.report.charts import charts_of
from dessilbi.report.run_data import read_runs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from matplotlib.figure import Figure

    from dessilbi.report.run_data import RunData

FORMATS = ("png", "svg", "pdf")


def make_figures(runs: Sequence[RunData], layer: str | None = None) -> dict[str, Figure]:
    """Figures by the key of their panel; the path's are those of the first run that has one."""
    import matplotlib as mpl

    shown = next((run for run in runs if run.path is not None), runs[0])
    makers: dict[str, Callable[[], Figure | None]] = {
        key: partial(drawings.chart, charts[0]) for key, charts in charts_of(runs).items()
    }
    if shown.path is not None:
        makers |= {
            "paths": lambda: drawings.paths(shown, layer),
            "entries": lambda: drawings.entries(shown),
        }
    with mpl.rc_context(drawings.STYLE):
        made = {key: make() for key, make in makers.items()}
    return {key: figure for key, figure in made.items() if figure is not None}


def render(figure: Figure, form: str, dpi: int = 300) -> bytes:
    """A figure as the content of a file; the same figure gives the same bytes."""
    import matplotlib as mpl

    undated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    content = BytesIO()
    with mpl.rc_context(drawings.STYLE):
        figure.savefig(content, format=form, dpi=dpi, metadata=undated.get(form))
    return content.getvalue()


def write_figures(
    runs: Sequence[str | Path],
    folder: str | Path | None = None,
    formats: Sequence[str] = FORMATS,
    layer: str | None = None,
) -> list[Path]:
    """Write the figures of one or several runs; returns the files.

    Args:
        runs: run directories; the first that has a path is shown in detail.
        folder: by default ``figures`` in the first run directory.
        formats: of :data:`FORMATS`.
        layer: the layer whose filters are shown; by default one of which about half entered.
    """
    if not runs:
        raise RunError("name at least one run directory")
    if not formats:
        raise ValueError(f"name at least one of the formats {', '.join(FORMATS)}")
    if unknown := [form for form in formats if form not in FORMATS]:
        raise ValueError(f"formats must be of {', '.join(FORMATS)}, got {unknown[0]!r}")
    found = read_runs(runs)
    target = Path(folder) if folder is not None else found[0].folder / FIGURES
    written = []
    made = make_figures(found, layer)
    with clear_errors(target, "-o"):
        target.mkdir(parents=True, exist_ok=True)
        for key, figure in made.items():
            for form in formats:
                file = target / f"{key}.{form}"
                write_whole(file, render(figure, form))
                written.append(file)
    return written

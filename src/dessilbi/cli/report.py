"""``dessilbi report`` and ``dessilbi figures``: a run to look at, and to print."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import tyro

from dessilbi.cli.options import Output


def report(runs: tyro.conf.Positional[tuple[Path, ...]], output: Output = None) -> None:
    """One HTML file that tells the story of a run, or compares several. Opens from disk.

    Args:
        runs: run directories; the first is the one looked at.
        output: the file; by default report.html in the first run directory.
    """
    import matplotlib  # noqa: F401 - before anything is read

    from dessilbi.report.page import write_report

    file = write_report(runs, output)
    print(f"report: {file} ({file.stat().st_size / 1e6:.1f} MB); open it in a browser")


def figures(
    runs: tyro.conf.Positional[tuple[Path, ...]],
    output: Output = None,
    formats: tuple[Literal["png", "svg", "pdf"], ...] = ("png", "svg", "pdf"),
    layer: str | None = None,
) -> None:
    """The figures of a report for a paper: one column or one page wide, as PNG, SVG and PDF.

    Args:
        runs: run directories; the first that recorded a path is shown in detail.
        output: folder; by default figures in the first run directory.
        formats: which files of each figure.
        layer: the layer whose filters are shown; by default one of which about half entered.
    """
    import matplotlib  # noqa: F401

    from dessilbi.report.figures import write_figures

    files = write_figures(runs, output, formats, layer=layer)
    names = sorted({file.stem for file in files})
    print(f"{len(files)} files in {files[0].parent}: {', '.join(names)}")

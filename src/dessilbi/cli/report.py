"""``dessilbi report`` and ``dessilbi figures``: a run to look at, and to print."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path  # noqa: TC003 - tyro reads the annotations
from typing import Annotated, Literal

import tyro

from dessilbi.lab.run.directory import RunError


@dataclass(frozen=True, kw_only=True)
class ReportCommand:
    """One HTML file that tells the story of a run, or compares several. Opens from disk."""

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Run directories; the first is the one looked at."""
    output: Annotated[Path | None, tyro.conf.arg(aliases=["-o"])] = None
    """The file; by default report.html in the first run directory."""


@dataclass(frozen=True, kw_only=True)
class FiguresCommand:
    """The figures of a report for a paper: one column or one page wide, as PNG, SVG and PDF."""

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Run directories; the first that recorded a path is shown in detail."""
    output: Annotated[Path | None, tyro.conf.arg(aliases=["-o"])] = None
    """Folder; by default figures in the first run directory."""
    formats: tuple[Literal["png", "svg", "pdf"], ...] = ("png", "svg", "pdf")
    """Which files of each figure."""
    layer: str | None = None
    """The layer whose filters are shown; by default one of which about half entered."""


def report_command(arguments: list[str]) -> None:
    """``dessilbi report RUN [RUN ...]``."""
    command = tyro.cli(ReportCommand, prog="dessilbi report", args=arguments)
    import matplotlib  # noqa: F401 - before anything is read

    from dessilbi.report.page import write_report

    file = write_report(_given(command.runs), command.output)
    print(f"report: {file} ({file.stat().st_size / 1e6:.1f} MB); open it in a browser")


def figures_command(arguments: list[str]) -> None:
    """``dessilbi figures RUN [RUN ...]``."""
    command = tyro.cli(FiguresCommand, prog="dessilbi figures", args=arguments)
    import matplotlib  # noqa: F401

    from dessilbi.report.figures import write_figures

    files = write_figures(
        _given(command.runs), command.output, command.formats, layer=command.layer
    )
    names = sorted({file.stem for file in files})
    print(f"{len(files)} files in {files[0].parent}: {', '.join(names)}")


def _given(runs: tuple[Path, ...]) -> tuple[Path, ...]:
    if not runs:
        raise RunError("name at least one run directory")
    return runs

"""The report: one HTML file that needs nothing else, neither a network nor another file.

Text and tables are HTML, which can be read without JavaScript; the panels are drawn by the page's
own script.
"""

from __future__ import annotations

import base64
import hashlib
import json
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING

from dessilbi._disk import write_whole
from dessilbi.lab.run.directory import RunError, clear_errors
from dessilbi.lab.run.files import REPORT
from dessilbi.report import tables
from dessilbi.report.panels import PANELS, panels_of_paths
from dessilbi.report.payload import make_payload
from dessilbi.report.run_data import read_runs
from dessilbi.report.summary import headline, summary

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.resources.abc import Traversable

    from dessilbi.report.run_data import RunData


def write_report(runs: Sequence[str | Path], file: str | Path | None = None) -> Path:
    """Write the report of one or several runs; returns the file.

    Args:
        runs: run directories; the first is the one looked at.
        file: by default ``report.html`` in the first run directory.

    Raises:
        RunError: a directory is not a run, is damaged, or the file cannot be written.
    """
    if not runs:
        raise RunError("name at least one run directory")
    found = read_runs(runs)
    target = Path(file) if file is not None else found[0].folder / REPORT
    page = make_page(found)
    with clear_errors(target, "-o"):
        target.parent.mkdir(parents=True, exist_ok=True)
        write_whole(target, page.encode())
    return target


def make_page(runs: Sequence[RunData]) -> str:
    """The report as text."""
    values, arrays = make_payload(runs)
    script = page_script()
    first = runs[0]
    title = headline(first) if len(runs) == 1 else f"{len(runs)} runs compared"
    shown = values["charts"].keys() | panels_of_paths(runs)
    panels = [panel.html() for panel in PANELS if panel.key in shown]
    return Template(_read(_pages() / "page.html")).substitute(
        policy=_policy(script),
        title=escape(title),
        style=_read(_pages() / "style.css"),
        summary="".join(f"<p>{escape(sentence)}</p>" for sentence in summary(first)),
        runs=tables.runs_table(runs) if len(runs) > 1 else "",
        notes=_notes(runs),
        panels="\n".join(panels),
        tables=_tables(runs),
        values=_in_script(values),
        arrays=arrays,
        script=script,
    )


def page_script() -> str:
    """The parts of the script in the order of their names, in one scope."""
    parts = sorted((_pages() / "js").iterdir(), key=lambda part: part.name)
    body = "\n".join(_read(part) for part in parts if part.name.endswith(".js"))
    return f'(function () {{\n"use strict";\n{body}\n}})();\n'


def _pages() -> Traversable:
    return files("dessilbi.report") / "page"


def _read(part: Traversable) -> str:
    return part.read_text(encoding="utf-8")


def _policy(script: str) -> str:
    """Only this script may run, and nothing may be fetched."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )


def _in_script(values: object) -> str:
    """JSON that cannot end the script element that it stands in."""
    text = json.dumps(values, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c")


def _notes(runs: Sequence[RunData]) -> str:
    lines = [f"<li>{escape(f'{run.name}: {note}')}</li>" for run in runs for note in run.notes]
    if not lines:
        return ""
    return f'<aside class="notes"><h2>Left out</h2><ul>{"".join(lines)}</ul></aside>'


def _tables(runs: Sequence[RunData]) -> str:
    def of(run: RunData) -> str:
        return f" of {run.name}" if len(runs) > 1 else ""

    open_ones: dict[str, str] = {}
    for run in runs:
        if run.frontier is not None:
            open_ones[f"Every budget{of(run)}"] = tables.budgets_table(run.frontier)
        if run.compacts:
            open_ones[f"Compact networks{of(run)}"] = tables.compacts_table(run.compacts)
    open_ones["Make it again"] = "".join(map(tables.commands, runs))
    closed_ones = {
        "Configuration": tables.config_table(runs),
        "Environment": tables.environment_table(runs),
        **{f"Every epoch{of(run)}": tables.epochs_table(run) for run in runs},
    }
    return "\n".join(
        f"<section><h2>{escape(title)}</h2>{body}</section>"
        for title, body in open_ones.items() if body
    ) + "\n".join(
        f"<details><summary>{escape(title)}</summary>{body}</details>"
        for title, body in closed_ones.items()
    )  # fmt: skip

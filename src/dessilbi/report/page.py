"""The report: one HTML file that needs nothing else, neither a network nor another file.

Text and tables are HTML, which can be read without JavaScript; the panels are drawn by the page's
own script.
"""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING

from dessilbi._disk import write_whole
from dessilbi.lab.run.directory import RunError, clear_errors
from dessilbi.lab.run.files import REPORT
from dessilbi.report import tables
from dessilbi.report.payload import make_payload
from dessilbi.report.run_data import read_runs
from dessilbi.report.summary import headline, summary

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from importlib.resources.abc import Traversable

    from dessilbi.report.run_data import RunData


@dataclass(frozen=True)
class Panel:
    """One figure of the page; the script finds it by its key."""

    key: str
    title: str
    words: str
    wide: bool = False

    def html(self) -> str:
        """The panel, into which the script draws."""
        return (
            f'<figure class="panel{" wide" if self.wide else ""}" id="panel-{self.key}" '
            f'data-key="{self.key}" aria-labelledby="title-{self.key}">'
            f'<figcaption><h2 id="title-{self.key}">{escape(self.title)}</h2>'
            f"<p>{escape(self.words)}</p></figcaption></figure>"
        )


PANELS = (
    Panel("accuracy", "Accuracy",
          "Of the network as it is trained, of the weights in the support of Gamma alone, and of "
          "these with BatchNorm recalibrated."),
    Panel("loss", "Loss", "Cross entropy, in training and held out."),
    Panel("paths", "Filter paths",
          "One line a filter. Blue and solid: in the support of Gamma; red and dashed: outside. A "
          "ring marks the entry.", wide=True),
    Panel("entries", "Who entered when",
          "Every filter of the net is a line, from its entry on coloured by the epoch it entered; "
          "grey is outside.", wide=True),
    Panel("next", "Who is next to enter",
          "A filter enters when the norm of its part of V passes lambd."),
    Panel("densities", "Density by layer",
          "Share of a layer's weights in the support; the tick is where the run ends."),
    Panel("filters", "Filters as images",
          "The weights W and their sparse twin Gamma, in the order of entry.", wide=True),
    Panel("budgets", "Accuracy against size",
          "What the run offers for every budget, and where its own support went."),
    Panel("gap", "Coupling gap", "How far the sparse twin is from the weights."),
    Panel("augmented", "Augmented loss", "What the training descends: loss and coupling."),
)  # fmt: skip


def panels_of_paths(runs: Iterable[RunData]) -> set[str]:
    """Panels beside those of curves that one of the runs has something for."""
    shown: set[str] = set()
    for run in runs:
        if run.path is not None:
            shown |= {"paths", "entries", "next", "densities"}
        if run.checkpoints:
            shown.add("filters")
        if any(record.get("densities") for record in run.records):
            shown.add("densities")
    return shown


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

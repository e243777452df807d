"""Tables of ours against the paper's, as Markdown, CSV and LaTeX."""

from __future__ import annotations

import csv
import io
import math
import statistics
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from dessilbi.paper.published import PublishedTable
    from dessilbi.paper.results import Results
    from dessilbi.paper.sweep.sweep import Label

CSV_HEADER = (
    "row",
    "setting",
    "mean",
    "spread",
    "seeds",
    "collapsed",
    "paper",
    "paper_spread",
    "difference",
)
HEADER = ("", "setting", "ours", "seeds", "paper", "difference", "outside")


@dataclass(frozen=True)
class Cell:
    """A number of a table: a value a seed, and the paper's."""

    row: str
    column: str
    ours: tuple[float, ...]
    theirs: float | None = None
    their_spread: float | None = None
    collapsed: int = 0
    """Seeds that never learned; they are not among ``ours``."""

    @property
    def mean(self) -> float | None:
        """Of our seeds."""
        return statistics.fmean(self.ours) if self.ours else None

    @property
    def spread(self) -> float | None:
        """Standard deviation over our seeds; one has none."""
        return statistics.stdev(self.ours) if len(self.ours) > 1 else None

    @property
    def difference(self) -> float | None:
        """Ours minus theirs."""
        return None if self.mean is None or self.theirs is None else self.mean - self.theirs

    @property
    def outside(self) -> bool | None:
        """Whether the two are further apart than both spreads; ``None`` if that is not known.

        Where the paper gives no spread it counts as zero; ours must be known.
        """
        if self.difference is None or self.spread is None:
            return None
        return abs(self.difference) > self.spread + (self.their_spread or 0.0)


def cell(
    results: Results,
    labels: Mapping[str, Label],
    row: str,
    column: str,
    value: str = "accuracy",
    published: PublishedTable | None = None,
) -> Cell:
    """A value of the runs with these labels, next to the published number of row and column."""
    ours, lost = tuple(results.values(value, **labels)), results.collapsed(**labels)
    if published is None:
        return Cell(row, column, ours, collapsed=lost)
    return Cell(row, column, ours, published.value(row, column), published.spreads.get(row), lost)


@dataclass(frozen=True)
class Table:
    """Cells in the order in which they are shown."""

    name: str
    title: str
    cells: Sequence[Cell]
    digits: int = 2
    notes: tuple[str, ...] = field(default_factory=tuple)

    def lines(self) -> list[tuple[str, ...]]:
        """The table as text, a line a cell, without the header."""
        return [
            (
                cell.row,
                cell.column,
                self._with_spread(cell.mean, cell.spread),
                _seeds(cell),
                self._with_spread(cell.theirs, cell.their_spread),
                "-" if cell.difference is None else f"{cell.difference:+.{self.digits}f}",
                {None: "?", True: "yes", False: "no"}[cell.outside]
                if cell.difference is not None
                else "-",
            )
            for cell in self.cells
        ]

    def _with_spread(self, value: float | None, spread: float | None) -> str:
        if value is None or math.isnan(value):
            return "-"
        more = "" if spread is None else f" ± {spread:.{self.digits}f}"
        return f"{value:.{self.digits}f}{more}"

    @property
    def filled(self) -> int:
        """Cells that have a number of ours."""
        return sum(bool(cell.ours) for cell in self.cells)

    def markdown(self) -> str:
        """For GitHub and docs."""
        rows = [HEADER, tuple("---" for _ in HEADER), *self.lines()]
        text = "\n".join(f"| {' | '.join(c.replace('|', '/') for c in row)} |" for row in rows)
        notes = "".join(f"\n- {note}" for note in self.remarks())
        return f"**{self.title}**\n\n{text}\n{notes}\n"

    def remarks(self) -> tuple[str, ...]:
        """What a reader must know beside the numbers."""
        found = [f"{self.filled} of {len(self.cells)} cells have a result."]
        if any(cell.theirs is not None for cell in self.cells):
            found.append(
                "Outside: further from the paper than both spreads together (standard deviation "
                "over our seeds; the paper's where it is known, else 0). '?': one seed, no spread."
            )
        return (*found, *self.notes)

    def csv(self) -> str:
        """Full precision, for other programs."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(CSV_HEADER)
        for c in self.cells:
            values = (c.mean, c.spread, len(c.ours), c.collapsed, c.theirs, c.their_spread)
            shown = ["" if v is None else v for v in (*values, c.difference)]
            writer.writerow([c.row, c.column, *shown])
        return out.getvalue()

    def latex(self) -> str:
        """A tabular with its caption."""
        rows = [HEADER, *self.lines()]
        body = [" & ".join(_latex(cell) for cell in row) + r" \\" for row in rows]
        return "\n".join(
            [
                r"\begin{table}",
                r"\centering",
                r"\begin{tabular}{llrlrrl}",
                r"\hline",
                body[0],
                r"\hline",
                *body[1:],
                r"\hline",
                r"\end{tabular}",
                rf"\caption{{{_latex(' '.join([self.title + '.', *self.remarks()]))}}}",
                r"\end{table}",
                "",
            ]
        )

    def write(self, folder: Path) -> list[Path]:
        """Write all three files; returns them."""
        folder.mkdir(parents=True, exist_ok=True)
        files = []
        for suffix, text in (("md", self.markdown()), ("csv", self.csv()), ("tex", self.latex())):
            files.append(folder / f"{self.name}.{suffix}")
            files[-1].write_text(text)
        return files


def _seeds(cell: Cell) -> str:
    collapsed = f", {cell.collapsed} collapsed" if cell.collapsed else ""
    return f"{len(cell.ours)}{collapsed}"


def _latex(text: str) -> str:
    special = {"±": r"$\pm$", "\\": r"\textbackslash{}", "~": r"\textasciitilde{}"}
    special |= {c: "\\" + c for c in "&%$#_{}"}
    return "".join(special.get(c, c) for c in text)

"""Tables of ours against the paper's, as Markdown."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from dessilbi.paper.published import PublishedTable
    from dessilbi.paper.results import Results
    from dessilbi.paper.sweep import Label

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

    def shown(self, digits: int) -> tuple[str, ...]:
        """As a line of a table."""
        outside = {None: "?", True: "yes", False: "no"}[self.outside]
        lost = f", {self.collapsed} collapsed" if self.collapsed else ""
        return (
            self.row,
            self.column,
            _number(self.mean, self.spread, digits),
            f"{len(self.ours)}{lost}",
            _number(self.theirs, self.their_spread, digits),
            "-" if self.difference is None else f"{self.difference:+.{digits}f}",
            "-" if self.difference is None else outside,
        )


def _number(value: float | None, spread: float | None, digits: int) -> str:
    if value is None:
        return "-"
    return f"{value:.{digits}f}" + ("" if spread is None else f" ± {spread:.{digits}f}")


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
    notes: tuple[str, ...] = ()

    def lines(self) -> list[tuple[str, ...]]:
        """The table as text, a line a cell, below its header."""
        return [HEADER, *(cell.shown(self.digits) for cell in self.cells)]

    def remarks(self) -> list[str]:
        """What a reader must know beside the numbers."""
        filled = sum(bool(cell.ours) for cell in self.cells)
        found = [f"{filled} of {len(self.cells)} cells have a result."]
        if any(cell.theirs is not None for cell in self.cells):
            found.append(
                "Outside: further from the paper than both spreads together (standard deviation "
                "over our seeds; the paper's where it is known, else 0). '?': one seed, no spread."
            )
        return [*found, *self.notes]

    def markdown(self) -> str:
        """For GitHub and docs."""
        header, *lines = self.lines()
        rows = [header, ("---",) * len(header), *lines]
        text = "\n".join(f"| {' | '.join(c.replace('|', '/') for c in row)} |" for row in rows)
        notes = "".join(f"\n- {note}" for note in self.remarks())
        return f"**{self.title}**\n\n{text}\n{notes}\n"

    def write(self, folder: Path) -> Path:
        """Write it to a file; returns that."""
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / f"{self.name}.md"
        file.write_text(self.markdown())
        return file

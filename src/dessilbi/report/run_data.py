"""What is read of a run directory; everything of the report is made from this."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dessilbi.lab.run.directory import RunDir, RunError
from dessilbi.lab.run.files import CONFIG, ENVIRONMENT, METRICS, PATH
from dessilbi.path import FormatError, SolutionPath
from dessilbi.report.budgets import Budgets, read_budgets
from dessilbi.report.checkpoint_images import Kept, read_kept
from dessilbi.report.filters import Units, units_of
from dessilbi.report.fixed_mask import Held, take_held
from dessilbi.report.json_io import finite, read_json
from dessilbi.report.lyapunov import Lyapunov, read_lyapunov
from dessilbi.report.overlap import Overlap, between_epochs

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True)
class RunData:
    """One run, as far as its directory tells."""

    folder: Path
    name: str
    """Of the directory."""
    config: dict[str, Any]
    records: list[dict[str, Any]]
    """One an epoch; numbers that are not finite are ``None``."""
    held: Held | None
    """The subnetwork that the run trains; ``None`` for a run of all weights."""
    environment: dict[str, Any]
    path: SolutionPath | None
    """``None`` for optimizers without a twin."""
    units: Units | None
    kept: tuple[Kept, ...]
    """Epochs whose weights are there, in order."""
    budgets: Budgets
    lyapunov: Lyapunov | None
    notes: tuple[str, ...]
    """What could not be read, and what to do about it."""

    @property
    def judged_on(self) -> str:
        """Which images the accuracies of the records are of: test or validation."""
        return str(self.last.get("judged_on", "test"))

    @property
    def whole(self) -> str:
        """What the network of the run is called, next to the support of its Gamma."""
        return "all weights" if self.held is None else "the subnetwork"

    @property
    def epochs(self) -> tuple[int, ...]:
        """Every epoch that something is known of."""
        marked = self.path.epochs if self.path is not None else ()
        return tuple(sorted({*marked, *(r["epoch"] for r in self.records)}))

    @cached_property
    def overlap(self) -> Overlap | None:
        """Of the supports between epochs."""
        return None if self.path is None else between_epochs(self.path)

    @property
    def done(self) -> int:
        """Epochs trained so far."""
        return max(self.epochs, default=0)

    def record(self, epoch: int) -> dict[str, Any]:
        """What was measured after an epoch; empty if nothing was."""
        return next((r for r in self.records if r["epoch"] == epoch), {})

    @property
    def last(self) -> dict[str, Any]:
        """The last record; empty if there is none."""
        return self.records[-1] if self.records else {}


def read_run(folder: str | Path) -> RunData:
    """Read a run directory.

    Raises:
        RunError: it is not a run directory, nothing was trained in it yet, or a file that the
            report rests on is damaged.
    """
    run = RunDir.open(folder)
    notes: list[str] = []
    try:
        config = dataclasses.asdict(run.config())
    except (OSError, ValueError) as error:
        raise RunError(f"cannot read {run.path / CONFIG}: {error}") from error
    records = _records(run)
    path = _path(run)
    held: Held | None = None
    if config["start"] is not None:
        held, records = take_held(records, has_twin=path is not None)
    if not records and (path is None or not path.marks):
        raise RunError(
            f"{run.path} has no finished epoch yet; train it first: "
            f"dessilbi train {run.path / CONFIG} --runs {run.path.parent}"
        )
    return RunData(
        folder=run.path,
        name=run.path.resolve().name,
        config=config,
        records=records,
        held=held,
        environment=_environment(run, notes),
        path=path,
        units=None if path is None else units_of(path),
        kept=() if path is None else read_kept(run, path, notes),
        budgets=read_budgets(run, notes),
        lyapunov=read_lyapunov(run, notes),
        notes=tuple(notes),
    )


def _path(run: RunDir) -> SolutionPath | None:
    file = run.path / PATH
    if not file.exists():
        return None
    try:
        path = SolutionPath.load(file)
    except (OSError, FormatError) as error:
        raise RunError(f"cannot show {run.path}: {error}") from error
    return path if path.marks else None


def _records(run: RunDir) -> list[dict[str, Any]]:
    file = run.path / METRICS
    try:
        found = run.records(file.name)
    except (OSError, UnicodeDecodeError) as error:
        raise RunError(f"{file} is damaged ({error}); restore it, or remove it") from error
    for place, record in enumerate(found, start=1):
        if not isinstance(record, dict) or type(record.get("epoch")) is not int:
            raise RunError(
                f"{file} is not the record of a run: line {place} has no whole number 'epoch'"
            )
    return sorted((finite(r) for r in found), key=_epoch)


def _epoch(record: dict[str, Any]) -> int:
    return int(record["epoch"])


def _environment(run: RunDir, notes: list[str]) -> dict[str, Any]:
    file = run.path / ENVIRONMENT
    if not file.exists():
        return {}
    found = read_json(file, notes)
    return found if isinstance(found, dict) else {}


def read_runs(folders: Iterable[str | Path]) -> list[RunData]:
    """Several runs; the same one twice is read once."""
    seen: dict[Path, RunData] = {}
    for folder in folders:
        place = Path(folder).resolve()
        if place not in seen:
            seen[place] = read_run(folder)
    return list(seen.values())

"""What is read of a run directory; everything of the report is made from this."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from dessilbi.lab.run.config import to_values
from dessilbi.lab.run.directory import RunDir, RunError
from dessilbi.lab.run.files import (
    CONFIG,
    ENVIRONMENT,
    METRICS,
    PATH,
    CompactRecord,
    Frontier,
    compact_reports,
    read_compact,
    read_frontier,
)
from dessilbi.path import FormatError, SolutionPath
from dessilbi.report.checkpoint_images import CheckpointImages, read_checkpoint_images
from dessilbi.report.filters import Filters, filters_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

T = TypeVar("T")


@dataclass(frozen=True)
class RunData:
    """One run, as far as its directory tells."""

    folder: Path
    name: str
    """Of the directory."""
    config: dict[str, Any]
    records: list[dict[str, Any]]
    """One an epoch; numbers that are not finite are ``None``."""
    fixed_mask: dict[str, Any] | None
    """The record of the subnetwork before its training; ``None`` for a run of all weights."""
    environment: dict[str, Any]
    path: SolutionPath | None
    """``None`` for optimizers without a twin."""
    filters: Filters | None
    checkpoints: tuple[CheckpointImages, ...]
    """Epochs whose weights are there, in order."""
    frontier: Frontier | None
    compacts: tuple[CompactRecord, ...]
    """From the smallest."""
    notes: tuple[str, ...]
    """What could not be read, and what to do about it."""

    @property
    def judged_on(self) -> str:
        """Which set the accuracies of the records are of: test or validation."""
        return str(self.last.get("judged_on", "test"))

    @property
    def whole(self) -> str:
        """What the network of the run is called, next to the support of its Gamma."""
        return "all weights" if self.fixed_mask is None else "the subnetwork"

    @property
    def epochs(self) -> tuple[int, ...]:
        """Every epoch that something is known of."""
        marked = self.path.epochs if self.path is not None else ()
        return tuple(sorted({*marked, *(r["epoch"] for r in self.records)}))

    @property
    def done(self) -> int:
        """Epochs trained so far."""
        return max(self.epochs, default=0)

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
        config = to_values(run.config())
    except (OSError, ValueError) as error:
        raise RunError(f"cannot read {run.path / CONFIG}: {error}") from error
    records = _records(run)
    path = _path(run)
    fixed_mask = None
    if config["start"] is not None:
        fixed_mask = next((r for r in records if r["epoch"] == 0), {})
        records = _without_mask(records, fixed_mask, has_twin=path is not None)
    if not records and (path is None or not path.snapshots):
        raise RunError(
            f"{run.path} has no finished epoch yet; train it first: "
            f"dessilbi train {run.path / CONFIG} --runs {run.path.parent}"
        )
    found = [_optional(notes, read_compact, file) for file in compact_reports(run)]
    return RunData(
        folder=run.path,
        name=run.path.resolve().name,
        config=config,
        records=records,
        fixed_mask=fixed_mask,
        environment=_optional(notes, _environment, run) or {},
        path=path,
        filters=None if path is None else filters_of(path),
        checkpoints=() if path is None else read_checkpoint_images(run, path, notes),
        frontier=_optional(notes, read_frontier, run),
        compacts=tuple(sorted((c for c in found if c), key=lambda c: c.parameters)),
        notes=tuple(notes),
    )


def _optional(notes: list[str], read: Callable[[Any], T], source: Any) -> T | None:
    """What the report can do without: ``None`` and a note if it is damaged."""
    try:
        return read(source)
    except ValueError as error:
        notes.append(f"left out: {error}")
        return None


def _path(run: RunDir) -> SolutionPath | None:
    file = run.path / PATH
    if not file.exists():
        return None
    try:
        path = SolutionPath.load(file)
    except (OSError, FormatError) as error:
        raise RunError(f"cannot show {run.path}: {error}") from error
    return path if path.snapshots else None


def _records(run: RunDir) -> list[dict[str, Any]]:
    file = run.path / METRICS
    try:
        found = run.records(file.name)
    except (OSError, UnicodeDecodeError) as error:
        raise RunError(f"{file} is damaged ({error}); restore it, or remove it") from error
    for number, record in enumerate(found, start=1):
        if not isinstance(record, dict) or type(record.get("epoch")) is not int:
            raise RunError(
                f"{file} is not the record of a run: line {number} has no whole number 'epoch'"
            )
    return sorted((finite(r) for r in found), key=lambda r: int(r["epoch"]))


def _without_mask(
    records: list[dict[str, Any]], start: dict[str, Any], *, has_twin: bool
) -> list[dict[str, Any]]:
    """Records of a subnetwork without what is said of its mask in the words of the support.

    Before training density and recalibrated accuracy are those of the mask. With a twin, later
    records mean the support of Gamma; without one the mask is all there is, and it stays.
    """
    mask = {name: start[name] for name in ("density", "densities") if name in start}
    of_the_mask = {"recalibrated_accuracy", *mask}
    bare = {name: value for name, value in start.items() if name not in of_the_mask}
    left = [bare if r is start else r for r in records]
    return left if has_twin else [mask | r for r in left]


def finite(value: Any) -> Any:
    """Plain values without NaN and infinity, which JSON does not know."""
    if isinstance(value, dict):
        return {str(key): finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _environment(run: RunDir) -> dict[str, Any]:
    file = run.path / ENVIRONMENT
    try:
        return dict(json.loads(file.read_text())) if file.exists() else {}
    except (OSError, TypeError, ValueError) as error:
        raise ValueError(f"{file} cannot be read ({error})") from error


def read_runs(folders: Iterable[str | Path]) -> list[RunData]:
    """Several runs; the same one twice is read once, and two of one name are told apart."""
    once = {Path(folder).resolve(): folder for folder in folders}
    runs = [read_run(folder) for folder in once.values()]
    names = Counter(run.name for run in runs)
    return [run if names[run.name] == 1 else replace(run, name=str(run.folder)) for run in runs]

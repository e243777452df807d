"""Accuracy for every budget, and compact networks, as other commands left them in a run.

``dessilbi frontier`` leaves ``frontier.json``, ``dessilbi compact`` a folder ``compact-.../`` with
``report.json``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dessilbi.lab.run.files import COMPACT_REPORT, FRONTIER
from dessilbi.report.json_io import read_json

if TYPE_CHECKING:
    from dessilbi.lab.run.directory import RunDir


@dataclass(frozen=True)
class Point:
    """One budget of ``frontier.json``."""

    budget: float
    density: float
    parameters: int
    macs: float
    accuracy: float


@dataclass(frozen=True)
class CompactRow:
    """One compact network, next to the dense one."""

    chosen: str
    """How the subnetwork was chosen, in words."""
    density: float | None
    accuracy: float | None
    """In percent; ``None`` in files from before it was written."""
    judged_on: str
    recalibrated: bool
    """Whether BatchNorm was measured anew for it, as it is for every point of a frontier."""
    parameters: int
    macs: float
    bytes: int
    dense_parameters: int
    dense_macs: float
    dense_bytes: int
    latency: tuple[tuple[int, float, float], ...]
    """Batch size, and milliseconds of the dense and of the compact network."""
    difference: float | None
    """Largest relative one to the masked network."""

    def words(self) -> list[str]:
        """What is to be said of it, a line each."""
        by = "" if self.recalibrated else ", BatchNorm as in the run"
        fewer = self.dense_parameters / max(self.parameters, 1)
        lines = [
            self.chosen,
            f"accuracy {self.accuracy or 0:.2f} %{by}",
            f"{self.parameters:,} parameters ({fewer:.1f}x fewer)",
            f"{self.bytes / 1000:.1f} kB instead of {self.dense_bytes / 1000:.1f}",
        ]
        for batch, dense, small in self.latency:
            lines.append(
                f"batch {batch}: {small:.3g} ms instead of {dense:.3g} ({dense / small:.2f}x)"
            )
        return lines


@dataclass(frozen=True)
class Budgets:
    """All that is known beyond the run itself."""

    points: tuple[Point, ...] = ()
    judged_on: str = ""
    compacts: tuple[CompactRow, ...] = ()


def read_budgets(run: RunDir, notes: list[str]) -> Budgets:
    """Read what is there; what is damaged is noted and left out."""
    points, judged_on = _points(run, notes)
    compacts = []
    for file in sorted(run.path.glob(f"compact*/{COMPACT_REPORT}")):
        found = read_json(file, notes)
        if found is None:
            continue
        try:
            compacts.append(_compact(found))
        except (KeyError, TypeError, ValueError) as error:
            notes.append(f"{file.parent.name}/{file.name} is of another kind ({error!r})")
    compacts.sort(key=lambda c: c.parameters)
    return Budgets(points, judged_on, tuple(compacts))


def _points(run: RunDir, notes: list[str]) -> tuple[tuple[Point, ...], str]:
    file = run.path / FRONTIER
    found = read_json(file, notes) if file.exists() else None
    if found is None:
        return (), ""
    try:
        points = sorted((_point(p) for p in found["points"]), key=lambda p: p.density)
        return tuple(points), str(found["judged_on"])
    except (KeyError, TypeError, ValueError) as error:
        notes.append(f"{file.name} is of another kind ({error!r}); run `dessilbi frontier` again")
        return (), ""


def _point(p: dict[str, Any]) -> Point:
    return Point(
        float(p["budget"]), float(p["density"]), int(p["parameters"]), float(p["macs"]),
        float(p["accuracy"]),
    )  # fmt: skip


def _compact(found: dict[str, Any]) -> CompactRow:
    small, dense = found["compact"], found["dense"]
    return CompactRow(
        chosen=str(found.get("chosen", "")),
        density=_number(found.get("density")),
        accuracy=_number(found.get("accuracy")),
        judged_on=str(found.get("judged_on", "")),
        recalibrated=bool(found.get("recalibrated", False)),
        parameters=int(small["parameters"]),
        macs=float(small["macs"]),
        bytes=int(small["bytes"]),
        dense_parameters=int(dense["parameters"]),
        dense_macs=float(dense["macs"]),
        dense_bytes=int(dense["bytes"]),
        latency=tuple(
            (int(one["batch"]), float(one["dense"]["median"]), float(one["compact"]["median"]))
            for one in found["latency"]
        ),
        difference=_number(found.get("largest_difference")),
    )


def _number(value: Any) -> float | None:
    return None if value is None else float(value)

"""Panels of curves and points, described once: the page draws them, and matplotlib prints them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from dessilbi.path import SolutionPath

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from dessilbi.report.run_data import RunData


@dataclass(frozen=True)
class Series:
    """A curve, or loose points."""

    label: str
    run: int
    """Index of its run."""
    x: Sequence[float]
    y: Sequence[float]
    colour: str
    """Name in the style sheet, and in :data:`dessilbi.report.drawings.PALETTE`."""
    dash: Literal["solid", "dashed", "dotted", "none"] = "solid"
    mark: Literal["", "dot", "disc", "square"] = ""
    epochs: list[int] | None = None
    """Of each point, where x is something else."""


@dataclass(frozen=True)
class Chart:
    """One pair of axes; x is epochs unless it says otherwise."""

    title: str
    ylabel: str
    series: list[Series]
    xlabel: str = "epoch"
    unit: str = ""
    log: Literal["", "x", "y"] = ""
    """The axis that can be logarithmic, and whether it is at first."""
    log_first: bool = False
    floor: float | None = None
    """What a linear y axis begins with."""
    zoom: float | None = None
    """How many filters below the best a narrowed axis begins."""
    readouts: list[str] | None = None
    """A sentence for each run."""


def charts_of(runs: Sequence[RunData]) -> dict[str, list[Chart]]:
    """Every panel of curves that the runs have something for: a chart, or some to choose from."""
    found = {
        "accuracy": [_accuracy(runs)],
        "loss": [_loss(runs)],
        "budgets": [_budgets(runs, *size) for size in _SIZES],
        "gap": [_of_paths(runs, "coupling gap ‖W − Γ‖", SolutionPath.gap)],  # noqa: RUF001
        "augmented": [
            _of_paths(runs, "augmented loss L + ‖W − Γ‖² / 2ν", SolutionPath.augmented_loss)  # noqa: RUF001
        ],
    }
    return {key: charts for key, charts in found.items() if any(c.series for c in charts)}


def _label(runs: Sequence[RunData], i: int, kind: str) -> str:
    return kind if len(runs) == 1 else f"{runs[i].name}: {kind}"


def _recorded(runs: Sequence[RunData], kinds: Sequence[tuple[str, str, str, Any]]) -> list[Series]:
    """Numbers of the records; several runs have a colour each, the numbers of one run theirs."""
    found = []
    for i, run in enumerate(runs):
        for name, label, colour, dash in kinds:
            pairs = [(r["epoch"], float(r[name])) for r in run.records if r.get(name) is not None]
            if pairs:
                x, y = map(list, zip(*pairs, strict=True))
                own = colour if len(runs) == 1 else run_colour(i)
                found.append(Series(_label(runs, i, label or run.whole), i, x, y, own, dash))
    return found


def run_colour(i: int) -> str:
    """Name of the colour of the i-th run."""
    return f"run-{i % 7}"


def _accuracy(runs: Sequence[RunData]) -> Chart:
    kinds = (
        ("accuracy", "", "ink", "solid"),
        ("recalibrated_accuracy", "support, recalibrated", "inside", "dashed"),
        ("sparse_accuracy", "support", "run-2", "dotted"),
    )
    ylabel = f"accuracy, % of the {runs[0].judged_on} set"
    return Chart("Accuracy", ylabel, _recorded(runs, kinds), unit="\u00a0%", zoom=5)


def _loss(runs: Sequence[RunData]) -> Chart:
    kinds = (
        ("train_loss", "training", "ink", "solid"),
        ("loss", "held out", "run-1", "dashed"),
        ("sparse_loss", "held out, support", "run-2", "dotted"),
    )
    series = _recorded(runs, kinds)
    return Chart("Loss", "cross entropy, nats", series, log="y", log_first=True, floor=0)


_SIZES = (
    ("density", "density, % of the weights", 100.0),
    ("parameters", "parameters", 1.0),
    ("macs", "multiply-adds", 1.0),
)


def _budgets(runs: Sequence[RunData], size: str, xlabel: str, factor: float) -> Chart:
    """Accuracy against size. The axis names the data; where they differ, each label does."""
    found = [one for i, run in enumerate(runs) for one in _offers(runs, i, run, size, factor)]
    judged = {data for data, _ in found}
    series = [one for _, one in found]
    if len(judged) > 1:
        series = [replace(one, label=f"{one.label} ({data} set)") for data, one in found]
    ylabel = f"accuracy, % of the {judged.pop()} set" if len(judged) == 1 else "accuracy, %"
    return Chart(
        "Accuracy against size", ylabel, series, xlabel, unit="\u00a0%", log="x", log_first=True,
        zoom=5, readouts=[_enough(run) for run in runs],
    )  # fmt: skip


def _offers(
    runs: Sequence[RunData], i: int, run: RunData, size: str, factor: float
) -> Iterator[tuple[str, Series]]:
    """What a run offers: every budget, its support by epoch, and compact networks."""
    colour = run_colour(i)
    if run.frontier is not None and run.frontier.points:
        points = sorted(run.frontier.points, key=lambda p: p.density)
        x, y = [factor * getattr(p, size) for p in points], [p.accuracy for p in points]
        label = _label(runs, i, "every budget")
        yield run.frontier.judged_on, Series(label, i, x, y, colour, mark="disc")
    rows = [r for r in run.records if r.get("density") and r.get("recalibrated_accuracy")]
    if rows and run.path is not None and size == "density":
        x, y = [100 * r["density"] for r in rows], [r["recalibrated_accuracy"] for r in rows]
        label, own = _label(runs, i, "support, by epoch"), "run-1" if len(runs) == 1 else colour
        epochs = [r["epoch"] for r in rows]
        yield run.judged_on, Series(label, i, x, y, own, "dashed", "dot", epochs)
    made = [c for c in run.compacts if None not in (c.accuracy, getattr(c, size))]
    for data in dict.fromkeys(c.judged_on for c in made):
        chosen = [c for c in made if c.judged_on == data]
        x, y = [factor * getattr(c, size) for c in chosen], [c.accuracy or 0.0 for c in chosen]
        label = _label(runs, i, "compact network")
        yield data, Series(label, i, x, y, colour, "none", "square")


def _enough(run: RunData) -> str:
    if run.frontier is None or not run.frontier.points:
        return "Run “dessilbi frontier” on this run for the accuracy of every budget."
    points = sorted(run.frontier.points, key=lambda p: p.density)
    best = max(p.accuracy for p in points)
    enough = next(p for p in points if p.accuracy >= best - 0.5)
    more = "" if run.compacts else " “dessilbi compact” adds sizes and latencies."
    return (
        f"{100 * enough.density:.1f}\u00a0% of the weights are enough to stay within half a point "
        f"of the best, {best:.2f}\u00a0%.{more}"
    )


def _of_paths(
    runs: Sequence[RunData], name: str, value: Callable[[SolutionPath, int], float | None]
) -> Chart:
    """What every path knows of an epoch."""
    series = []
    for i, run in enumerate(runs):
        epochs = run.path.epochs if run.path is not None else ()
        found = {e: y for e in epochs if run.path and (y := value(run.path, e)) is not None}
        if found:
            series.append(Series(run.name, i, list(found), list(found.values()), run_colour(i)))
    return Chart(name, name, series, log="y", floor=0)

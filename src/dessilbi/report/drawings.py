"""Panels as printed figures: curves, sizes, and how the twin follows."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from .look import COLUMN, PAGE, RUNS, new_figure, whole_epochs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.figure import Figure

    from .run_data import RunData


def accuracy(runs: Sequence[RunData]) -> Figure | None:
    """Dense, sparse and recalibrated accuracy."""
    kinds = (
        ("accuracy", "all weights", "-"),
        ("recalibrated_accuracy", "support, recalibrated", "--"),
        ("sparse_accuracy", "support", ":"),
    )
    figure = new_figure(COLUMN, 2.4)
    axes = figure.add_subplot()
    for i, run in enumerate(runs):
        for name, label, line in kinds:
            x, y = series(run, name)
            if y:
                axes.plot(x, y, line, color=RUNS[i % len(RUNS)], label=_label(runs, i, label))
    axes.set_ylabel(f"accuracy, % ({runs[0].last.get('judged_on', 'test')} images)")
    axes.set_title("Accuracy")
    whole_epochs(axes)
    axes.legend()
    return figure if axes.lines else None


def loss(runs: Sequence[RunData]) -> Figure | None:
    """Training and held-out loss, on a logarithmic axis."""
    figure = new_figure(COLUMN, 2.4)
    axes = figure.add_subplot()
    for i, run in enumerate(runs):
        for name, label, line in (("train_loss", "training", "-"), ("loss", "held out", "--")):
            x, y = series(run, name)
            if any(value > 0 for value in y):
                axes.semilogy(x, y, line, color=RUNS[i % len(RUNS)], label=_label(runs, i, label))
    axes.set_ylabel("cross entropy")
    axes.set_title("Loss")
    whole_epochs(axes)
    axes.legend()
    return figure if axes.lines else None


def series(run: RunData, name: str) -> tuple[list[int], list[float]]:
    """Epochs and values of a recorded number."""
    found = [(r["epoch"], r[name]) for r in run.records if r.get(name) is not None]
    return [epoch for epoch, _ in found], [float(value) for _, value in found]


def _label(runs: Sequence[RunData], i: int, kind: str) -> str:
    return kind if len(runs) == 1 else f"{runs[i].name}: {kind}"


def budgets(runs: Sequence[RunData]) -> Figure | None:
    """Accuracy against density: every budget, and the support epoch by epoch."""
    figure = new_figure(COLUMN, 2.4)
    axes = figure.add_subplot()
    best, worst = -math.inf, math.inf
    for i, run in enumerate(runs):
        colour = RUNS[i % len(RUNS)]
        points = run.budgets.points
        if points:
            y = [p.accuracy for p in points]
            axes.plot(
                [100 * p.density for p in points], y, "o-", color=colour, markersize=3,
                label=_label(runs, i, "every budget"),
            )  # fmt: skip
            best, worst = max(best, *y), min(worst, *y)
        rows = [r for r in run.records if r.get("density") and r.get("recalibrated_accuracy")]
        if rows and run.path is not None:
            y = [r["recalibrated_accuracy"] for r in rows]
            axes.plot(
                [100 * r["density"] for r in rows], y, "x:", color=colour, markersize=3,
                label=_label(runs, i, "support, by epoch"),
            )  # fmt: skip
            best, worst = max(best, *y), min(worst, *y)
    if not axes.lines:
        return None
    axes.set_xscale("log")
    axes.set_xlabel("density, % of the weights")
    axes.set_ylabel("accuracy, %")
    axes.set_title("Accuracy against density")
    axes.set_ylim(worst - 0.03 * (best - worst) - 0.2, best + 0.05 * (best - worst) + 0.2)
    axes.legend()
    return figure


def dynamics(runs: Sequence[RunData]) -> Figure | None:
    """Coupling gap, augmented loss and the Lyapunov value, as far as they were recorded."""
    curves = [(i, run, _dynamics(run)) for i, run in enumerate(runs)]
    names = dict.fromkeys(name for _, _, found in curves for name in found)
    if not names:
        return None
    figure = new_figure(PAGE, 2.1)
    for place, name in enumerate(names):
        axes = figure.add_subplot(1, len(names), place + 1)
        for i, run, found in curves:
            if name in found:
                axes.plot(*found[name], color=RUNS[i % len(RUNS)], label=run.name)
        axes.set_title(name)
        whole_epochs(axes)
        if place == 0 and len(runs) > 1:
            axes.legend()
    return figure


def _dynamics(run: RunData) -> dict[str, tuple[Any, Any]]:
    found: dict[str, tuple[Any, Any]] = {}
    path = run.path
    if path is not None:
        found["coupling gap ||W - Gamma||"] = path.epochs, [path.gap(e) for e in path.epochs]
        augmented = [(e, path.augmented_loss(e)) for e in path.epochs]
        known = [(e, value) for e, value in augmented if value is not None]
        if known:
            found["augmented loss"] = tuple(zip(*known, strict=True))  # type: ignore[assignment]
    if run.lyapunov is not None and len(run.lyapunov.step):
        steps = path.step if path is not None and path.step else int(run.lyapunov.step[-1])
        found["Lyapunov value F"] = run.lyapunov.step * (run.done / steps), run.lyapunov.F
    return found

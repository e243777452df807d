"""Panels as printed figures: curves, sizes, and how the twin follows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from dessilbi.report.style import COLUMN, PAGE, RUNS, new_figure, whole_epochs

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from matplotlib.figure import Figure

    from dessilbi.report.run_data import RunData


def accuracy(runs: Sequence[RunData]) -> Figure | None:
    """Dense, sparse and recalibrated accuracy."""
    figure = new_figure(COLUMN, 2.4)
    axes = figure.add_subplot()
    for i, run in enumerate(runs):
        for name, label, line in (
            ("accuracy", run.whole, "-"),
            ("recalibrated_accuracy", "support, recalibrated", "--"),
            ("sparse_accuracy", "support", ":"),
        ):
            x, y = series(run, name)
            if y:
                axes.plot(x, y, line, color=RUNS[i % len(RUNS)], label=_label(runs, i, label))
    axes.set_ylabel(f"accuracy, % ({runs[0].judged_on} images)")
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


class _Offer(NamedTuple):
    """Accuracy in percent against density in percent."""

    kind: str
    judged_on: str
    line: str
    x: list[float]
    y: list[float]


def budgets(runs: Sequence[RunData]) -> Figure | None:
    """Accuracy against density: every budget, and the support epoch by epoch."""
    offers = [(i, offer) for i, run in enumerate(runs) for offer in _offers(run)]
    if not offers:
        return None
    judged = {offer.judged_on for _, offer in offers}
    figure = new_figure(COLUMN, 2.4)
    axes = figure.add_subplot()
    for i, (kind, judged_on, line, x, y) in offers:
        label = _label(runs, i, kind if len(judged) == 1 else f"{kind} ({judged_on} images)")
        axes.plot(x, y, line, color=RUNS[i % len(RUNS)], markersize=3, label=label)
    best = max(max(offer.y) for _, offer in offers)
    worst = min(min(offer.y) for _, offer in offers)
    axes.set_xscale("log")
    axes.set_xlabel("density, % of the weights")
    axes.set_ylabel("accuracy, %" + (f" ({judged.pop()} images)" if len(judged) == 1 else ""))
    axes.set_title("Accuracy against density")
    axes.set_ylim(worst - 0.03 * (best - worst) - 0.2, best + 0.05 * (best - worst) + 0.2)
    axes.legend()
    return figure


def _offers(run: RunData) -> Iterator[_Offer]:
    found = run.budgets
    if found.points:
        x, y = [100 * p.density for p in found.points], [p.accuracy for p in found.points]
        yield _Offer("every budget", found.judged_on, "o-", x, y)
    rows = [r for r in run.records if r.get("density") and r.get("recalibrated_accuracy")]
    if rows and run.path is not None:
        x, y = [100 * r["density"] for r in rows], [r["recalibrated_accuracy"] for r in rows]
        yield _Offer("support, by epoch", run.judged_on, "x:", x, y)


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

"""What ``dessilbi demo`` says about its run: from simple to complex, layer by layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dessilbi.lab.analysis.subnetworks import open_path
from dessilbi.lab.run.files import CONFIG, INIT, LAST, METRICS, PATH

if TYPE_CHECKING:
    from rich.console import Console

    from dessilbi.lab.run.directory import RunDir
    from dessilbi.path import SolutionPath

FILES = {
    CONFIG: "what was run",
    METRICS: "accuracy and densities, a line an epoch",
    PATH: "when every filter entered; `dessilbi path` shows it",
    INIT: "the weights before the first step",
    f"{LAST}/": "the weights and V after the last",
}


def print_story(run: RunDir, console: Console) -> None:
    """Print when each layer entered Gamma, and where the files are."""
    records = run.records()
    last = records[-1]
    console.print("\nWhat entered Gamma, and when (density after each epoch):")
    shown = sorted({2, 4, 6, 8, 10, len(records)} & {r["epoch"] for r in records})
    console.print(
        f"{'layer':16}" + "".join(f"{f'ep. {epoch}':>8}" for epoch in shown) + "   first in"
    )
    for layer in last["densities"]:
        densities = [r["densities"][layer] for r in records]
        entered = next((i + 1 for i, d in enumerate(densities) if d > 0), None)
        cells = "".join(f"{densities[epoch - 1]:8.1%}" for epoch in shown)
        console.print(f"{layer:16}{cells}   {f'epoch {entered}' if entered else 'never'}")
    console.print(
        f"{'sparse accuracy':16}"
        + "".join(f"{records[epoch - 1]['recalibrated_accuracy']:7.1f}%" for epoch in shown)
    )
    console.print(
        f"{'dense accuracy':16}" + "".join(f"{records[e - 1]['accuracy']:7.1f}%" for e in shown)
    )
    early = next((r for r in records if r["recalibrated_accuracy"] >= last["accuracy"] - 1), last)
    console.print(
        f"\nThe first filters: {_first_filters(open_path(run))}.\n"
        f"At epoch {early['epoch']} the support of Gamma holds {early['density']:.0%} of the "
        f"weights and scores "
        f"{early['recalibrated_accuracy']:.1f} % without retraining; the dense network ends at "
        f"{last['accuracy']:.1f} %.",
        soft_wrap=True,
    )
    console.print("\nTo look at:")
    for name, what in FILES.items():
        console.print(f"  {run.path / name}   {what}", soft_wrap=True)


def _first_filters(path: SolutionPath, count: int = 5) -> str:
    entries = sorted(
        (step, layer.name, number)
        for layer in path.layers
        if layer.penalty == "group_lasso"
        for number, step in enumerate(path.entry_steps(layer.name).tolist())
        if step >= 0
    )
    return ", ".join(f"{name}[{number}] at step {step}" for step, name, number in entries[:count])

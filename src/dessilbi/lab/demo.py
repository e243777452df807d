"""What ``dessilbi demo`` says about its run: from simple to complex, layer by layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from dessilbi.lab.rundir import RunDir

FILES = {
    "config.json": "what was run",
    "metrics.jsonl": "accuracy and densities, a line an epoch",
    "init.safetensors": "the weights before the first step",
    "checkpoint-last/": "the weights and V after the last",
}


def tell(run: RunDir, console: Console) -> None:
    """Print when each layer entered Gamma, and where the files are."""
    records = run.records()
    last = records[-1]
    console.print("\nWhat entered Gamma, and when (density after each epoch):")
    shown = sorted({2, 4, 6, 8, 10, len(records)} & {r["epoch"] for r in records})
    console.print(
        f"{'layer':16}" + "".join(f"{f'ep. {epoch}':>8}" for epoch in shown) + "   first in"
    )
    first_entries = []
    for layer in last["densities"]:
        densities = [r["densities"][layer] for r in records]
        entered = next((i + 1 for i, d in enumerate(densities) if d > 0), None)
        first_entries.append((entered or len(records) + 1, layer))
        cells = "".join(f"{densities[epoch - 1]:8.1%}" for epoch in shown)
        console.print(f"{layer:16}{cells}   {f'epoch {entered}' if entered else 'never'}")
    console.print(
        f"{'sparse accuracy':16}"
        + "".join(f"{records[epoch - 1]['recalibrated_accuracy']:7.1f}%" for epoch in shown)
        + "   (recalibrated)"
    )
    console.print(
        f"{'dense accuracy':16}" + "".join(f"{records[e - 1]['accuracy']:7.1f}%" for e in shown)
    )
    early = next((r for r in records if r["recalibrated_accuracy"] >= last["accuracy"] - 1), last)
    console.print(
        f"\nEntered first: {min(first_entries)[1]}. At epoch {early['epoch']} the support of Gamma "
        f"holds {early['density']:.0%} of the weights and scores "
        f"{early['recalibrated_accuracy']:.1f} % without retraining; the dense network ends at "
        f"{last['accuracy']:.1f} %.",
        soft_wrap=True,
    )
    console.print("\nTo look at:")
    for name, what in FILES.items():
        console.print(f"  {run.path / name}   {what}", soft_wrap=True)

"""TensorBoard events of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


def write_events(folder: Path, metrics: dict[str, Any]) -> None:
    """Add the numbers of an epoch."""
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(folder)) as writer:
        for name, value in metrics.items():
            if isinstance(value, int | float) and name != "epoch":
                writer.add_scalar(name, value, metrics["epoch"])

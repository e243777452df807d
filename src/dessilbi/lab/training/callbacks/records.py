"""What a run leaves of every epoch: lines of numbers and TensorBoard events."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, cast

from dessilbi.lab.run.directory import clear_errors
from dessilbi.lab.run.files import EVENTS, METRICS, TIMING
from dessilbi.lab.training.callbacks.base import Callback
from dessilbi.lab.training.evaluate import evaluate_epoch

if TYPE_CHECKING:
    from dessilbi.lab.run.files import EpochRecord, TimingRecord
    from dessilbi.lab.training.state import Training


class RecordsCallback(Callback):
    """Writes metrics.jsonl and timing.jsonl."""

    def on_start(self, t: Training, *, resumed: bool) -> None:
        """Forget what the checkpoint does not know; evaluate a subnetwork before its training."""
        if not t.world.is_main:
            return
        for name in (METRICS, TIMING):
            t.run.forget_after(name, t.progress.epoch if resumed else -1)
        if not resumed and t.fixed_mask is not None:
            with t.precision.autocast():
                found = evaluate_epoch(
                    t.model, t.optimizer, t.evaluated, t.data.train, mask=t.fixed_mask
                )
            t.run.append(METRICS, {"epoch": 0, "judged_on": t.evaluated_on, **found})
            t.run.append(TIMING, {"epoch": 0, "images": 0, "train_seconds": 0.0})

    def on_epoch_end(self, t: Training, record: EpochRecord, timing: TimingRecord) -> None:
        """A line each."""
        if t.world.is_main:
            t.run.append(METRICS, cast("dict[str, object]", record))
            t.run.append(TIMING, cast("dict[str, object]", timing))


class TensorBoardCallback(Callback):
    """Writes the numbers of every epoch as TensorBoard events."""

    def __init__(self) -> None:
        import_module("torch.utils.tensorboard")  # if it is missing, better to know now

    def on_epoch_end(self, t: Training, record: EpochRecord, timing: TimingRecord) -> None:
        """Add the numbers of an epoch."""
        from torch.utils.tensorboard import SummaryWriter

        if not t.world.is_main:
            return
        folder = t.run.path / EVENTS
        with clear_errors(folder), SummaryWriter(str(folder)) as writer:
            for name, value in record.items():
                if isinstance(value, int | float) and name != "epoch":
                    writer.add_scalar(name, value, record["epoch"])

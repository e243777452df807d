"""Checkpoints of a run: the last, the best, those that are kept, and one before it stops."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from dessilbi.lab.run.checkpoint import model_tensors
from dessilbi.lab.run.environment import describe
from dessilbi.lab.run.files import BEST, ENVIRONMENT, INIT, LAST, checkpoint_name
from dessilbi.lab.training.callbacks.base import Callback
from dessilbi.lab.training.errors import Interrupted

if TYPE_CHECKING:
    from dessilbi.lab.run.files import EpochRecord, TimingRecord
    from dessilbi.lab.training.state import Training


class CheckpointsCallback(Callback):
    """Saves a run so that it can go on, and what may be looked at or rewound to later."""

    def __init__(self) -> None:
        self._saved = time.perf_counter()

    def on_start(self, t: Training, *, resumed: bool) -> None:
        """The initial weights, and the first checkpoint."""
        if t.world.is_main and not resumed:
            t.run.write_tensors(INIT, model_tensors(t.model))
            t.run.write(ENVIRONMENT, describe(t.device, t.world.size))
            if 0 in t.config.keep:
                t.save(checkpoint_name(0))
            t.save(LAST)

    def on_epoch_start(self, t: Training) -> None:
        """Minutes are counted from here."""
        self._saved = time.perf_counter()

    def on_step_end(self, t: Training) -> None:
        """Save within an epoch: every so often, and when asked to stop."""
        stop, now = t.stop.made, time.perf_counter()
        late = now - self._saved > 60 * t.options.save_minutes
        # Several processes would each need their own random state: they save after epochs.
        if t.world.size == 1 and (stop or late):
            t.refuse_nonfinite()
            t.save(LAST)
            self._saved = now
        if stop:
            raise Interrupted(
                f"stopped in epoch {t.progress.epoch + 1} of {t.config.epochs}; "
                "run the same command again to continue"
            )

    def on_epoch_end(self, t: Training, record: EpochRecord, timing: TimingRecord) -> None:
        """Save the epoch."""
        best = record["accuracy"] > t.progress.best
        t.progress.best = max(t.progress.best, record["accuracy"])
        if not t.world.is_main:
            return
        if best:
            t.save(BEST)
        if t.progress.epoch in t.config.keep:
            t.save(checkpoint_name(t.progress.epoch))
        t.save(LAST)

"""The path of Gamma: recorded every epoch, and asked whether it has settled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dessilbi.lab.run.config import ConfigError
from dessilbi.lab.run.directory import RunError, clear_errors
from dessilbi.lab.run.files import PATH
from dessilbi.lab.training.callbacks.base import Callback
from dessilbi.lab.training.callbacks.methods import NestedCallback
from dessilbi.optim import TwinOptimizer
from dessilbi.path import PathRecorder, SolutionPath, StabilityRule

if TYPE_CHECKING:
    from dessilbi.lab.run.files import EpochRecord, TimingRecord
    from dessilbi.lab.training.state import Training


class PathCallback(Callback):
    """Keeps the path of Gamma in the run directory; ends the run when its support has settled."""

    def __init__(self, t: Training) -> None:
        stop = t.config.stop
        if stop.when_stable and not isinstance(t.optimizer, TwinOptimizer):
            raise ConfigError(
                "--stop-when-stable watches Gamma, which optimizer "
                f"{t.config.optimizer.name} has not"
            )
        self._rule = StabilityRule(stop.window, stop.tolerance, stop.distance)
        self._recorder: PathRecorder | None = None

    def on_start(self, t: Training, *, resumed: bool) -> None:
        """Begin a path, or take up the one that the checkpoint knows."""
        if not t.world.is_main or not isinstance(t.optimizer, TwinOptimizer):
            return
        if not any(True for _ in t.optimizer.twins()):
            return
        nested = t.method.nested if isinstance(t.method, NestedCallback) else None
        if resumed:
            try:
                path = SolutionPath.load(t.run.path / PATH)
                path = path.truncated(step=t.progress.path_step, epoch=t.progress.epoch)
                self._recorder = PathRecorder(t.model, t.optimizer, path, nested=nested)
            except (OSError, ValueError) as error:
                raise RunError(
                    f"cannot continue the path of {t.run.path} ({error}); "
                    "move the folder away to start anew"
                ) from error
        else:
            self._recorder = PathRecorder(t.model, t.optimizer, nested=nested)
            self._recorder.record(0)
        if t.config.stop.when_stable:
            for epoch in self._recorder.path.epochs:
                self._rule.update(self._recorder.path.support(epoch))

    def on_epoch_end(self, t: Training, record: EpochRecord, timing: TimingRecord) -> None:
        """Record the epoch; every process hears whether the support has settled."""
        settled = False
        if self._recorder is not None:
            epoch = t.progress.epoch
            self._recorder.record(epoch, loss=record["train_loss"])
            if t.config.stop.when_stable:
                settled = self._rule.update(self._recorder.path.support(epoch))
        t.progress.settled = bool(t.world.sum([float(settled)], t.device)[0])

    def on_save(self, t: Training) -> None:
        """The path first: a checkpoint can cut a path that is ahead of it, not lengthen one."""
        if self._recorder is not None:
            t.progress.path_step = self._recorder.step
            with clear_errors(t.run.path / PATH):
                self._recorder.path.save(t.run.path / PATH)

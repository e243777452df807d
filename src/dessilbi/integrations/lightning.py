"""Lightning: a callback that records the path and keeps it with the checkpoints."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

try:
    from lightning.pytorch import Callback
except ImportError:
    from pytorch_lightning import Callback

from .twin_run import TwinRun

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytorch_lightning import LightningModule, Trainer
    from torch import Tensor, nn

    from dessilbi.nested import NestedTraining
    from dessilbi.path import SolutionPath


class DessilbiCallback(Callback):
    """Records the path of Gamma while a Trainer fits, and keeps it with its checkpoints.

    An optimizer that was made without ``steps=`` learns from the Trainer how long the training is.
    The density is logged. Layers are called as the network itself calls them, without the name that
    the LightningModule has for it.

    Args:
        every_steps: optimizer steps from one record to the next, by which the path counts then; by
            default it records, and counts, epochs.
        network: the LightningModule's attribute that holds the network; by default its only child
            with parameters, or itself if there are several.
        optimizer: which of several optimizers has the twin, by number.
        nested: options of :class:`dessilbi.NestedTraining`, if it trains the budgets: by manual
            optimization, ``for _ in callback.nested.passes()`` around ``self.manual_backward``.
        stop_when_stable: whether to end the training once the support has settled.
        window: how many earlier supports must be near; see :meth:`SolutionPath.stable_epoch`.
        tolerance: largest distance that counts as near.
    """

    def __init__(
        self,
        every_steps: int | None = None,
        *,
        network: str | None = None,
        optimizer: int = 0,
        nested: Mapping[str, Any] | None = None,
        stop_when_stable: bool = False,
        window: int = 5,
        tolerance: float = 0.1,
    ) -> None:
        if every_steps is not None and every_steps < 1:
            raise ValueError(f"every_steps must be >= 1, got {every_steps!r}")
        self.every_steps, self.network, self.optimizer = every_steps, network, optimizer
        self.run = TwinRun(
            stop_when_stable=stop_when_stable, window=window, tolerance=tolerance, nested=nested
        )
        self._saved: dict[str, Tensor] | None = None

    @property
    def path(self) -> SolutionPath:
        """What was recorded so far."""
        return self.run.path

    @property
    def nested(self) -> NestedTraining:
        """The nested training, once it has begun."""
        if self.run.nested is None:
            raise RuntimeError(
                "nothing is nested: give nested= options, and ask after fit has begun"
            )
        return self.run.nested

    def network_of(self, module: LightningModule) -> nn.Module:
        """The network whose path is recorded."""
        root: nn.Module = module
        if self.network is not None:
            return root.get_submodule(self.network)
        children = [one for one in root.children() if next(one.parameters(), None) is not None]
        own = next(root.parameters(recurse=False), None) is not None
        return children[0] if len(children) == 1 and not own else root

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Follow the optimizer, whose state is in place."""
        config = next(iter(trainer.lr_scheduler_configs), None)
        every = 1 if config is None else config.frequency
        steps, batches = trainer.estimated_stepping_batches, trainer.num_training_batches
        if config is not None and config.interval == "epoch" and math.isfinite(batches):
            every *= -(-int(batches) // trainer.accumulate_grad_batches)
        self.run.begin(
            self.network_of(pl_module),
            trainer.optimizers[self.optimizer],
            int(steps) if math.isfinite(steps) else None,
            scheduler=None if config is None else config.scheduler,
            every=every,
            saved=self._saved,
        )
        self._saved = None

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, *args: Any, **kwargs: Any
    ) -> None:
        """Record, every so many steps."""
        step = trainer.global_step
        if self.every_steps is not None and step > 0 and step % self.every_steps == 0:
            self._record(step, trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Record the epoch, and log the density."""
        if self.every_steps is None:
            self._record(trainer.current_epoch + 1, trainer)
        if (density := self.run.density) is not None:
            pl_module.log("density", density)

    def _record(self, epoch: int, trainer: Trainer) -> None:
        if self.run.record(epoch):
            trainer.should_stop = True

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Let go of the optimizer."""
        self.run.close()

    def state_dict(self) -> dict[str, Any]:
        """What Lightning keeps in its checkpoints."""
        return dict(self.run.state_dict())

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """What Lightning gives back, before training begins."""
        self._saved = state_dict

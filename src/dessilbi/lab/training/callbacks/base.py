"""Callbacks of the training loop: one feature each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor, nn

    from dessilbi.lab.run.files import EpochRecord, TimingRecord
    from dessilbi.lab.training.state import Training


class Callback:
    """What accompanies a run. Every method does nothing until a feature needs it.

    A callback is made when model and optimizer are, before any checkpoint is loaded.
    """

    name = ""
    """Where a checkpoint keeps its tensors."""

    def on_start(self, t: Training, *, resumed: bool) -> None:
        """Weights and optimizer are in place, fresh or out of a checkpoint."""

    def on_epoch_start(self, t: Training) -> None:
        """Before the first step of an epoch, and after a resume within it."""

    def backward(
        self, net: nn.Module, x: Tensor, loss: Callable[[Tensor], Tensor], weight: float
    ) -> tuple[Tensor, Tensor]:
        """Forward and backward pass of a step; output and loss. Only the method's is called.

        Args:
            net: the network as it is to be called.
            x: the batch.
            loss: what to make of an output.
            weight: factor of the gradients.
        """
        output = net(x)
        value = loss(output)
        torch.autograd.backward(value if weight == 1 else value * weight)
        return output, value

    def on_step_end(self, t: Training) -> None:
        """After a step of the optimizer."""

    def on_epoch_trained(self, t: Training) -> None:
        """After the last step of an epoch, before the network is evaluated and saved."""

    def measure(self, t: Training, record: EpochRecord) -> None:
        """May add to what is recorded of an epoch."""

    def on_epoch_end(self, t: Training, record: EpochRecord, timing: TimingRecord) -> None:
        """After an epoch was evaluated; ``t.progress`` counts it."""

    def on_save(self, t: Training) -> None:
        """Before a checkpoint is written."""

    def state_tensors(self) -> Mapping[str, Tensor]:
        """What a checkpoint must keep."""
        return {}

    def load_state(self, t: Training, tensors: Mapping[str, Tensor]) -> None:
        """Go on from :meth:`state_tensors`."""

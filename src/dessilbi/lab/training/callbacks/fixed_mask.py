"""A subnetwork's mask, held while it trains."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dessilbi.lab.training.callbacks.base import Callback
from dessilbi.subnet import HeldMask

if TYPE_CHECKING:
    from dessilbi.lab.training.state import Training


class FixedMaskCallback(Callback):
    """Keeps the weights outside of the run's mask at zero."""

    def on_start(self, t: Training, *, resumed: bool) -> None:
        """From here on."""
        if t.fixed_mask is not None:
            HeldMask(t.model, t.fixed_mask, t.optimizer).apply()

"""Network Slimming and Soft Filter Pruning as callbacks of the training loop."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dessilbi.lab.run.methods import NetworkSlimming, SoftFilters
from dessilbi.lab.training.callbacks import Callback, register_method
from dessilbi.paper.baselines.slimming import penalise_scales
from dessilbi.paper.baselines.soft_filters import check_rate, zero_weak_filters

if TYPE_CHECKING:
    from dessilbi.lab.training.state import Training


class SlimmingCallback(Callback):
    """Network Slimming: an l1 penalty on BatchNorm's scales."""

    def __init__(self, t: Training) -> None:
        assert isinstance(t.config.method, NetworkSlimming)
        penalise_scales(t.model, t.optimizer, t.config.method.strength)


class SoftFiltersCallback(Callback):
    """Soft Filter Pruning: the weakest filters are zeroed after every epoch."""

    def __init__(self, t: Training) -> None:
        assert isinstance(t.config.method, SoftFilters)
        self._rate = check_rate(t.config.method.rate)

    def on_epoch_trained(self, t: Training) -> None:
        """Zero the weakest filters, for now."""
        zero_weak_filters(t.model, self._rate)


register_method(NetworkSlimming, SlimmingCallback)
register_method(SoftFilters, SoftFiltersCallback)

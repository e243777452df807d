"""The precision of the passes: autocast, and for float16 a scale of the gradients.

Weights, the optimizer's state and V stay as they are; only what autocast knows how to do in half
the bits is done so.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

import torch

from dessilbi.lab.run.config import ConfigError
from dessilbi.lab.run.methods import NestedWidths
from dessilbi.lab.training.callbacks.base import Callback

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager

    from torch import Tensor
    from torch.optim import Optimizer

    from dessilbi.lab.run.config import Config
    from dessilbi.lab.training.state import Training

_HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Precision(Callback):
    """How passes are computed, and the optimizer's step after them.

    Args:
        config: says it.
        device: where the passes are.
    """

    name = "scaler"

    def __init__(self, config: Config, device: torch.device) -> None:
        self._half = _HALVES.get(config.precision)
        self._device = device
        if config.precision == "fp16" and isinstance(config.method, NestedWidths):
            raise ConfigError(
                "precision='fp16' scales the gradients, and branches of method:nested-widths make "
                "steps of their own, which would not see it; set precision='bf16'"
            )
        self._scaler = torch.amp.GradScaler(device.type, enabled=config.precision == "fp16")

    def autocast(self) -> AbstractContextManager[object]:
        """Where passes are made.

        Autocast's cache of casted weights is off: it knows tensors by their identity, and a
        projection or a subnetwork changes what is in them.
        """
        if self._half is None:
            return nullcontext()
        return torch.autocast(self._device.type, self._half, cache_enabled=False)

    @property
    def gradient_factor(self) -> float:
        """What gradients must be multiplied by for :meth:`step`."""
        if not self._scaler.is_enabled():
            return 1.0
        return float(self._scaler.scale(torch.ones((), device=self._device)))

    def step(self, optimizer: Optimizer) -> None:
        """Make a step with gradients of that factor; none if they are not finite."""
        self._scaler.step(optimizer)
        self._scaler.update()

    def state_tensors(self) -> Mapping[str, Tensor]:
        """The scale, and the steps since it last changed."""
        state = self._scaler.state_dict()
        return {key: torch.tensor(state[key]) for key in ("scale", "_growth_tracker") if state}

    def load_state(self, t: Training, tensors: Mapping[str, Tensor]) -> None:
        """Go on from :meth:`state_tensors`."""
        if tensors:
            loaded = {key: tensor.item() for key, tensor in tensors.items()}
            self._scaler.load_state_dict(self._scaler.state_dict() | loaded)

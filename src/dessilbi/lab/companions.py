"""What accompanies the optimizer: nested training, pruning, a frozen support."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import asdict
from typing import TYPE_CHECKING

from dessilbi.lab.config import ConfigError, OptimizerConfig
from dessilbi.lab.optimizers import twin_groups
from dessilbi.optim import DessiLBI
from dessilbi.subnet import FrozenSupport, GradualPruning, NestedTraining

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor, nn
    from torch.optim import Optimizer

    from dessilbi.lab.config import Config
    from dessilbi.lab.rundir import Checkpoint


class Companions:
    """Those that a configuration asks for, each with its place in a checkpoint."""

    def __init__(self, config: Config, model: nn.Module, optimizer: Optimizer, steps: int) -> None:
        self._config, self._model, self._optimizer = config, model, optimizer
        self.nested: NestedTraining | None = None
        self.pruning: GradualPruning | None = None
        self.frozen: FrozenSupport | None = None
        if config.nested.on:
            if config.prune.density is not None:
                raise ConfigError("--nested and --prune.density exclude each other; choose one")
            options = asdict(config.nested)
            del options["on"]
            twins = self._dessilbi("--nested trains along the path of Gamma")
            self.nested = NestedTraining(model, twins, max(steps, 1), seed=config.seed, **options)
        if config.prune.density is not None:
            prune = config.prune
            self.pruning = GradualPruning(
                model,
                optimizer,
                config.prune.density,
                max(steps, 1),
                twin_groups(model, OptimizerConfig(penalty=prune.penalty, exclude=prune.exclude)),
                begin=prune.begin,
                end=prune.end,
                every=prune.every,
            )
        if config.freeze.epoch is not None:
            self._dessilbi("--freeze.epoch freezes the support of Gamma")

    def _dessilbi(self, what: str) -> DessiLBI:
        if not isinstance(self._optimizer, DessiLBI):
            raise ConfigError(f"{what}, which optimizer {self._config.optimizer.name} has not")
        return self._optimizer

    def begin_epoch(self, done: int) -> None:
        """Called with the number of epochs done, before the next one and after a resume."""
        freeze = self._config.freeze
        if freeze.epoch is not None and done >= freeze.epoch and self.frozen is None:
            assert isinstance(self._optimizer, DessiLBI)
            self.frozen = FrozenSupport(self._model, self._optimizer, nu=freeze.nu)

    def passes(self) -> AbstractContextManager[object]:
        """Around the forward and backward pass of a step."""
        return nullcontext() if self.nested is None else self.nested

    @property
    def levels(self) -> dict[str, NDArray[np.uint8]] | None:
        """The ranking of nested training, for the recorder."""
        return None if self.nested is None else self.nested.levels

    def tensors(self) -> dict[str, Tensor]:
        """Their state, for a checkpoint."""
        return {
            f"{name}/{key}": tensor.cpu().contiguous()
            for name, one in self._present().items()
            for key, tensor in one.state_dict().items()
        }

    def restore(self, checkpoint: Checkpoint) -> None:
        """Put back what :meth:`tensors` gave."""
        if checkpoint.part("frozen"):
            self.begin_epoch(checkpoint.state["epoch"])
        for name, one in self._present().items():
            one.load_state_dict(checkpoint.part(name))

    def _present(self) -> dict[str, NestedTraining | GradualPruning | FrozenSupport]:
        named = {"nested": self.nested, "pruning": self.pruning, "frozen": self.frozen}
        return {name: one for name, one in named.items() if one is not None}

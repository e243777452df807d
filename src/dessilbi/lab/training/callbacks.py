"""What accompanies the optimizer: nested training, pruning, a frozen support."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import torch

from dessilbi.lab.run.config import (
    BY_WEIGHT,
    BY_WIDTH,
    OF_SCHEDULE,
    ConfigError,
    OptimizerConfig,
)
from dessilbi.nested import NestedSchedule, NestedTraining, NestedWidths
from dessilbi.optim import DessiLBI
from dessilbi.paper.optimizers import twin_groups
from dessilbi.path import count_macs_per_weight
from dessilbi.subnet import FrozenSupport, GradualPruning

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor, nn
    from torch.optim import Optimizer

    from dessilbi.lab.run.config import Config
    from dessilbi.lab.run.directory import Checkpoint


def make_nested(
    config: Config, model: nn.Module, optimizer: Optimizer, steps: int, example_input: Tensor
) -> NestedTraining | NestedWidths:
    """The nested training that a configuration asks for."""
    options = asdict(config.nested)
    for other in ("on", "by_width", *(BY_WEIGHT if config.nested.by_width else BY_WIDTH)):
        options.pop(other, None)
    given = {name: options.pop(name) for name in OF_SCHEDULE if name in options}
    given = {name: value for name, value in given.items() if value is not None}
    options["seed"] = config.seed
    if not config.nested.by_width:
        if options["mac_exponent"] > 0:
            options["macs"] = count_macs_per_weight(model, example_input)
        schedule = NestedSchedule(**given)
        return NestedTraining(model, optimizer, steps, schedule=schedule, **options)
    try:
        schedule = NestedSchedule.for_widths(**given)
        return NestedWidths(model, optimizer, steps, example_input, schedule=schedule, **options)
    except ValueError as error:
        raise ConfigError(f"--nested.by-width: {error}") from error


class Companions:
    """Those that a configuration asks for, each with its place in a checkpoint."""

    def __init__(
        self,
        config: Config,
        model: nn.Module,
        optimizer: Optimizer,
        steps: int,
        example_input: Tensor,
    ) -> None:
        self._config, self._model, self._optimizer = config, model, optimizer
        self.nested: NestedTraining | NestedWidths | None = None
        self.pruning: GradualPruning | None = None
        self.frozen: FrozenSupport | None = None
        if config.nested.on:
            if config.prune.density is not None:
                raise ConfigError("--nested and --prune.density exclude each other; choose one")
            self.nested = self._nested(max(steps, 1), example_input)
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

    def _nested(self, steps: int, example_input: Tensor) -> NestedTraining | NestedWidths:
        twins = self._dessilbi("--nested trains along the path of Gamma")
        return make_nested(self._config, self._model, twins, steps, example_input)

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

    def backward(
        self, net: nn.Module, x: Tensor, loss: Callable[[Tensor], Tensor], weight: float
    ) -> tuple[Tensor, Tensor]:
        """Forward and backward pass of a step; output and loss.

        Args:
            net: the network as it is to be called.
            x: the batch.
            loss: what to make of an output.
            weight: factor of the gradients.
        """
        if self.nested is not None:
            return self.nested.backward(x, loss, net=net, weight=weight)
        output = net(x)
        value = loss(output)
        torch.autograd.backward(value if weight == 1 else value * weight)
        return output, value

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

    def _present(self) -> dict[str, NestedTraining | NestedWidths | GradualPruning | FrozenSupport]:
        named = {"nested": self.nested, "pruning": self.pruning, "frozen": self.frozen}
        return {name: one for name, one in named.items() if one is not None}

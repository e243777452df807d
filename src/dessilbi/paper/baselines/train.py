"""Training with a method that acts on steps or epochs, as entries for a sweep."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from dessilbi.lab.run.config import ConfigError
from dessilbi.lab.training.loop import Trainer, train
from dessilbi.paper.baselines.gradual import BY_LAYER
from dessilbi.paper.baselines.slimming import NetworkSlimming
from dessilbi.paper.baselines.soft_filters import SoftFilterPruning

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from dessilbi.lab.run.config import Config
    from dessilbi.lab.run.directory import RunDir
    from dessilbi.lab.training.display import Display
    from dessilbi.lab.training.loop import Place


class Method(Protocol):
    """Changes how a network is trained; without a state of its own, so that runs can resume."""

    def attach(self, model: nn.Module, optimizer: Optimizer) -> None:
        """Called once, before the first step or after a resume."""

    def end_epoch(self, model: nn.Module) -> None:
        """Called after the last step of an epoch, before it is judged and saved."""


class MethodTrainer(Trainer):
    """A trainer with a method beside it."""

    def __init__(self, method: Method, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.method = method
        method.attach(self.model, self.optimizer)

    def _measure(self) -> dict[str, Any]:
        self.method.end_epoch(self.model)
        return super()._measure()


class ByLayerTrainer(Trainer):
    """A trainer whose gradual pruning takes every layer down to the same density."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        if self.companions.pruning is None:
            raise ConfigError("a run with gradual pruning needs prune.density")
        self.companions.pruning.uniform = True


def train_with(method: Method, config: Config, place: Place, display: Display | None) -> RunDir:
    """Train a configuration with a method."""
    return train(
        config, place, display, trainer=lambda *arguments: MethodTrainer(method, *arguments)
    )


def named(config: Config, method: str, value: float) -> Config:
    """The configuration under a name that says the method: its hash is then another one."""
    return replace(config, name=f"{config.name}-{method}-{value:g}")


def slimming(config: Config, place: Place, display: Display | None, *, strength: float) -> None:
    """The work of a job: train with Network Slimming's penalty."""
    _check(config, "slimming", strength)
    train_with(NetworkSlimming(strength), config, place, display)


def soft_filters(config: Config, place: Place, display: Display | None, *, rate: float) -> None:
    """The work of a job: train with Soft Filter Pruning."""
    _check(config, "sfp", rate)
    train_with(SoftFilterPruning(rate), config, place, display)


def gradual(config: Config, place: Place, display: Display | None) -> None:
    """The work of a job: train a configuration of :func:`.gradual.gradually_pruned`."""
    if not config.name.endswith(BY_LAYER):
        raise ConfigError(f"name must end in {BY_LAYER!r}, got {config.name!r}")
    train(config, place, display, trainer=ByLayerTrainer)


def _check(config: Config, method: str, value: float) -> None:
    # The run directory is found by the configuration, which must therefore know the method.
    if not config.name.endswith(f"-{method}-{value:g}"):
        raise ConfigError(
            f"a run with {method} must be named so: name must end in "
            f"'-{method}-{value:g}', got {config.name!r}"
        )

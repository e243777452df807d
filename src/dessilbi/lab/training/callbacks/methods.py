"""The methods of a configuration as callbacks, and where others register theirs."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from dessilbi import nested, subnet
from dessilbi.graph.errors import CompactError
from dessilbi.lab.run.config import ConfigError, OptimizerConfig
from dessilbi.lab.run.methods import (
    Dense,
    FrozenSupport,
    GradualPruning,
    NestedWeights,
    NestedWidths,
    method_name,
)
from dessilbi.lab.training.callbacks.base import Callback
from dessilbi.lab.training.optimizers import twin_groups
from dessilbi.optim import TwinOptimizer
from dessilbi.path import count_macs_per_weight

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor, nn
    from torch.optim import Optimizer

    from dessilbi.lab.run.config import Config
    from dessilbi.lab.run.files import EpochRecord
    from dessilbi.lab.training.state import Training

_MAKERS: dict[type, Callable[[Training], Callback]] = {Dense: lambda t: Callback()}


def register_method(kind: type, make: Callable[[Training], Callback]) -> None:
    """Say which callback carries out a method.

    Args:
        kind: the method's dataclass in :mod:`dessilbi.lab.run.methods`.
        make: given the run under way, makes the callback.
    """
    _MAKERS[kind] = make


def method_callback(t: Training) -> Callback:
    """The callback of a run's method."""
    method = t.config.method
    if type(method) not in _MAKERS:
        raise ConfigError(
            f"nothing here carries out method {method_name(method)!r}; the paper's competitors are "
            "registered by `import dessilbi.paper.baselines`"
        )
    try:
        return _MAKERS[type(method)](t)
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"method:{method_name(method)}: {error}") from error


def _with_twin(t: Training, what: str) -> TwinOptimizer:
    if not isinstance(t.optimizer, TwinOptimizer):
        raise ConfigError(f"{what}, which optimizer {t.config.optimizer.name} has not")
    return t.optimizer


class NestedCallback(Callback):
    """Nested training: a network for every budget."""

    name = "nested"

    def __init__(self, t: Training) -> None:
        optimizer = _with_twin(t, "nested training is along the path of Gamma")
        self.nested = make_nested(t.config, t.model, optimizer, t.steps, t.example_input)

    def backward(
        self, net: nn.Module, x: Tensor, loss: Callable[[Tensor], Tensor], weight: float
    ) -> tuple[Tensor, Tensor]:
        """Passes of the budgets drawn for this step."""
        return self.nested.backward(x, loss, net=net, weight=weight)

    def state_tensors(self) -> Mapping[str, Tensor]:
        """Ranking, step, and weights of branches."""
        return self.nested.state_dict()

    def load_state(self, t: Training, tensors: Mapping[str, Tensor]) -> None:
        """Go on from :meth:`state_tensors`."""
        self.nested.load_state_dict(dict(tensors))


_OF_SCHEDULE = {field.name for field in fields(nested.NestedSchedule)}


def make_nested(
    config: Config, model: nn.Module, optimizer: Optimizer, steps: int, example_input: Tensor
) -> nested.NestedTraining | nested.NestedWidths:
    """The nested training that a configuration asks for."""
    method = config.method
    options: dict[str, Any] = asdict(method)
    given = {name: options.pop(name) for name in _OF_SCHEDULE & options.keys()}
    options["seed"] = config.seed
    if isinstance(method, NestedWidths):
        schedule = nested.NestedSchedule.for_widths(**given)
        return nested.NestedWidths(
            model, optimizer, steps, example_input, schedule=schedule, **options
        )
    if options["mac_exponent"] > 0:
        options["macs"] = count_macs_per_weight(model, example_input)
    schedule = nested.NestedSchedule(**given)
    return nested.NestedTraining(model, optimizer, steps, schedule=schedule, **options)


class PruningCallback(Callback):
    """Gradual pruning to a budget."""

    name = "pruning"

    def __init__(self, t: Training) -> None:
        method = t.config.method
        assert isinstance(method, GradualPruning)
        if None not in (method.groups, method.macs):
            raise ConfigError("groups and macs are both a budget; give one")
        # A twin's own groups decide what is pruned.
        own = isinstance(t.optimizer, TwinOptimizer)
        prunable = OptimizerConfig(penalty=method.penalty, exclude=method.exclude, tied=method.tied)
        options: dict[str, Any] = {
            method.unit: method.budget,
            "param_groups": None if own else twin_groups(t.model, prunable, t.data.shape),
            "by": method.by,
            "begin": method.begin,
            "end": method.end,
            "every": method.every,
            "per_layer": method.per_layer,
        }
        try:
            self.pruning = subnet.GradualPruning(
                t.model, t.optimizer, t.steps, example_input=t.example_input, **options
            )
        except CompactError:
            if method.macs is not None:
                raise
            # What leaves with what is not known of this network: its groups are counted alone.
            self.pruning = subnet.GradualPruning(t.model, t.optimizer, t.steps, **options)

    def measure(self, t: Training, record: EpochRecord) -> None:
        """What is left after pruning."""
        if self.pruning.mask is not None:
            record["density"] = self.pruning.density
            record["densities"] = self.pruning.densities

    def state_tensors(self) -> Mapping[str, Tensor]:
        """Step and mask."""
        return self.pruning.state_dict()

    def load_state(self, t: Training, tensors: Mapping[str, Tensor]) -> None:
        """Go on from :meth:`state_tensors`."""
        self.pruning.load_state_dict(tensors)


class FrozenCallback(Callback):
    """A support of Gamma that is frozen after some epochs."""

    name = "frozen"

    def __init__(self, t: Training) -> None:
        assert isinstance(t.config.method, FrozenSupport)
        self._method = t.config.method
        self._optimizer = _with_twin(t, "method:frozen-support freezes the support of Gamma")
        self._frozen: subnet.FrozenSupport | None = None

    def on_epoch_start(self, t: Training) -> None:
        """Freeze when the epoch has come."""
        if self._frozen is None and t.progress.epoch >= self._method.epoch:
            self._frozen = subnet.FrozenSupport(t.model, self._optimizer, nu=self._method.nu)

    def state_tensors(self) -> Mapping[str, Tensor]:
        """The support, once it is frozen."""
        return {} if self._frozen is None else self._frozen.state_dict()

    def load_state(self, t: Training, tensors: Mapping[str, Tensor]) -> None:
        """Go on from :meth:`state_tensors`."""
        if tensors:
            self.on_epoch_start(t)
            assert self._frozen is not None
            self._frozen.load_state_dict(tensors)


register_method(NestedWeights, NestedCallback)
register_method(NestedWidths, NestedCallback)
register_method(GradualPruning, PruningCallback)
register_method(FrozenSupport, FrozenCallback)

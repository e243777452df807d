"""What a training run is: frozen dataclasses, to JSON and back, with a hash for a name.

A configuration holds everything that decides the numbers of a run and nothing else: where the data
lies, the device or how progress is shown are given beside it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import tyro

from dessilbi.errors import DessilbiError

if TYPE_CHECKING:
    from pathlib import Path

_STRICT: dict[str, Any] = {"extra": "forbid"}  # unknown keys are refused


class ConfigError(DessilbiError, ValueError):
    """A configuration that cannot be run as it is."""


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Which images."""

    __pydantic_config__: ClassVar[dict[str, Any]] = _STRICT

    name: str = "digits"
    """digits, mnist, fashion-mnist, cifar10 or imagenet."""
    validation: int = 0
    """Training images held out; the run is then judged on them, not on the test set."""
    images: int | None = None
    """Training images used, of those not held out; by default all."""
    test_images: int | None = None
    """Test images judged on, picked at random once and for all runs; by default all."""
    normalize: bool | None = None
    """Subtract the mean and divide by the deviation; by default for colour images only."""
    augment: bool = True
    """Pad, crop and flip, for the sets where that is usual (cifar10, imagenet)."""


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Which network."""

    __pydantic_config__: ClassVar[dict[str, Any]] = _STRICT

    name: str = "digits-net"
    """A name (lenet-5, vgg-16, ...) or an import path (torchvision.models:resnet18)."""
    init: Literal["he", "he-fan-in", "default"] | None = None
    """Initial weights; by default He for named networks, and as it comes for an import path."""


OptimizerName = Literal["dessilbi", "sgd", "adam", "amsgrad", "adagrad", "radam", "adabound"]


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """Which optimizer, and its numbers; those that an optimizer does not know must stay unset."""

    __pydantic_config__: ClassVar[dict[str, Any]] = _STRICT

    name: OptimizerName = "dessilbi"
    lr: float = 0.1
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    l1: float = 0.0
    """Weight of an l1 penalty on the loss (sgd only)."""
    kappa: float = 1.0
    nu: float = 100.0
    lambd: float = 1.0
    penalty: Literal["auto", "lasso", "group_lasso"] = "auto"
    """auto: filters by group, linear weights by element; lasso: everything by element; group_lasso:
    filters and neurons, the classifier without a twin."""
    coupling: Literal["direct", "momentum"] = "direct"
    decoupled_weight_decay: bool = False
    exclude: tuple[str, ...] = ()
    """Patterns of parameters without a twin, the classifier for example."""
    classifier_lambd: float | None = None
    """Threshold of the last linear layer; by default that of the others."""
    size_scaled: bool = False
    init_scaled: float | None = None
    tied: bool = False
    """Filters that must leave together enter together: those that write to one residual stream."""


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    """How the learning rate changes."""

    __pydantic_config__: ClassVar[dict[str, Any]] = _STRICT

    kind: Literal["constant", "step", "multistep", "cosine"] = "constant"
    step_size: int = 30
    """Epochs between drops (step)."""
    milestones: tuple[int, ...] = ()
    """Epochs of the drops (multistep)."""
    gamma: float = 0.1
    """Factor of a drop."""
    warmup: float = 0.0
    """Epochs over which the rate climbs linearly to its value, a little each step."""


@dataclass(frozen=True, kw_only=True)
class StartConfig:
    """What a retrained subnetwork starts from; `dessilbi subnet` fills this in."""

    __pydantic_config__: ClassVar[dict[str, Any]] = _STRICT

    parent: str
    """The run that the subnetwork was found in."""
    mask: str
    """How the mask was chosen there."""
    weights: str
    """Which weights of the parent: init, epoch K or last."""
    epoch: int = 0
    """Epochs of the schedule that count as done: rewinding to an epoch goes on from there."""
    digest: str = ""
    """Fingerprint of mask and weights, which lie in the run directory."""


@dataclass(frozen=True, kw_only=True)
class StopConfig:
    """When to stop before the last epoch."""

    __pydantic_config__: ClassVar[dict[str, Any]] = _STRICT

    when_stable: bool = False
    """As soon as the support of Gamma has settled; --stop-when-stable is the same."""
    window: int = 5
    """Epochs that the support is compared with."""
    tolerance: float = 0.1
    """Largest distance to each of them."""
    distance: Literal["jaccard", "hamming"] = "jaccard"


@dataclass(frozen=True, kw_only=True)
class NestedConfig:
    """Train every budget in one run; see docs/one-run-every-budget.md."""

    __pydantic_config__: ClassVar[dict[str, Any]] = _STRICT

    on: bool = False
    """Draw a budget for each step and train its subnetwork; --nested is the same."""
    by_width: bool = False
    """Whole channels: narrower networks at their own cost, and some with weights of their own."""
    min_density: float | None = None
    """The smallest budget, as a fraction of the weights: by default 0.004, by width 0.125."""
    max_density: float | None = None
    """The largest that is drawn beside the whole network: by default 0.3. Not by width."""
    ramp_start: float | None = None
    """When budgets begin to fall, as a fraction of the training: by default a twelfth."""
    ramp_end: float | None = None
    """When the smallest is reached: by default 0.25, by width 0.3."""
    freeze_ranking_at: float | None = None
    """When the ranking of the weights is fixed: by default 0.6."""
    full_fraction: float | None = None
    """Fraction of steps that train the whole network: by default 0.3, by width 1."""
    draw_power: float | None = None
    """Above 1, large budgets are drawn more often than small ones; below 1, less often: by default
    1. Not by width."""
    rank_every: int | None = None
    """Steps between two rankings: by default 100."""
    budgets_per_step: int | None = None
    """How many budgets a step trains beside the whole network: by default 3, and 2 if there are
    filters. Not by width."""
    per_layer: bool | None = None
    """Whether every layer keeps the same fraction; by default if there are filters. Not by
    width."""
    mac_exponent: float = 0.0
    """Layers are compared by size / multiply-adds ** mac_exponent of their weights; 0.25 serves
    budgets of multiply-adds. Not by width."""
    widths: tuple[float, ...] = ()
    """By width: those that get weights of their own; by default each half of the one before."""
    branch_at: tuple[float, float] = (0.3, 0.6)
    """By width: when the narrowest and the widest of them do; 1 1 never, all share."""
    branch_macs: float = 0.4
    """By width: multiply-adds of these a step, as a fraction of the whole network's."""
    distill: float = 0.5
    """By width: how much the smaller network of a step learns from the larger one."""
    small_fraction: float = 0.8
    """By width: fraction of steps that train a small network beside the large one."""


OF_SCHEDULE = (
    "min_density", "max_density", "ramp_start", "ramp_end", "freeze_ranking_at", "full_fraction",
    "draw_power", "rank_every",
)  # fmt: skip
BY_WEIGHT = ("max_density", "draw_power", "budgets_per_step", "per_layer", "mac_exponent")
BY_WIDTH = ("by_width", "widths", "branch_at", "branch_macs", "distill", "small_fraction")
"""Options of nested training that only one of its ways has."""


@dataclass(frozen=True, kw_only=True)
class PruneConfig:
    """Magnitude pruning while training, the competitor: a run for each budget."""

    __pydantic_config__: ClassVar[dict[str, Any]] = _STRICT

    density: float | None = None
    """The fraction of weights to end with; unset: nothing is pruned."""
    begin: float = 1 / 12
    """When pruning begins, as a fraction of the training."""
    end: float = 2 / 3
    """When the target is reached, along a cubic; begin = end prunes once and fine-tunes."""
    every: int = 50
    """Steps between two prunings."""
    penalty: Literal["auto", "lasso", "group_lasso"] = "auto"
    """What is pruned as a whole, as for DessiLBI's optimizer: filters, weights, neurons."""
    exclude: tuple[str, ...] = ()
    """Patterns of parameters that are not pruned."""


@dataclass(frozen=True, kw_only=True)
class FreezeConfig:
    """Freeze the support of Gamma and pull the weights outside of it to zero."""

    __pydantic_config__: ClassVar[dict[str, Any]] = _STRICT

    epoch: int | None = None
    """After this many epochs; the first drop of the learning rate is a good moment."""
    nu: float = 1.0
    """How hard: the weights outside lose lr / nu of themselves a step."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """A training run."""

    __pydantic_config__: ClassVar[dict[str, Any]] = _STRICT

    name: str = "run"
    """The first half of the run directory's name."""
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    epochs: int = 10
    batch_size: int = 128
    """Images in a batch, all processes together."""
    seed: int = 0
    dtype: Literal["float32", "float64"] = "float32"
    keep: tuple[int, ...] = ()
    """Epochs whose checkpoints are kept, to rewind to; 0 is the initialisation."""
    nested: NestedConfig = field(default_factory=NestedConfig)
    prune: PruneConfig = field(default_factory=PruneConfig)
    freeze: FreezeConfig = field(default_factory=FreezeConfig)
    stop: StopConfig = field(default_factory=StopConfig)
    start: Annotated[StartConfig | None, tyro.conf.Suppress] = None

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9][\w.+-]*", self.name):
            raise ConfigError(
                f"name must be letters, digits and .+-_ (it names a directory), got {self.name!r}"
            )
        for rule, holds in {
            f"epochs must be >= 0, got {self.epochs}": self.epochs >= 0,
            f"batch_size must be >= 1, got {self.batch_size}": self.batch_size >= 1,
            f"keep must lie in [0, {self.epochs}], got {self.keep}": all(
                0 <= epoch <= self.epochs for epoch in self.keep
            ),
            f"schedule.warmup must be >= 0, got {self.schedule.warmup}": self.schedule.warmup >= 0,
            f"schedule.step_size must be >= 1, got {self.schedule.step_size}": (
                self.schedule.step_size >= 1
            ),
        }.items():
            if not holds:
                raise ConfigError(rule)

    @property
    def decisive(self) -> dict[str, Any]:
        """All that can change the run.

        Options of what is switched off cannot: a run is found again when their defaults change.
        """
        values: dict[str, Any] = dataclasses.asdict(self)
        for name, used in {
            "nested": self.nested.on,
            "prune": self.prune.density is not None,
            "freeze": self.freeze.epoch is not None,
            "stop": self.stop.when_stable,
        }.items():
            if not used:
                del values[name]
        if self.nested.on:
            for unused in BY_WEIGHT if self.nested.by_width else BY_WIDTH:
                del values["nested"][unused]
        if not self.optimizer.tied:
            del values["optimizer"]["tied"]
        if self.data.test_images is None:
            del values["data"]["test_images"]
        return {name: _alike(value) for name, value in values.items()}

    @property
    def hash(self) -> str:
        """Eight hexadecimal digits that change with any number of the configuration."""
        canonical = json.dumps(self.decisive, sort_keys=True)
        return hashlib.sha256(canonical.encode()).hexdigest()[:8]

    @property
    def run_name(self) -> str:
        """Name of the run directory: the same configuration finds its run again."""
        return f"{self.name}-{self.hash}"


def _alike(value: Any) -> Any:
    """Values as JSON would give them back: 1 and 1.0, tuples and lists are the same."""
    if isinstance(value, dict):
        return {key: _alike(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_alike(one) for one in value]
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def to_json(config: Config) -> str:
    """The configuration as readable JSON."""
    return json.dumps(dataclasses.asdict(config), indent=2) + "\n"


def from_json(text: str, source: str | Path = "the configuration") -> Config:
    """Read what :func:`to_json` wrote; unknown keys and wrong types are refused by name."""
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(Config).validate_json(text)
    except ValidationError as error:
        faults = "; ".join(
            f"{'.'.join(map(str, e['loc'])) or 'file'}: {e['msg']}" for e in error.errors()
        )
        raise ConfigError(f"{source} is not a valid configuration: {faults}") from error

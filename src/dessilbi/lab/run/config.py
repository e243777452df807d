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
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeVar

import tyro

from dessilbi._text import did_you_mean
from dessilbi.errors import DessilbiError
from dessilbi.lab.run.methods import METHODS, Dense, Method, method_name

if TYPE_CHECKING:
    from pathlib import Path

T = TypeVar("T")

_STRICT: dict[str, Any] = {"extra": "forbid"}  # unknown keys are refused
FORMAT = 2
"""Of config.json and of checkpoints; 1 was dessilbi 0.1, which wrote no number."""


class ConfigError(DessilbiError, ValueError):
    """A configuration that cannot be run as it is."""


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Which images, or which text."""

    __pydantic_config__: ClassVar[dict[str, Any]] = _STRICT

    name: str = "digits"
    """digits, mnist, fashion-mnist, cifar10, imagenet, tinyshakespeare, or a text file (my.txt)."""
    validation: int = 0
    """Training images held out; the run is then judged on them, not on the test set."""
    images: int | None = None
    """Training images used, of those not held out; by default all. Of a text, random windows that
    make an epoch; by default as many as the text has."""
    test_images: int | None = None
    """Test images judged on, picked at random once and for all runs; by default all."""
    normalize: bool | None = None
    """Subtract the mean and divide by the deviation; by default for colour images only."""
    augment: bool = True
    """Pad, crop and flip, for the sets where that is usual (cifar10, imagenet). Of a text, windows
    that begin anywhere."""
    context: int = 64
    """Characters that a language model reads at once."""


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Which network."""

    __pydantic_config__: ClassVar[dict[str, Any]] = _STRICT

    name: str = "digits-net"
    """A name (lenet-5, vgg-16, ...) or an import path (torchvision.models:resnet18)."""
    init: Literal["he", "he-fan-in", "default"] | None = None
    """Initial weights; by default He for named networks, and as it comes for an import path."""


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """Which optimizer, and its numbers; those that an optimizer does not know must stay unset."""

    __pydantic_config__: ClassVar[dict[str, Any]] = _STRICT

    name: str = "dessilbi"
    """dessilbi, sgd, adam, adamw, amsgrad, adagrad, nadam, radam, rmsprop or muon; the paper's
    competitors add some."""
    base: str = "sgd"
    """What moves the weights by the loss beside the twin: sgd (DessiLBI), or any of the other names
    (SplitLBI around it)."""
    lr: float = 0.1
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    l1: float = 0.0
    """Weight of an l1 penalty on the loss (sgd-l1 only)."""
    kappa: float = 1.0
    tau: float | None = None
    """Coupling time: the sum of lr / nu over all steps of the run's schedule. 10 unless nu is
    given."""
    nu: float | None = None
    """How loosely Gamma is coupled to the weights, in place of tau."""
    c: float | None = None
    """Relative threshold: times the norm that a group begins with. 2 unless lambd is given."""
    lambd: float | None = None
    """Threshold that is the same for all groups, in place of c."""
    penalty: Literal["auto", "lasso", "group_lasso"] = "auto"
    """auto: filters by group, linear weights by element, of a network that knows its groups (the
    neurons of char-gpt) those alone; lasso: everything by element; group_lasso: filters and
    neurons, the classifier without a twin."""
    coupling: Literal["direct", "momentum"] = "direct"
    decoupled_weight_decay: bool = False
    exclude: tuple[str, ...] = ()
    """Patterns of parameters without a twin, the classifier for example."""
    classifier_lambd: float | None = None
    """Threshold of the last linear layer; by default that of the others."""
    size_scaled: bool = False
    """Thresholds lambd * sqrt(group size)."""
    tied: bool = False
    """Filters that must leave together enter together: those that write to one residual stream."""

    @property
    def label(self) -> str:
        """The name, and what it is wrapped around if that is not SGD."""
        wraps = self.name == "dessilbi" and self.base != "sgd"
        return f"{self.name} with base {self.base}" if wraps else self.name


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
    method: Method = field(default_factory=Dense)
    """What is done beside the optimizer's steps."""
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
    def epochs_before(self) -> int:
        """Epochs of the schedule that count as done: those before a rewound start."""
        return 0 if self.start is None else self.start.epoch

    @property
    def hash(self) -> str:
        """Eight hexadecimal digits that change with any number of the configuration."""
        canonical = json.dumps(_alike(to_values(self)), sort_keys=True)
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


def to_values(config: Config) -> dict[str, Any]:
    """The configuration as plain values; the method says its name."""
    values = dataclasses.asdict(config)
    return values | {"method": {"name": method_name(config.method), **values["method"]}}


def to_json(config: Config) -> str:
    """The configuration as readable JSON."""
    return json.dumps({"format": FORMAT, **to_values(config)}, indent=2) + "\n"


def from_json(text: str, source: str | Path = "the configuration") -> Config:
    """Read what :func:`to_json` wrote; unknown keys and wrong types are refused by name."""
    values = _plain_values(text, source)
    if isinstance(method := values.get("method"), dict):
        name = str(method.pop("name", ""))
        if name not in METHODS:
            raise ConfigError(
                f"{source}: unknown method {name!r}{did_you_mean(name, METHODS)}; "
                f"known: {', '.join(METHODS)}"
            )
        values["method"] = _validated(METHODS[name], method, source, "method.")
    return _validated(Config, values, source)


def _validated(kind: type[T], values: dict[str, Any], source: str | Path, at: str = "") -> T:
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(kind).validate_python(values)
    except ValidationError as error:
        faults = "; ".join(
            f"{at}{'.'.join(map(str, e['loc'])) or 'file'}: {e['msg']}" for e in error.errors()
        )
        raise ConfigError(f"{source} is not a valid configuration: {faults}") from error


def _plain_values(text: str, source: str | Path) -> dict[str, Any]:
    try:
        values = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{source} is not a valid configuration: file: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{source} is not a valid configuration: file: it holds no object")
    found = values.pop("format", FORMAT)
    if {"nested", "prune", "freeze"} & values.keys():
        raise ConfigError(
            f"{source} is of dessilbi 0.1, whose runs this version does not read: train anew, or "
            "look at it with a checkout of that version"
        )
    if found != FORMAT:
        raise ConfigError(
            f"{source} has format {found!r}, this version of dessilbi knows {FORMAT}; "
            "it was made by a newer one: pip install --upgrade dessilbi"
        )
    return values

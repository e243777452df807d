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
from dessilbi.lab.run.config_parts import (
    LATER,
    STRICT,
    DataConfig,
    ModelConfig,
    OptimizerConfig,
    ScheduleConfig,
    StartConfig,
    StopConfig,
)
from dessilbi.lab.run.methods import METHODS, Dense, Method, method_name

if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "FORMAT",
    "Config",
    "ConfigError",
    "DataConfig",
    "ModelConfig",
    "OptimizerConfig",
    "ScheduleConfig",
    "StartConfig",
    "StopConfig",
    "from_json",
    "to_json",
    "to_values",
]

T = TypeVar("T")

FORMAT = 2
"""Of config.json and of checkpoints; 1 was dessilbi 0.1, which wrote no number."""


class ConfigError(DessilbiError, ValueError):
    """A configuration that cannot be run as it is."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """A training run."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    name: str = "run"
    """The first half of the run directory's name."""
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    epochs: int = 10
    batch_size: int = 128
    """Images in a batch, all processes together."""
    label_smoothing: float = field(default=0.0, metadata=LATER)
    """Share of a label that is spread over all classes, in the loss that is trained."""
    test_flips: bool = field(default=False, metadata=LATER)
    """After the last epoch, also judge the mean of an image's logits and its mirror image's."""
    seed: int = 0
    dtype: Literal["float32", "float64"] = "float32"
    """Of weights, V and everything that is added up."""
    precision: Literal["full", "bf16", "fp16"] = field(default="full", metadata=LATER)
    """Of the passes: full is dtype; bf16 and fp16 are autocast, with a GradScaler for fp16."""
    compile: bool = field(default=False, metadata=LATER)
    """Train with torch.compile of the network; its first steps wait for the compiler."""
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
            f"precision={self.precision!r} is for dtype='float32', got {self.dtype!r}; "
            "set precision='full'": self.precision == "full" or self.dtype == "float32",
            f"label_smoothing must lie in [0, 1), got {self.label_smoothing}": (
                0 <= self.label_smoothing < 1
            ),
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
        counted = _counted(self)
        counted["method"]["name"] = method_name(self.method)
        canonical = json.dumps(counted, sort_keys=True)
        return hashlib.sha256(canonical.encode()).hexdigest()[:8]

    @property
    def run_name(self) -> str:
        """Name of the run directory: the same configuration finds its run again."""
        return f"{self.name}-{self.hash}"


def _counted(value: Any) -> Any:
    """What a name is made of: options of a :data:`LATER` date only where they are set.

    Values are as JSON would give them back: 1 and 1.0, tuples and lists are the same.
    """
    if dataclasses.is_dataclass(value):
        return {
            one.name: _counted(found)
            for one in dataclasses.fields(value)
            if (found := getattr(value, one.name)) != one.default or one.metadata != LATER
        }
    if isinstance(value, list | tuple):
        return [_counted(one) for one in value]
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

"""Training methods as configurations: what is done beside the optimizer's steps, one in a run.

The training loop makes a callback of each (:mod:`dessilbi.lab.training.callbacks`). Fractions of
the training are of its optimizer steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

_STRICT: dict[str, Any] = {"extra": "forbid"}  # unknown keys are refused


@dataclass(frozen=True, kw_only=True)
class Dense:
    """Train all weights in every step."""

    __pydantic_config__: ClassVar[dict[str, Any]] = _STRICT


@dataclass(frozen=True, kw_only=True)
class NestedWeights:
    """Train every budget of weights in one run; see docs/one-run-every-budget.md."""

    __pydantic_config__: ClassVar[dict[str, Any]] = _STRICT

    min_density: float = 0.004
    """The smallest budget, as a fraction of the weights."""
    max_density: float = 0.3
    """The largest that is drawn beside the whole network."""
    ramp_start: float = 1 / 12
    """When budgets begin to fall, as a fraction of the training."""
    ramp_end: float = 0.25
    """When the smallest is reached."""
    freeze_ranking_at: float = 0.6
    """When the ranking of the weights is fixed."""
    full_fraction: float = 0.3
    """Fraction of steps that train the whole network."""
    draw_power: float = 1.0
    """Above 1, large budgets are drawn more often than small ones; below 1, less often."""
    rank_every: int = 100
    """Steps between two rankings."""
    budgets_per_step: int | None = None
    """How many a step trains beside the whole network; by default 3, and 2 if there are filters."""
    min_groups: int = 1
    """Weights or filters of each layer that every subnetwork has."""
    per_layer: bool | None = None
    """Whether every layer keeps the same fraction; by default if there are filters."""
    mac_exponent: float = 0.0
    """Layers are compared by size / multiply-adds ** mac_exponent of their weights; 0.25 serves
    budgets of multiply-adds."""


@dataclass(frozen=True, kw_only=True)
class NestedWidths:
    """Train every width in one run: whole channels or neurons, small networks that are small."""

    __pydantic_config__: ClassVar[dict[str, Any]] = _STRICT

    min_density: float = 0.125
    """The smallest width, as a fraction of each layer's filters."""
    ramp_start: float = 1 / 12
    """When widths begin to fall, as a fraction of the training."""
    ramp_end: float = 0.3
    """When the smallest is reached."""
    freeze_ranking_at: float = 0.6
    """When the ranking of the filters is fixed."""
    full_fraction: float = 1.0
    """Fraction of steps that train the whole network."""
    rank_every: int = 100
    """Steps between two rankings."""
    widths: tuple[float, ...] = ()
    """Which; by default each half of the one before, down to the smallest."""
    branch_at: tuple[float, float] = (0.3, 0.6)
    """When the narrowest and the widest get weights of their own; 1 1 never, all share."""
    branch_macs: float = 0.4
    """Multiply-adds of these networks a step, as a fraction of the whole network's."""
    distill: float = 0.5
    """How much the smaller network of a step learns from the larger one."""
    small_fraction: float = 0.8
    """Fraction of steps that train a small network beside the large one."""


@dataclass(frozen=True, kw_only=True)
class GradualPruning:
    """Train to a budget that is hit: prune by size on the way, then heal; --density is short."""

    __pydantic_config__: ClassVar[dict[str, Any]] = _STRICT

    density: float = 0.1
    """The fraction of the weights to end with, counted in the compact network."""
    groups: float | None = None
    """In its place, the fraction of the groups: filters, neurons, single weights."""
    macs: float | None = None
    """In its place, the fraction of the multiply-adds."""
    by: Literal["weights", "gamma"] = "weights"
    """weights: the smallest leave; gamma: the first to enter stay, with the coupling on."""
    begin: float = 1 / 12
    """When pruning begins, as a fraction of the training."""
    end: float = 2 / 3
    """When the target is reached, along a cubic; begin = end prunes once and fine-tunes."""
    every: int = 50
    """Steps between two prunings."""
    per_layer: bool | None = None
    """Whether every layer keeps the same fraction; by default if there are filters."""
    penalty: Literal["auto", "lasso", "group_lasso"] = "auto"
    """What is pruned as a whole, where the optimizer has no twin that says it."""
    exclude: tuple[str, ...] = ()
    """Patterns of parameters that are not pruned, where the optimizer has no twin."""
    tied: bool = False
    """Filters that must leave together do, where the optimizer has no twin."""

    @property
    def unit(self) -> Literal["density", "groups", "macs"]:
        """The option that says the budget."""
        return "groups" if self.groups is not None else "density" if self.macs is None else "macs"

    @property
    def budget(self) -> float:
        """Its value."""
        return float(getattr(self, self.unit))


@dataclass(frozen=True, kw_only=True)
class FrozenSupport:
    """Freeze the support of Gamma after some epochs and pull the weights outside of it to zero."""

    __pydantic_config__: ClassVar[dict[str, Any]] = _STRICT

    epoch: int = 1
    """After this many epochs; the first drop of the learning rate is a good moment."""
    nu: float = 1.0
    """How hard: the weights outside lose lr / nu of themselves a step."""


@dataclass(frozen=True, kw_only=True)
class NetworkSlimming:
    """Penalise BatchNorm's scales by l1 (Liu et al. 2017)."""

    __pydantic_config__: ClassVar[dict[str, Any]] = _STRICT

    strength: float = 1e-4
    """Factor of the penalty."""


@dataclass(frozen=True, kw_only=True)
class SoftFilters:
    """Zero the weakest filters of each layer every epoch; they may return (He et al. 2018)."""

    __pydantic_config__: ClassVar[dict[str, Any]] = _STRICT

    rate: float = 0.3
    """Fraction of filters, the same in every layer."""


Method = (
    Dense
    | NestedWeights
    | NestedWidths
    | GradualPruning
    | FrozenSupport
    | NetworkSlimming
    | SoftFilters
)

METHODS: dict[str, type[Method]] = {
    "dense": Dense,
    "nested-weights": NestedWeights,
    "nested-widths": NestedWidths,
    "gradual-pruning": GradualPruning,
    "frozen-support": FrozenSupport,
    "network-slimming": NetworkSlimming,
    "soft-filters": SoftFilters,
}
"""By the name that the command line and config.json have for it."""


def method_name(method: Method) -> str:
    """The name of a method."""
    return next(name for name, kind in METHODS.items() if type(method) is kind)

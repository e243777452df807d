"""In which order groups are taken when a budget is to be filled.

:data:`ORDERS` maps a name to the sort keys of the groups, the most important first, larger is
taken earlier; groups that tie in all keys are taken as they are numbered. An order never looks at
the budget: masks of different budgets are prefixes of one ranking, hence nested.

The keys come from :class:`Groups`: the step of entry, and the strengths |W|, |V| and |Gamma| at the
last snapshot. Strengths of different layers are compared on one of the :data:`SCALES`:

- ``"rms"``: a filter's norm over sqrt(its size), that is its typical weight. Filters of any fan-in
  and single weights are then in the same unit, and a budget is spent where a weight does most.
- ``"norm"``: the norm itself, what the penalty compares with lambd. Right among filters; a filter
  always beats a single weight.
- ``"threshold"``: the norm over the group's own lambd. For ``"dual"`` this is the algorithm's own
  scale, above 1 inside the support: at the support's density the mask is the support, up to
  rounding.
- ``"layer"``: the norm over the layer's root mean square norm. Undoes that initialisation gives
  wide layers smaller weights; layers end up at similar densities.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, get_args
from weakref import WeakKeyDictionary

import numpy as np

from ._events import NEVER
from .layers import unknown

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from numpy.typing import NDArray

    from ._events import Events
    from .layers import Layer
    from .solution_path import SolutionPath

    Floats = NDArray[np.floating]
    Keys = tuple[NDArray[np.generic], ...]

Scale = Literal["rms", "norm", "threshold", "layer"]
SCALES: tuple[str, ...] = get_args(Scale)


class Groups:
    """What can be said of the groups of some layers; every array has one entry a group.

    Groups of tied layers are one: their norms are joint, and what else is asked of them is the same
    for all.
    """

    def __init__(
        self, path: SolutionPath, layers: Sequence[tuple[Layer, ...]], scale: Scale
    ) -> None:
        if scale not in SCALES:
            raise ValueError(unknown("scale", scale, SCALES))
        if path.ranking is None:
            raise ValueError(
                "groups can be ranked only after a recorded epoch, and this path "
                f"{'was cut at one' if path.snapshots else 'has none'}; call record(epoch) first"
            )
        self.path, self.sets, self.scale = path, layers, scale
        self.layers = [first for first, *_ in layers]
        self.ranking = path.ranking

    @cached_property
    def entry(self) -> Floats:
        """Step of the first entry; infinite for a group that never entered."""
        return self._at_common_resolution(self._events.first_entries(self.path.groups))

    @cached_property
    def stay(self) -> Floats:
        """Step since which the group has been inside; infinite for one that is outside now."""
        return self._at_common_resolution(self._events.stays(self.path.groups))

    @cached_property
    def inside(self) -> NDArray[np.bool_]:
        """Whether the group is in the support at the last snapshot."""
        bits = self.path.supports.at(len(self.path.snapshots) - 1)
        return np.concatenate([bits[layer.slice] for layer in self.layers])

    @cached_property
    def magnitude(self) -> Floats:
        """Norm of W, on the chosen scale."""
        return self._scaled("W")

    @cached_property
    def gamma(self) -> Floats:
        """Norm of Gamma, on the chosen scale."""
        return self._scaled("Gamma")

    @cached_property
    def dual(self) -> Floats:
        """Norm of V, on the chosen scale."""
        return self._scaled("V")

    @cached_property
    def budget_rank(self) -> NDArray[np.int64]:
        """The smallest budget that the group was trained in; see NestedTraining."""
        ranks = self.ranking.budget_ranks
        if ranks is None:
            raise ValueError(
                "order 'nested' needs the ranking of a nested run, which this path has not; train "
                "with --nested (NestedTraining), or choose another order"
            )
        return np.concatenate([ranks[layer.name].astype(np.int64) for layer in self.layers])

    # ------------------------------------------------------------------ entries

    @cached_property
    def _events(self) -> Events:
        return self.path.changes(self.layers)

    def _at_common_resolution(self, steps: NDArray[np.int64]) -> Floats:
        chosen = np.concatenate([steps[layer.slice] for layer in self.layers])
        result = np.where(chosen == NEVER, np.inf, chosen.astype(np.float64))
        kinds = {layer.exact for layer in self.layers}
        if len(kinds) == 2:
            # Single weights are seen at snapshots only, hence late; filters must not gain by that.
            snapshots = np.array([snapshot.step for snapshot in self.path.snapshots] + [np.inf])
            seen = snapshots[np.searchsorted(snapshots, result)]
            result = np.where(np.isinf(seen), result, seen)
        return result

    # ------------------------------------------------------------------ strengths

    def _scaled(self, what: Literal["W", "Gamma", "V"]) -> Floats:
        return np.concatenate([self._of_set(tied, what) for tied in self.sets])

    def _of_set(self, tied: tuple[Layer, ...], what: Literal["W", "Gamma", "V"]) -> Floats:
        layer, *others = tied
        norms = self._norms(layer, what)
        if others:
            norms = np.linalg.norm([norms, *(self._norms(o, what) for o in others)], axis=0)
        norms = np.nan_to_num(norms, nan=0.0)  # a diverged weight comes last
        divisor: Floats = np.ones(1, dtype=np.float32)
        if self.scale == "threshold":
            lambd = self.ranking.thresholds[layer.name]
            divisor = np.where(lambd > 0, lambd, divisor)
        elif self.scale == "rms":
            divisor = divisor * np.sqrt(np.float32(sum(one.group_size for one in tied)))
        elif self.scale == "layer":
            divisor = np.sqrt(np.square(norms, dtype=np.float64).mean(keepdims=True))
        return np.divide(norms, np.where(divisor > 0, divisor, 1), dtype=np.float32)

    def _norms(self, layer: Layer, what: Literal["W", "Gamma", "V"]) -> NDArray[np.float32]:
        norms: NDArray[np.float32]
        if layer.exact:
            norms = getattr(self.path.norms(self.path.epochs[-1], layer.name), what).numpy()
            return norms
        s = self.ranking
        norms = (s.W if what == "W" else s.V)[layer.name].astype(np.float32)
        if what == "Gamma":
            norms = np.float32(s.kappa[layer.name]) * np.maximum(
                norms - s.thresholds[layer.name], 0
            )
        return norms


def _mean_ranks(keys: Floats) -> Floats:
    """Rank of each entry, the largest 1; those that tie share the mean of their ranks."""
    _, inverse, counts = np.unique(-keys, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[inverse]


ORDERS: dict[str, Callable[[Groups], Keys]] = {
    "entry": lambda g: (-g.entry, g.magnitude),
    "stay": lambda g: (-g.stay, g.magnitude),
    "magnitude": lambda g: (g.magnitude,),
    "dual": lambda g: (g.dual,),
    "gamma": lambda g: (g.inside, g.gamma, g.dual),
    "support+magnitude": lambda g: (g.inside, g.magnitude),
    "entry+magnitude": lambda g: (-_mean_ranks(-g.entry) - _mean_ranks(g.magnitude), g.magnitude),
    "entry+dual": lambda g: (-_mean_ranks(-g.entry) - _mean_ranks(g.dual), g.dual),
    "nested": lambda g: (-g.budget_rank, g.magnitude),
}
"""Orders by name.

- ``entry``: the step of first entry; those that tie, or never entered, by |W|.
- ``stay``: the same with the start of the present stay: who left again comes last.
- ``magnitude``, ``dual``: |W|, |V| at the last snapshot.
- ``gamma``: the support first, by |Gamma|, then the rest by |V|.
- ``support+magnitude``: the support first; inside and outside of it by |W|.
- ``entry+magnitude``, ``entry+dual``: the sum of the two ranks.
- ``nested``: as the budgets of a nested run were trained; the default where there is one.
"""

DEFAULT_ORDER = "magnitude"
DEFAULT_SCALE: Scale = "rms"
# The best of all orders and scales without retraining, weight by weight and filter by filter
# (benchmarks/orders.py, docs/subnets.md): what entered is large; how large says more than when.

_latest: WeakKeyDictionary[SolutionPath, tuple[Hashable, NDArray[np.int64]]] = WeakKeyDictionary()


def ranked_groups(
    path: SolutionPath, layers: Sequence[tuple[Layer, ...]], order: str, scale: Scale
) -> NDArray[np.int64]:
    """The groups of some layers, tied ones together, numbered through these, best first."""
    if order not in ORDERS:
        raise ValueError(unknown("order", order, ORDERS))
    names = tuple(layer.name for tied in layers for layer in tied)
    wanted: Hashable = (order, scale, names, path.step, len(path.snapshots))
    known, ranked = _latest.get(path, (None, None))
    if ranked is None or known != wanted:  # sorting millions of weights takes seconds
        keys = ORDERS[order](Groups(path, layers, scale))
        ranked = np.lexsort([_descending(key) for key in reversed(keys)])
        _latest[path] = (wanted, ranked)
    return ranked


def _descending(key: NDArray[Any]) -> NDArray[Any]:
    descending: NDArray[Any] = ~key if key.dtype == np.bool_ else -key
    return descending

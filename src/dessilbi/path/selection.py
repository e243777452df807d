"""From a path to a mask: the support at an epoch, or the best groups that a budget allows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from .layers import unknown
from .mask import Mask, most_weights
from .orders import Groups, ranked_groups

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from .layers import Layer
    from .orders import Scale
    from .solution_path import SolutionPath

    Bits = NDArray[np.bool_]


@dataclass(frozen=True)
class Budget:
    """What may be kept; see :meth:`SolutionPath.mask`."""

    epoch: int | None = None
    density: float | None = None
    parameters: int | None = None
    macs: float | None = None
    macs_per_weight: Mapping[str, float] | None = None
    per_layer: float | Mapping[str, float] | None = None

    def __post_init__(self) -> None:
        overall = ("epoch", "density", "parameters", "macs")
        given = [name for name in overall if getattr(self, name) is not None]
        if len(given) > 1 or (not given and self.per_layer is None):
            raise ValueError(
                "give one of epoch, density, parameters, macs or per_layer, got "
                f"{' and '.join(given) or 'none (an epoch of None: the support never settled?)'}"
            )
        if self.epoch is not None and self.per_layer is not None:
            raise ValueError("per_layer is a budget and cannot be combined with epoch")
        if (self.macs is None) != (self.macs_per_weight is None):
            raise ValueError(
                "macs and macs_per_weight belong together; "
                "count_macs_per_weight(model, example_input) counts the latter"
            )
        _check_density("density", self.density)
        for name in ("parameters", "macs"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:
                raise ValueError(f"{name} must be >= 0 and finite, got {value!r}")
        if isinstance(self.per_layer, Mapping):
            for layer, density in self.per_layer.items():
                _check_density(f"per_layer[{layer!r}]", density)
        else:
            _check_density("per_layer", self.per_layer)

    def of_layers(self, layers: Sequence[Layer]) -> dict[str, float]:
        """Densities of the layers that have a budget of their own."""
        if self.per_layer is None:
            return {}
        names = [layer.name for layer in layers]
        if not isinstance(self.per_layer, Mapping):
            return dict.fromkeys(names, self.per_layer)
        _check_names("per_layer", self.per_layer, names)
        rest = [name for name in names if name not in self.per_layer]
        if rest and self.density is self.parameters is self.macs is None:
            raise ValueError(
                f"per_layer does not name {rest[0]!r}; name it, give density= for the layers "
                "without a budget of their own, or leave them out with layers="
            )
        return dict(self.per_layer)

    def shared(self, layers: Sequence[Layer]) -> float:
        """What the layers without a budget of their own may cost together."""
        if self.density is not None:
            return most_weights(self.density, sum(layer.numel for layer in layers))
        limit = self.macs if self.macs is not None else self.parameters
        assert limit is not None
        return limit

    def cost(self, layer: Layer) -> float:
        """What one group costs in the unit of the shared budget."""
        if self.macs_per_weight is None:
            return layer.group_size
        if layer.name not in self.macs_per_weight:
            raise ValueError(
                f"macs_per_weight lacks layer {layer.name!r}; add it, or leave the layer out with "
                "layers="
            )
        return layer.group_size * self.macs_per_weight[layer.name]


def select(
    path: SolutionPath,
    budget: Budget,
    *,
    order: str,
    scale: Scale,
    min_groups: int | Mapping[str, int] | None,
    layers: Sequence[str] | None,
) -> Mask:
    """The mask that :meth:`SolutionPath.mask` describes."""
    chosen = _chosen(path, layers)
    default = 1 if budget.epoch is None else 0
    floors = _floors(chosen, default if min_groups is None else min_groups, default)
    if budget.epoch is not None:
        support = path.support(budget.epoch)
        if not any(floors):
            return Mask({layer.name: support[layer.name] for layer in chosen})
        ranked = ranked_groups(path, chosen, order, scale)
        kept = _floor_groups(chosen, ranked, floors)
        mask = _as_mask(chosen, kept)
        return mask | Mask({layer.name: support[layer.name] for layer in chosen})

    own = budget.of_layers(chosen)
    ranked = ranked_groups(path, chosen, order, scale)
    kept = _floor_groups(chosen, ranked, floors)
    number, ranks = _numbers(chosen), None
    if order == "nested" and path.ranking is not None and path.ranking.dependents is not None:
        ranks = Groups(path, chosen, scale).budget_rank
    for i, layer in enumerate(chosen):
        if layer.name in own:
            mine, limit = ranked[number[ranked] == i], most_weights(own[layer.name], layer.numel)
            _fill(kept, mine, np.full(layer.groups, float(layer.group_size)), limit, ranks)
    others = [i for i, layer in enumerate(chosen) if layer.name not in own]
    if others:
        mine = ranked[np.isin(number[ranked], others)]
        costs = np.array(
            [budget.cost(layer) if i in others else 0 for i, layer in enumerate(chosen)]
        )
        shared = budget.shared([chosen[i] for i in others])
        _fill(kept, mine, costs[number[mine]], shared, ranks)
    return _with_dependents(path, chosen, kept) if order == "nested" else _as_mask(chosen, kept)


def _fill(
    kept: Bits,
    ranked: NDArray[np.int64],
    costs: NDArray[np.float64],
    limit: float,
    ranks: NDArray[np.int64] | None,
) -> None:
    """Keep ranked groups until the first that does not fit; those kept already are paid first.

    Skipping it for a smaller one further down would keep more, but then a larger budget, which the
    skipped group does fit, may have no room for the smaller one: masks would not be nested.

    Where groups are ranked by ``ranks`` that were trained whole, a rank is kept whole or not at
    all: one that does not fit goes, and one that a group kept already belongs to comes.
    """
    paid = kept[ranked]
    spent = float(costs[paid].sum()) + np.cumsum(costs[~paid])
    fits = int(np.searchsorted(spent, limit, side="right"))
    taken, left_out = ranked[~paid][:fits], ranked[~paid][fits:]
    if ranks is not None and len(left_out):
        needed = ranks[ranked[paid]].max(initial=-1)
        taken = ranked[ranks[ranked] < max(ranks[left_out[0]], needed + 1)]
    kept[taken] = True


def _floor_groups(
    layers: Sequence[Layer], ranked: NDArray[np.int64], floors: Sequence[int]
) -> Bits:
    """The best groups of each layer, which do not depend on the budget."""
    kept = np.zeros(len(ranked), dtype=np.bool_)
    number = _numbers(layers)[ranked]
    for i, min_groups in enumerate(floors):
        if min_groups:
            kept[ranked[np.flatnonzero(number == i)[:min_groups]]] = True
    return kept


def _numbers(layers: Sequence[Layer]) -> NDArray[np.int64]:
    """The index of each group's layer."""
    return np.repeat(np.arange(len(layers)), [layer.groups for layer in layers])


def _as_mask(layers: Sequence[Layer], kept: Bits) -> Mask:
    parts = torch.split(torch.from_numpy(kept), [layer.groups for layer in layers])
    return Mask({layer.name: layer.expand(p) for layer, p in zip(layers, parts, strict=True)})


def _with_dependents(path: SolutionPath, layers: Sequence[Layer], kept: Bits) -> Mask:
    """The mask, and the parameters without a twin that leave with a group; see Ranking."""
    inside = np.ones(path.groups + 1, dtype=np.bool_)  # the last one is for -1
    inside[np.concatenate([np.arange(one.slice.start, one.slice.stop) for one in layers])] = kept
    dependents = (path.ranking and path.ranking.dependents) or {}
    others = {name: torch.from_numpy(inside[groups]) for name, groups in dependents.items()}
    return Mask({**_as_mask(layers, kept).tensors, **others})


def _chosen(path: SolutionPath, names: Sequence[str] | None) -> tuple[Layer, ...]:
    if names is None:
        return path.layers
    if isinstance(names, str) or not names:
        raise ValueError(f"layers must be a list of at least one layer name, got {names!r}")
    wanted = {path.layer(name).name for name in names}
    return tuple(layer for layer in path.layers if layer.name in wanted)


def _floors(
    layers: Sequence[Layer], min_groups: int | Mapping[str, int], default: int
) -> tuple[int, ...]:
    if isinstance(min_groups, Mapping):
        _check_names("min_groups", min_groups, [layer.name for layer in layers])
        by_layer = [min_groups.get(layer.name, default) for layer in layers]
    else:
        by_layer = [min_groups] * len(layers)
    for value in by_layer:
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise ValueError(f"min_groups must be a number of groups >= 0, got {value!r}")
    return tuple(by_layer)


def _check_names(argument: str, given: Mapping[str, object], names: Sequence[str]) -> None:
    for name in given:
        if name not in names:
            raise ValueError(f"{argument} names an {unknown('layer', name, names)}")


def _check_density(argument: str, value: float | None) -> None:
    if value is not None and not 0 <= value <= 1:
        raise ValueError(f"{argument} must be a density from 0 to 1, got {value!r}")

"""From a path to a mask: the support at an epoch, or the best groups that a budget allows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from .layers import tied_sets, unknown
from .mask import Mask, most_weights
from .orders import Groups, ranked_groups

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from .layers import Layer
    from .orders import Scale
    from .solution_path import SolutionPath

    Bits = NDArray[np.bool_]
    Tied = tuple[Layer, ...]


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
                "macs and macs_per_weight belong together; macs=..., model=model, "
                "example_input=x counts the latter"
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

    def of_sets(self, sets: Sequence[Tied]) -> dict[int, float]:
        """Densities of the layers that have a budget of their own, by the index of their set."""
        if self.per_layer is None:
            return {}
        names = [layer.name for tied in sets for layer in tied]
        if not isinstance(self.per_layer, Mapping):
            return dict.fromkeys(range(len(sets)), self.per_layer)
        _check_names("per_layer", self.per_layer, names)
        own: dict[int, float] = {}
        for i, tied in enumerate(sets):
            given = [self.per_layer[one.name] for one in tied if one.name in self.per_layer]
            if not given and self.density is self.parameters is self.macs is None:
                raise ValueError(
                    f"per_layer does not name {tied[0].name!r}; name it, give density= for the "
                    "layers without a budget of their own, or leave them out with layers="
                )
            if any(density != given[0] for density in given):
                raise ValueError(
                    f"per_layer must be the same for {', '.join(one.name for one in tied)}, whose "
                    f"groups are tied, got {given}; name one of them"
                )
            if given:
                own[i] = given[0]
        return own

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
    # What a nested run trained is ranked as it was trained: each layer for itself.
    sets = [(layer,) for layer in chosen] if order == "nested" else tied_sets(chosen)
    default = 1 if budget.epoch is None else 0
    floors = _floors(sets, default if min_groups is None else min_groups, default)
    if budget.epoch is not None:
        support = path.support(budget.epoch)
        if not any(floors):
            return Mask({layer.name: support[layer.name] for layer in chosen})
        ranked = ranked_groups(path, sets, order, scale)
        kept = _floor_groups(sets, ranked, floors)
        mask = _as_mask(sets, kept)
        return mask | Mask({layer.name: support[layer.name] for layer in chosen})

    own = budget.of_sets(sets)
    ranked = ranked_groups(path, sets, order, scale)
    kept = _floor_groups(sets, ranked, floors)
    number, ranks = _numbers(sets), None
    if order == "nested" and path.ranking is not None and path.ranking.dependents is not None:
        ranks = Groups(path, sets, scale).budget_rank
    for i, density in own.items():
        mine, size = ranked[number[ranked] == i], sum(layer.group_size for layer in sets[i])
        limit = most_weights(density, size * len(mine))
        _fill(kept, mine, np.full(len(mine), float(size)), limit, ranks)
    others = [i for i in range(len(sets)) if i not in own]
    if others:
        mine = ranked[np.isin(number[ranked], others)]
        costs = np.array(
            [sum(map(budget.cost, tied)) if i in others else 0 for i, tied in enumerate(sets)]
        )
        shared = budget.shared([layer for i in others for layer in sets[i]])
        _fill(kept, mine, costs[number[mine]], shared, ranks)
    return _with_dependents(path, chosen, kept) if order == "nested" else _as_mask(sets, kept)


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


def _floor_groups(sets: Sequence[Tied], ranked: NDArray[np.int64], floors: Sequence[int]) -> Bits:
    """The best groups of each layer, which do not depend on the budget."""
    kept = np.zeros(len(ranked), dtype=np.bool_)
    number = _numbers(sets)[ranked]
    for i, min_groups in enumerate(floors):
        if min_groups:
            kept[ranked[np.flatnonzero(number == i)[:min_groups]]] = True
    return kept


def _numbers(sets: Sequence[Tied]) -> NDArray[np.int64]:
    """The index of each group's set of tied layers."""
    return np.repeat(np.arange(len(sets)), [first.groups for first, *_ in sets])


def _as_mask(sets: Sequence[Tied], kept: Bits) -> Mask:
    parts = torch.split(torch.from_numpy(kept), [first.groups for first, *_ in sets])
    return Mask(
        {
            layer.name: layer.expand(part)
            for tied, part in zip(sets, parts, strict=True)
            for layer in tied
        }
    )


def _with_dependents(path: SolutionPath, layers: Sequence[Layer], kept: Bits) -> Mask:
    """The mask, and the parameters without a twin that leave with a group; see Ranking."""
    inside = np.ones(path.groups + 1, dtype=np.bool_)  # the last one is for -1
    inside[np.concatenate([np.arange(one.slice.start, one.slice.stop) for one in layers])] = kept
    dependents = (path.ranking and path.ranking.dependents) or {}
    others = {name: torch.from_numpy(inside[groups]) for name, groups in dependents.items()}
    return Mask({**_as_mask([(layer,) for layer in layers], kept).tensors, **others})


def _chosen(path: SolutionPath, names: Sequence[str] | None) -> tuple[Layer, ...]:
    if names is None:
        return path.layers
    if isinstance(names, str) or not names:
        raise ValueError(f"layers must be a list of at least one layer name, got {names!r}")
    wanted = {path.layer(name).name for name in names}
    return tuple(layer for layer in path.layers if layer.name in wanted)


def _floors(
    sets: Sequence[Tied], min_groups: int | Mapping[str, int], default: int
) -> tuple[int, ...]:
    if isinstance(min_groups, Mapping):
        names = [layer.name for tied in sets for layer in tied]
        _check_names("min_groups", min_groups, names)
        by_set = [max(min_groups.get(layer.name, default) for layer in tied) for tied in sets]
    else:
        by_set = [min_groups] * len(sets)
    for value in by_set:
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise ValueError(f"min_groups must be a number of groups >= 0, got {value!r}")
    return tuple(by_set)


def _check_names(argument: str, given: Mapping[str, object], names: Sequence[str]) -> None:
    for name in given:
        if name not in names:
            raise ValueError(f"{argument} names an {unknown('layer', name, names)}")


def _check_density(argument: str, value: float | None) -> None:
    if value is not None and not 0 <= value <= 1:
        raise ValueError(f"{argument} must be a density from 0 to 1, got {value!r}")

"""The layers of a path: parameters with a twin, by the model's names."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from dessilbi.optim import GroupLasso
from dessilbi.optim.dtensor import is_dtensor
from dessilbi.optim.prox import dims_of

from .layers import Layer, make_layers

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from torch import Tensor, nn

    from dessilbi.optim.twin import TwinOptimizer


def twins_by_name(model: nn.Module, opt: TwinOptimizer) -> dict[str, Tensor]:
    """Parameters with a twin, as the model calls them: the optimizer may not know names."""
    names = {id(p): name for name, p in model.named_parameters()}
    found = {}
    for given, p in opt.twins():
        if id(p) not in names:
            raise ValueError(
                f"the optimizer's parameter {given!r} of shape {tuple(p.shape)} is not one of the "
                "model's; pass the model whose parameters it trains"
            )
        if is_dtensor(p):
            raise ValueError(
                f"parameter {names[id(p)]!r} is a DTensor: paths of sharded parameters are not "
                "recorded; use DistributedDataParallel, or train without a recorder"
            )
        found[names[id(p)]] = p
    if not found:
        raise ValueError(
            "no parameter of the optimizer has a twin, there is nothing to record; give it a "
            "penalty, for example by split_parameters(model)"
        )
    return found


def layers_of(opt: TwinOptimizer, params: dict[str, Tensor]) -> tuple[Layer, ...]:
    """The layers of a path: parameters with a twin, with their groups."""
    penalties = {name: opt.penalty(p) for name, p in params.items()}
    layers = make_layers(
        (name, tuple(params[name].shape), penalty.dim if isinstance(penalty, GroupLasso) else None)
        for name, penalty in penalties.items()
    )
    names = {p: name for name, p in params.items()}
    together = {
        p: names[group["params"][0]]
        for group in opt.param_groups
        if group["tied"] and len(group["params"]) > 1
        for p in group["params"]
    }
    return tuple(replace(one, tied=together.get(params[one.name])) for one in layers)


def layers_of_groups(groups: Sequence[Mapping[str, Any]]) -> tuple[Layer, ...]:
    """The layers that :func:`split_parameters` gives a twin, whichever optimizer trains them."""
    layers = make_layers(
        (
            name,
            tuple(p.shape),
            dim % p.ndim if group["penalty"] == "group_lasso" else None,
        )
        for group in groups
        if group["penalty"] is not None
        for (name, p), dim in zip(group["params"], dims_of(group), strict=True)
    )
    tied = {
        name: group["params"][0][0]
        for group in groups
        if group.get("tied", False) and len(group["params"]) > 1
        for name, _ in group["params"]
    }
    return tuple(replace(layer, tied=tied.get(layer.name)) for layer in layers)

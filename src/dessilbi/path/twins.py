"""The layers of a path: parameters with a twin, by the model's names."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from dessilbi.graph.names import named_weights
from dessilbi.graph.wrappers import bare_model
from dessilbi.optim import GroupLasso, split_parameters
from dessilbi.optim.dtensor import is_dtensor
from dessilbi.optim.prox import dims_of, resolve_penalty

from .layers import Layer, make_layers

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from torch import Tensor, nn
    from torch.optim import Optimizer

    from dessilbi.optim.twin import TwinOptimizer


def twins_by_name(
    model: nn.Module, opt: TwinOptimizer, *, sharded: bool = False
) -> dict[str, Tensor]:
    """Parameters with a twin, as the model calls them: the optimizer may not know names.

    Args:
        model: the network.
        opt: its optimizer.
        sharded: whether ranks may hold parts of them.
    """
    names = {id(p): name for name, p in bare_model(model).named_parameters()}
    found = {}
    for given, p in opt.twins():
        if id(p) not in names:
            raise ValueError(
                f"the optimizer's parameter {given!r} of shape {tuple(p.shape)} is not one of the "
                "model's; pass the model whose parameters it trains"
            )
        if is_dtensor(p) and not sharded:
            _refuse(names[id(p)])
        found[names[id(p)]] = p
    if not found:
        raise ValueError(
            "no parameter of the optimizer has a twin, there is nothing to record; give it a "
            "penalty, for example by split_parameters(model)"
        )
    return found


def ranked_weights(
    model: nn.Module,
    opt: Optimizer,
    groups: Sequence[Mapping[str, Any]] | None = None,
    *,
    sharded: bool = False,
) -> tuple[dict[str, Tensor], tuple[Layer, ...]]:
    """The weights that may leave a network, by name, and how they are grouped.

    Args:
        model: the network.
        opt: its optimizer. Its parameter groups decide where they have a ``penalty`` each, as those
            of :class:`DessiLBI` and those of :func:`split_parameters` in any optimizer have; else
            the defaults of :func:`split_parameters` do.
        groups: what :func:`split_parameters` gave, if that is to decide.
        sharded: whether ranks may hold parts of them.
    """
    if groups is None:
        groups = opt.param_groups
        if not any("penalty" in group for group in groups):
            groups = split_parameters(bare_model(model))
    return grouped_weights(model, groups, sharded=sharded)


def grouped_weights(
    model: nn.Module, groups: Sequence[Mapping[str, Any]], *, sharded: bool = False
) -> tuple[dict[str, Tensor], tuple[Layer, ...]]:
    """The weights that parameter groups give a penalty, by the model's names, as layers.

    Args:
        model: the network.
        groups: what :func:`split_parameters` gave, or the parameter groups of an optimizer that was
            made of it.
        sharded: whether ranks may hold parts of them.
    """
    names = {id(p): name for name, p in named_weights(model).items()}
    params: dict[str, Tensor] = {}
    dims: list[int | None] = []
    together: dict[str, str] = {}
    for group in groups:
        first = len(params)
        for member, dim in zip(group["params"], dims_of(group), strict=True):
            p = member[1] if isinstance(member, tuple) else member
            kind = resolve_penalty(group.get("penalty"), p.ndim)
            if kind is None:
                continue
            if id(p) not in names:
                raise ValueError(
                    f"a parameter of shape {tuple(p.shape)} that is to be ranked is not one of the "
                    "model's; pass the model whose parameters the groups hold"
                )
            if is_dtensor(p) and not sharded:
                _refuse(names[id(p)])
            params[names[id(p)]] = p
            if isinstance(kind, GroupLasso):
                dims.append(kind.dim % p.ndim)
            else:
                dims.append(dim % p.ndim if kind == "group_lasso" else None)
        own = list(params)[first:]
        if group.get("tied") and len(own) > 1:
            together |= dict.fromkeys(own, own[0])
    if not params:
        raise ValueError(
            "there is no weight to rank: every group has penalty None; give some of them one, for "
            "example by split_parameters(model)"
        )
    layers = make_layers(
        (name, tuple(p.shape), dim) for (name, p), dim in zip(params.items(), dims, strict=True)
    )
    return params, tuple(replace(one, tied=together.get(one.name)) for one in layers)


def _refuse(name: str) -> None:
    raise ValueError(
        f"parameter {name!r} is a DTensor, of which each rank holds a part: this needs "
        "whole weights. PathRecorder, NestedTraining, project and HeldMask take sharded ones "
        "(FSDP2); for the rest use DistributedDataParallel"
    )

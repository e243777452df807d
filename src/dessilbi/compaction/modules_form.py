"""The smaller network as a copy of the user's own modules, with the forward that they have."""

from __future__ import annotations

from copy import deepcopy
from itertools import product
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from dessilbi.graph.copies import copied, fit_attributes
from dessilbi.graph.errors import CompactError
from dessilbi.graph.matrix import cut_rows_and_columns
from dessilbi.graph.resize import resized, sizes_left
from dessilbi.graph.values import Value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dessilbi.graph.analysis import Analysis
    from dessilbi.graph.classes import Kept
    from dessilbi.graph.plan import Plan, TensorCut

_MOST_TRIES = 64
"""Ways to adjust what modules store that are tried."""


def cut_tensor(cut: TensorCut, tensor: Tensor) -> Tensor:
    """The part of a parameter, or of optimizer state shaped like it, that stays."""
    found = tensor.detach()
    if cut.groups > 1 and 1 in cut.stays:
        rows, columns = (torch.tensor(cut.stays[d]) for d in (0, 1))
        if int(rows.max()) >= len(found) or int(columns.max()) >= found.shape[1] * cut.groups:
            raise _misfit(tensor)
        return cut_rows_and_columns(found, rows, columns, cut.groups_left).clone().contiguous()
    for dim, stays in cut.stays.items():
        if dim >= found.ndim or max(stays) >= found.shape[dim]:
            raise _misfit(tensor)
        found = found.index_select(dim, torch.tensor(stays, device=found.device))
    return found.clone().contiguous()


def _misfit(tensor: Tensor) -> CompactError:
    return CompactError(
        f"the plan cuts slices that a tensor of shape {tuple(tensor.shape)} does not have; it was "
        "made for another network"
    )


def apply_plan(plan: Plan, model: nn.Module) -> nn.Module:
    """A copy of a network, cut; weights are not yet corrected for constants."""
    small = copied(model)
    owned = {name: _get(small, name) for name in plan.tensors}
    made = {id(t): _like(cut_tensor(plan.tensors[n], t), t) for n, t in owned.items()}
    biased = {id(_get(small, name)): name for name in plan.biases}
    for module in small.modules():
        weight = module._parameters.get("weight")
        if weight is not None and id(weight) in biased and module._parameters.get("bias") is None:
            rows = len(made.get(id(weight), weight))
            own = weight.new_zeros(rows)
            module._parameters["bias"] = nn.Parameter(own, weight.requires_grad)
        held: list[dict[str, Any]] = [module._parameters, module._buffers]
        for tensors in held:
            for own_name, tensor in tensors.items():
                if tensor is not None and id(tensor) in made:
                    tensors[own_name] = made[id(tensor)]
        fit_attributes(module)
    for name, cut in plan.tensors.items():
        if cut.groups > 1:
            owner: Any = small.get_submodule(name.rpartition(".")[0])
            owner.groups = cut.groups_left
            fit_attributes(owner)
    set_attributes(small, plan.attributes)
    return small


def set_attributes(model: nn.Module, attributes: dict[str, int]) -> None:
    """Numbers that modules store, by ``module.attribute``."""
    for name, number in attributes.items():
        owner, _, own = name.rpartition(".")
        setattr(model.get_submodule(owner), own, number)


def _get(model: nn.Module, name: str) -> Tensor:
    owner, _, own = name.rpartition(".")
    try:
        found = getattr(model.get_submodule(owner), own)
    except AttributeError as error:
        raise CompactError(f"the network has no {name!r}, which the plan cuts: {error}") from error
    assert isinstance(found, Tensor)
    return found


def _like(new: Tensor, old: Tensor) -> Tensor:
    return nn.Parameter(new, old.requires_grad) if isinstance(old, nn.Parameter) else new


# ---------------------------------------------------------------------- what modules store


def changed_sizes(analysis: Analysis, kept: Kept) -> dict[str, dict[int, set[int]]]:
    """By module, the sizes that its code meets and that change, each with what becomes of it."""
    found: dict[str, dict[int, set[int]]] = {}
    for node in analysis.network.nodes:
        stack = node.meta.get("nn_module_stack")
        if node.op != "call_function" or not stack:
            continue
        here = found.setdefault(str([*stack.values()][-1][0]), {})
        results = analysis.values.get(node, ())
        for value in [
            *(results if isinstance(results, tuple) else (results,)),
            *(v for a in node.all_input_nodes if isinstance(v := analysis.value(a), Value)),
        ]:
            for old, new in zip(value.shape, sizes_left(kept, value), strict=True):
                if old != new:
                    here.setdefault(old, set()).add(new)
        cut = resized(analysis, kept, node)
        for path, new in cut.numbers.items() if cut is not None and not cut.operator else ():
            at, _, entry = path.partition(".")
            given = node.args[int(at)] if int(at) < len(node.args) else None
            given = given[int(entry)] if entry else given  # type: ignore[index]
            if isinstance(given, int) and isinstance(new, int):
                here.setdefault(given, set()).add(new)
    return found


def attribute_choices(model: nn.Module, analysis: Analysis, kept: Kept) -> Iterator[dict[str, int]]:
    """Ways to tell modules of the sizes that changed, the likely first."""
    changed = changed_sizes(analysis, kept)
    flags: dict[tuple[type, str], dict[str, int]] = {}
    for name, module in model.named_modules():
        here = changed.get(name)
        if here is None or type(module).__module__.startswith("torch.nn.modules"):
            continue
        for own, value in vars(module).items():
            news = here.get(value, set()) if type(value) is int else set()
            if len(news) == 1 and not own.startswith("_"):
                (new,) = news
                flags.setdefault((type(module), own), {})[f"{name}.{own}" if name else own] = new
    choices = list(flags.values())
    for tried, chosen in enumerate(product((True, False), repeat=min(len(choices), 10))):
        if tried >= _MOST_TRIES:
            return
        yield {
            k: v for use, one in zip(chosen, choices, strict=False) if use for k, v in one.items()
        }


def with_attributes(
    small: nn.Module, choices: Iterator[dict[str, int]], is_same: Callable[[nn.Module], bool]
) -> tuple[nn.Module, dict[str, int]] | None:
    """The first way that gives the same function."""
    for chosen in choices:
        tried = deepcopy(small)
        set_attributes(tried, chosen)
        if is_same(tried):
            return tried, chosen
    return None

"""Which tensors of a model get a twin, and how they are grouped."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.nn.parameter import is_lazy

from ._patterns import Rule, names_of
from .tied_groups import tied_weights

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ._options import PenaltyOption

_BY_ELEMENT = (nn.Linear, nn.Bilinear, nn.MultiheadAttention, nn.RNNBase, nn.RNNCellBase)


def split_parameters(
    model: nn.Module,
    patterns: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    exclude: Iterable[str] = (),
    size_scaled: bool = False,
    init_scaled: float | None = None,
    tied: bool = False,
    example_input: Any = None,
) -> list[dict[str, Any]]:
    """Parameter groups of a model for :class:`DessiLBI`, named and with a penalty each.

    By default as in the paper: convolutions by filter (the output channel, also of transposed
    ones), weights of linear, recurrent and attention layers by element; biases, norms, embeddings
    and parameters of unknown modules are trained without a twin.

    A pattern is a parameter's name, a module's name (all parameters below it) or a glob over either
    (``"layer?.*"``). The first pattern that matches a parameter decides; a tied weight is matched
    by any of its names.

    Args:
        model: any module; every parameter lands in exactly one group.
        patterns: options of :class:`DessiLBI` by pattern, e.g. ``{"fc": {"lambd": 0.3}}``. A
            ``penalty`` reaches matrices and larger tensors; vectors only when named in full.
        exclude: patterns of parameters that get no twin, the classifier for example; they win over
            ``patterns``.
        size_scaled: thresholds ``lambd * sqrt(group size)``.
        init_scaled: thresholds ``init_scaled * ||W_0,g||``, relative to each group's initial norm
            (by element: to the tensor's root mean square). With one threshold for all, the order
            of entry of a BatchNorm net repeats the order of its initial norms.
        tied: filters that can only be removed together are one group of Gamma, and so enter and
            leave together: those of all layers that write to a residual stream, a depthwise filter
            and the one before it; of the hidden layers of transformers the neurons, rows of up (and
            gate) and columns of down. Rows of other linear layers where a pattern groups them
            (``"group_lasso"``). Their norm is the joint one, ``lambd`` its threshold.
        example_input: a batch to follow through the network, a tuple of arguments whose first is
            one, or a dict of keyword arguments; needed for ``tied``, its values do not matter.

    Returns:
        Groups with ``params`` as ``(name, parameter)`` pairs, a ``name``, and their options.

    Example:
        >>> net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(16, 2))
        >>> [(g["name"], g["penalty"]) for g in split_parameters(net, exclude=["2"])]
        [('filters', 'group_lasso'), ('dense', None)]
    """
    if size_scaled and init_scaled is not None:
        raise ValueError("size_scaled and init_scaled cannot both be given; choose one")
    if init_scaled is not None and not init_scaled >= 0:
        raise ValueError(f"init_scaled must be >= 0, got {init_scaled!r}")
    if tied != (example_input is not None):
        raise ValueError(
            "tied=True needs example_input, a batch that is followed through the network, for "
            f"example torch.zeros(1, 3, 32, 32); got tied={tied!r} and example_input="
            f"{'None' if example_input is None else type(example_input).__name__}"
        )
    scaling: dict[str, Any] = {}
    if size_scaled:
        scaling = {"lambd_scale": "size"}
    elif init_scaled is not None:
        scaling = {"lambd_scale": "init", "lambd": float(init_scaled)}

    rules = [Rule(p, {"penalty": None}) for p in _as_list(exclude)]
    rules += [Rule(p, dict(options)) for p, options in (patterns or {}).items()]
    for rule in rules:
        rule.check()

    named, aliases = list(model.named_parameters()), names_of(model)
    if not named:
        raise ValueError(f"{type(model).__name__} has no parameters to optimize")
    owners = _owners(model)
    chosen: dict[str, _Choice] = {}
    _require_shapes(model)
    for name, p in named:
        own = _default_options(p, owners[id(p)])
        if not p.requires_grad:
            own["penalty"] = None
        filters = _are_filters(own)
        first = next((r for r in rules if any(map(r.matches, aliases[id(p)]))), None)
        if first is not None:
            first.used = True
            given = dict(first.options)
            if not p.requires_grad:  # is not trained, and so has no twin
                given.pop("penalty", None)
            if p.ndim < 2 and not any(map(first.names_exactly, aliases[id(p)])):
                given.pop("penalty", None)
            if given.get("penalty") == "auto":
                given.pop("penalty")
            own |= given
        if own["penalty"] is not None:
            own = scaling | own
        else:
            own.pop("group_dim", None)
            own.pop("tied", None)
        decided = first is not None and ("penalty" in first.options or own["penalty"] is None)
        chosen[name] = _Choice(
            own, _label(own["penalty"], first), filters, decided, first is not None
        )
    for rule in rules:
        rule.check_used([name for names in aliases.values() for name in names], rules)

    if tied:
        same_filters, neurons = tied_weights(model, example_input)
        for names in same_filters:
            _tie({name: chosen[name] for name in names})
        for dims in neurons:
            _tie_neurons({name: chosen[name] for name in dims}, dims, scaling)
    _warn_of_unknown(model, chosen)
    groups: dict[tuple[Any, ...], dict[str, Any]] = {}
    for name, p in named:
        choice = chosen[name]
        group = {"name": choice.label, "params": [], **choice.options}
        groups.setdefault(choice.key, group)["params"].append((name, p))
    return list(groups.values())


@dataclass
class _Choice:
    """What was decided for a parameter; equal choices are one group."""

    options: dict[str, Any]
    label: str
    filters: bool
    """Whether it is grouped by filter unless a pattern says otherwise."""
    decided: bool
    """Whether a pattern chose its penalty."""
    named: bool
    """Whether a pattern, or exclude, matches it at all."""

    @property
    def key(self) -> tuple[Any, ...]:
        return (self.label, *sorted((k, repr(v)) for k, v in self.options.items()))


def _are_filters(options: Mapping[str, Any]) -> bool:
    return bool(options["penalty"] == "group_lasso" and options["group_dim"] == 0)


def _tie(together: dict[str, _Choice]) -> None:
    """Make one group of weights whose filters are the same channels, if they are grouped so."""
    together = {name: c for name, c in together.items() if c.filters or _are_filters(c.options)}
    if len(together) < 2:
        return
    first, *others = together
    for name in others:
        if together[name].key[1:] != together[first].key[1:]:
            raise ValueError(
                f"tied=True makes the filters of {first!r} and {name!r} one group, but their "
                f"options differ: {together[first].options} and {together[name].options}; let one "
                "pattern, or exclude, take both"
            )
    # Whoever sets tied by a pattern has decided.
    if _are_filters(together[first].options) and "tied" not in together[first].options:
        label = f"{together[first].label} tied to {first}"
        for choice in together.values():
            choice.options["tied"] = True
            choice.label = label


def _tie_neurons(
    together: dict[str, _Choice], dims: dict[str, int], scaling: dict[str, Any]
) -> None:
    """Make one group of the weights of a hidden layer's neurons, unless a pattern decided."""
    first = next(iter(together))
    if any(choice.decided for choice in together.values()):
        return
    if len({choice.key[1:] for choice in together.values()}) > 1:
        return  # options of their own, given by patterns
    for choice in together.values():
        choice.options |= scaling | {
            "penalty": "group_lasso",
            "tied": True,
            "group_dim": tuple(dims.values()),
        }
        choice.label = f"neurons of {first}"


def _warn_of_unknown(model: nn.Module, chosen: dict[str, _Choice]) -> None:
    """Say which weights get no twin only because their module is not known."""
    parts = dict(model.named_modules())
    unknown = []
    for name, p in model.named_parameters():
        owner, _, own = name.rpartition(".")
        kind = type(parts[owner])
        ours = kind.__module__.startswith("torch.nn.") and "parametriz" not in kind.__module__
        multiplied = own == "weight" or "parametriz" in kind.__module__
        choice = chosen[name]
        if p.ndim < 2 or ours or not multiplied or not p.requires_grad:
            continue
        if choice.options["penalty"] is None and not choice.named:
            unknown.append(f"{name} ({kind.__name__})")
    if unknown:
        warnings.warn(
            f"{len(unknown)} weights get no twin, because their modules are not known: "
            f"{', '.join(unknown[:3])}{', ...' if len(unknown) > 3 else ''}; name them in "
            'patterns, as {"'
            + unknown[0].split(" ")[0]
            + '": {"penalty": "lasso"}}, or in exclude',
            stacklevel=3,
        )


def _owners(model: nn.Module) -> dict[int, list[nn.Module]]:
    """The modules that hold each parameter, by id: more than one where weights are tied."""
    owners: dict[int, list[nn.Module]] = {}
    for module in model.modules():
        for _, p in module.named_parameters(recurse=False):
            owners.setdefault(id(p), []).append(module)
    return owners


def penalized_by_default(model: nn.Module) -> set[int]:
    """The ids of the weights that have a penalty unless a pattern says otherwise, frozen or not."""
    _require_shapes(model)
    owners = _owners(model)
    return {id(p) for p in model.parameters() if _default_options(p, owners[id(p)])["penalty"]}


def _require_shapes(model: nn.Module) -> None:
    for name, p in model.named_parameters():
        if is_lazy(p):
            raise ValueError(
                f"parameter {name!r} has no shape yet: run a batch through the model before "
                "split_parameters"
            )


def _default_options(p: Tensor, owners: list[nn.Module]) -> dict[str, Any]:
    embedded = any(isinstance(m, nn.Embedding | nn.EmbeddingBag) for m in owners)
    if p.ndim < 2 or embedded:
        return {"penalty": None, "group_dim": 0}
    for module in owners:
        if isinstance(module, _ConvNd):
            return {"penalty": "group_lasso", "group_dim": _filter_dim(module, p)}
        if isinstance(module, _BY_ELEMENT) or _is_conv1d(module):
            return {"penalty": "lasso", "group_dim": 0}
    return {"penalty": None, "group_dim": 0}


def _is_conv1d(module: nn.Module) -> bool:
    """Whether a module is GPT-2's linear layer, whose weight is turned."""
    return type(module).__name__ == "Conv1D" and hasattr(module, "nf")


def _filter_dim(module: _ConvNd, weight: Tensor) -> int:
    """The dimension of the output channels.

    A transposed convolution holds them in dimension 1, where a grouped one repeats the index in
    each of its groups: those filters form one group of Gamma, since only together can they be
    removed. A depthwise one has a single index there; its channels lie in dimension 0.
    """
    if isinstance(module, _ConvTransposeNd) and not (module.groups > 1 and weight.shape[1] == 1):
        return 1
    return 0


def _label(penalty: PenaltyOption, rule: Rule | None) -> str:
    if penalty is None or isinstance(penalty, str):
        kind = {"group_lasso": "filters", "lasso": "elements"}.get(penalty or "", "dense")
    else:
        kind = type(penalty).__name__
    return kind if rule is None or penalty is None else f"{rule.pattern}: {kind}"


def _as_list(patterns: Iterable[str]) -> list[str]:
    return [patterns] if isinstance(patterns, str) else list(patterns)

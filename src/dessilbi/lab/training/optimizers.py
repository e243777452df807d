"""Optimizers by name, from a configuration; others are registered beside torch's."""

from __future__ import annotations

import dataclasses
import math
from fnmatch import fnmatch
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
from torch import nn

from dessilbi._text import did_you_mean
from dessilbi.lab.run.config import ConfigError, OptimizerConfig
from dessilbi.lab.training.build import example_inputs
from dessilbi.lab.training.fused import dessilbi_fuses, torch_fuses
from dessilbi.lab.training.muon import MuonAdamW, muon_groups
from dessilbi.optim import DessiLBI, SplitLBI, TwinOptimizer, split_parameters

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor
    from torch.optim import Optimizer

    Shape = tuple[int, ...] | None
    Groups = list[dict[str, Any]]
    Maker = Callable[[Groups, nn.Module, OptimizerConfig], Optimizer]

TWIN = "dessilbi"
"""Name of the optimizer that has a twin."""


class _Known(NamedTuple):
    make: Maker
    options: tuple[str, ...]
    wraps: bool


_KNOWN: dict[str, _Known] = {}


def register_optimizer(
    name: str, make: Maker, options: tuple[str, ...], *, wraps: bool = True
) -> None:
    """Let configurations name another optimizer, alone or as the base of a twin.

    Args:
        name: for ``OptimizerConfig.name`` and ``OptimizerConfig.base``.
        make: given groups of named parameters, their model and the configuration, makes the
            optimizer.
        options: those of :class:`OptimizerConfig` that it knows; others are refused.
        wraps: whether it can be a base: it takes its gradients from ``p.grad``, and its groups as
            they are.
    """
    _KNOWN[name] = _Known(make, options, wraps)


def make_optimizer(
    model: nn.Module,
    config: OptimizerConfig,
    shape: tuple[int, ...] | None = None,
    *,
    total_factor: float = 0.0,
) -> Optimizer:
    """The optimizer that a configuration describes, over all parameters of a model.

    Every optimizer takes the fastest step it has for the device of the model, so that times can be
    compared; which one it is stands in ``optimizer.defaults["fused"]`` (``True``, or ``None`` for
    the optimizer's own default). It belongs to the machine: loading a state_dict from another
    machine does not change it.

    Args:
        model: the network, already on its device and in its dtype.
        config: which optimizer, and its numbers.
        shape: of one image; needed for ``config.tied``.
        total_factor: the sum over the run's steps of what its schedule multiplies the rate by:
            from it and ``config.tau`` follows ``nu``. Without it the coupling is none to train by.

    Raises:
        ConfigError: If the name is unknown, an option is set that this optimizer does not know, or
            a value is out of its range.
    """
    _check(config)
    try:
        if config.name == TWIN:
            optimizer = _with_twin(model, config, shape, total_factor)
        else:
            groups: Groups = [{"params": list(model.named_parameters())}]
            optimizer = _KNOWN[config.name].make(groups, model, config)
    except ValueError as error:
        raise ConfigError(f"optimizer {config.label}: {error}") from error
    optimizer.register_load_state_dict_pre_hook(_keep_fused)
    return optimizer


def twin_groups(
    model: nn.Module, config: OptimizerConfig, shape: tuple[int, ...] | None = None
) -> list[dict[str, Any]]:
    """Which weights get a twin and how they are grouped, whichever optimizer trains them.

    A network may know its own groups: ``model.twin_patterns``, as :func:`split_parameters` takes
    them, is followed under ``penalty="auto"``, and all else of that network is trained without a
    twin.

    Args:
        model: the network.
        config: says it.
        shape: of one image; needed for ``config.tied``.
    """
    classifier = _last_linear(model)
    exclude = list(config.exclude)
    patterns: dict[str, dict[str, Any]] = {}
    if config.classifier_lambd is not None:
        if classifier is None:
            raise ConfigError("classifier_lambd needs a network with a linear layer")
        patterns[classifier] = {"lambd": config.classifier_lambd, "lambd_scale": None}
    if config.penalty == "lasso":
        patterns["*"] = {"penalty": "lasso"}
    elif config.penalty == "group_lasso":
        # Outputs of the classifier are classes: none may leave.
        if classifier is not None and not any(fnmatch(classifier, p) for p in exclude):
            exclude.append(classifier)
        patterns["*"] = {"penalty": "group_lasso"}
    elif own := getattr(model, "twin_patterns", None):
        shown = [name for name in own if not any(fnmatch(name, p) for p in exclude)]
        patterns |= {**{name: own[name] for name in shown}, "*": {"penalty": None}}
    return split_parameters(
        model,
        patterns or None,
        exclude=exclude,
        tied=config.tied,
        example_input=_example(model, shape) if config.tied else None,
    )


def _example(model: nn.Module, shape: tuple[int, ...] | None) -> Tensor:
    if shape is None:
        raise ConfigError("tied=True needs the shape of the images; give shape=")
    weight = next(model.parameters())
    return example_inputs(shape, weight.dtype).to(weight.device)


def _last_linear(model: nn.Module) -> str | None:
    names = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    return names[-1] if names else None


def _with_twin(
    model: nn.Module, config: OptimizerConfig, shape: Shape, total_factor: float
) -> Optimizer:
    groups = twin_groups(model, config, shape)
    options: dict[str, Any] = {
        "kappa": config.kappa,
        "nu": config.nu,
        "lambd": config.lambd,
        "lambd_scale": "size" if config.size_scaled else None,
        "fused": True if dessilbi_fuses(model) else None,
    }
    for name in ("tau", "c"):
        if (value := getattr(config, name)) is not None:
            options[name] = value
    optimizer: TwinOptimizer
    if config.base == "sgd":
        optimizer = DessiLBI(
            groups,
            lr=config.lr,
            momentum=config.momentum,
            nesterov=config.nesterov,
            weight_decay=config.weight_decay,
            decoupled_weight_decay=config.decoupled_weight_decay,
            coupling=config.coupling,
            **options,
        )
    else:
        optimizer = SplitLBI(_KNOWN[config.base].make(groups, model, config), **options)
    for group in optimizer.param_groups:
        total = group["lr"] * total_factor
        if group["tau"] is not None and total > 0:  # else nothing moves
            group["nu"] = total / group["tau"]
    return optimizer


def _register_torch(
    name: str,
    cls: str,
    options: tuple[str, ...] = (),
    fused_on: tuple[str, ...] = (),
    **fixed: Any,
) -> None:
    """One of torch's optimizers.

    Args:
        name: in configurations.
        cls: in torch.optim.
        options: those of a configuration that it knows, beside rate and decay.
        fused_on: devices for which it has a fused step.
        fixed: options that go without saying.
    """
    options = ("lr", *options, "weight_decay")

    def make(groups: Groups, model: nn.Module, config: OptimizerConfig) -> Optimizer:
        given = {option: getattr(config, option) for option in options} | fixed
        if fused_on:
            given["fused"] = True if torch_fuses(model, fused_on) else None
        made: Optimizer = getattr(torch.optim, cls)(groups, **given)
        return made

    register_optimizer(name, make, options)


def _muon(groups: Groups, model: nn.Module, config: OptimizerConfig) -> Optimizer:
    return MuonAdamW(
        muon_groups(groups, model, _last_linear(model)),
        lr=config.lr,
        momentum=config.momentum,
        nesterov=config.nesterov,
        weight_decay=config.weight_decay,
        fused=True if torch_fuses(model) else None,
    )


_BOTH = ("cpu", "cuda")
_register_torch("sgd", "SGD", ("momentum", "nesterov"), _BOTH)
_register_torch("adam", "Adam", (), _BOTH)
_register_torch("adamw", "AdamW", (), _BOTH)
_register_torch("amsgrad", "Adam", (), _BOTH, amsgrad=True)
_register_torch("adagrad", "Adagrad", (), ("cpu",))
_register_torch("nadam", "NAdam")
_register_torch("radam", "RAdam")
_register_torch("rmsprop", "RMSprop", ("momentum",))
register_optimizer("muon", _muon, ("lr", "momentum", "nesterov", "weight_decay"))

_DEFAULTS: Final[Mapping[str, Any]] = {
    field.name: field.default
    for field in dataclasses.fields(OptimizerConfig)
    if field.name != "name"
}
_OF_SGD = ("momentum", "nesterov", "decoupled_weight_decay", "coupling")
"""Options that DessiLBI has and a twin has not."""
_OF_TWIN = tuple(o for o in _DEFAULTS if o not in (*_OF_SGD, "lr", "weight_decay", "l1"))


def _check(config: OptimizerConfig) -> None:
    """Refuse what an optimizer would ignore, and numbers that torch would let through."""
    if config.name not in (TWIN, *_KNOWN):
        raise _unknown("optimizer", config.name, [TWIN, *_KNOWN])
    name, options = config.label, _options(config)
    for option, default in _DEFAULTS.items():
        value = getattr(config, option)
        if option not in options and value != default:
            raise ConfigError(
                f"optimizer {name} does not know {option} (got {option}={value!r}); "
                f"leave it at {default!r}. {name} accepts {', '.join(options)}"
            )
    for option in ("lr", "momentum", "weight_decay", "l1"):
        value = getattr(config, option)
        if not 0 <= value < math.inf:
            raise ConfigError(f"optimizer {name}: {option} must be >= 0 and finite, got {value!r}")
    if config.nesterov and config.momentum == 0:
        raise ConfigError(
            f"optimizer {name}: nesterov=True needs momentum > 0, got "
            f"momentum={config.momentum!r}; set momentum=0.9 or nesterov=False"
        )
    for one, other in (("nu", "tau"), ("lambd", "c")):
        value, instead = getattr(config, one), getattr(config, other)
        if value is not None and instead is not None:
            raise ConfigError(
                f"optimizer {name}: {one} takes the place of {other}, got {one}={value!r} and "
                f"{other}={instead!r}; set one of them to None"
            )
    if config.size_scaled and config.lambd is None:
        raise ConfigError(f"optimizer {name}: size_scaled=True scales lambd; give lambd")


def _options(config: OptimizerConfig) -> tuple[str, ...]:
    """The options that a configuration's optimizer knows."""
    if config.name != TWIN:
        return _KNOWN[config.name].options
    if config.base == "sgd":
        return tuple(o for o in _DEFAULTS if o != "l1")
    bases = [name for name, known in _KNOWN.items() if known.wraps]
    if config.base not in bases:
        raise _unknown("base", config.base, bases)
    return _KNOWN[config.base].options + _OF_TWIN


def _unknown(what: str, name: str, known: list[str]) -> ConfigError:
    return ConfigError(
        f"unknown {what} {name!r}{did_you_mean(str(name), known)}; known: {', '.join(known)}; "
        "`import dessilbi.paper.optimizers` adds the paper's competitors"
    )


def _keep_fused(optimizer: Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
    """A state_dict to load, with this machine's choice in place of the one it was saved with."""
    if "fused" not in optimizer.defaults:
        return state_dict
    here = {"fused": optimizer.defaults["fused"]}
    return {**state_dict, "param_groups": [group | here for group in state_dict["param_groups"]]}

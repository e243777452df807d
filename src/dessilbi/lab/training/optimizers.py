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
from dessilbi.optim import DessiLBI, split_parameters

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor
    from torch.optim import Optimizer

    Shape = tuple[int, ...] | None
    Maker = Callable[[nn.Module, OptimizerConfig, Shape], Optimizer]


class _Known(NamedTuple):
    make: Maker
    options: tuple[str, ...]


_KNOWN: dict[str, _Known] = {}


def register_optimizer(name: str, make: Maker, options: tuple[str, ...]) -> None:
    """Let configurations name another optimizer.

    Args:
        name: for ``OptimizerConfig.name``.
        make: given the model, the configuration and the shape of an image, makes the optimizer.
        options: those of :class:`OptimizerConfig` that it knows; others are refused.
    """
    _KNOWN[name] = _Known(make, options)


def make_optimizer(
    model: nn.Module, config: OptimizerConfig, shape: tuple[int, ...] | None = None
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

    Raises:
        ConfigError: If the name is unknown, an option is set that this optimizer does not know, or
            a value is out of its range.
    """
    _check(config)
    try:
        optimizer = _KNOWN[config.name].make(model, config, shape)
    except ValueError as error:
        raise ConfigError(f"optimizer {config.name}: {error}") from error
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
        size_scaled=config.size_scaled,
        init_scaled=config.init_scaled,
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


def _dessilbi(model: nn.Module, config: OptimizerConfig, shape: Shape) -> Optimizer:
    return DessiLBI(
        twin_groups(model, config, shape),
        lr=config.lr,
        kappa=config.kappa,
        nu=config.nu,
        lambd=config.lambd,
        momentum=config.momentum,
        nesterov=config.nesterov,
        weight_decay=config.weight_decay,
        decoupled_weight_decay=config.decoupled_weight_decay,
        coupling=config.coupling,
        fused=True if dessilbi_fuses(model) else None,
    )


def _sgd(model: nn.Module, config: OptimizerConfig, shape: Shape) -> Optimizer:
    return torch.optim.SGD(
        model.named_parameters(),
        lr=config.lr,
        momentum=config.momentum,
        nesterov=config.nesterov,
        weight_decay=config.weight_decay,
        fused=True if torch_fuses(model) else None,
    )


def _adam(model: nn.Module, config: OptimizerConfig, shape: Shape) -> Optimizer:
    return torch.optim.Adam(
        model.named_parameters(),
        lr=config.lr,
        weight_decay=config.weight_decay,
        amsgrad=config.name == "amsgrad",
        fused=True if torch_fuses(model) else None,
    )


def _adamw(model: nn.Module, config: OptimizerConfig, shape: Shape) -> Optimizer:
    return torch.optim.AdamW(
        model.named_parameters(),
        lr=config.lr,
        weight_decay=config.weight_decay,
        fused=True if torch_fuses(model) else None,
    )


def _adagrad(model: nn.Module, config: OptimizerConfig, shape: Shape) -> Optimizer:
    return torch.optim.Adagrad(
        model.named_parameters(),
        lr=config.lr,
        weight_decay=config.weight_decay,
        fused=True if torch_fuses(model, devices=("cpu",)) else None,
    )


def _radam(model: nn.Module, config: OptimizerConfig, shape: Shape) -> Optimizer:
    return torch.optim.RAdam(
        model.named_parameters(), lr=config.lr, weight_decay=config.weight_decay
    )


_DEFAULTS: Final[Mapping[str, Any]] = {
    field.name: field.default
    for field in dataclasses.fields(OptimizerConfig)
    if field.name != "name"
}
register_optimizer("dessilbi", _dessilbi, tuple(o for o in _DEFAULTS if o != "l1"))
register_optimizer("sgd", _sgd, ("lr", "momentum", "nesterov", "weight_decay"))
for _name, _make in {
    "adam": _adam,
    "adamw": _adamw,
    "amsgrad": _adam,
    "adagrad": _adagrad,
    "radam": _radam,
}.items():
    register_optimizer(_name, _make, ("lr", "weight_decay"))


def _check(config: OptimizerConfig) -> None:
    """Refuse what an optimizer would ignore, and numbers that torch would let through."""
    if config.name not in _KNOWN:
        raise ConfigError(
            f"unknown optimizer {config.name!r}{did_you_mean(str(config.name), _KNOWN)}; known: "
            f"{', '.join(_KNOWN)}; `import dessilbi.paper.optimizers` adds the paper's competitors"
        )
    options = _KNOWN[config.name].options
    for option, default in _DEFAULTS.items():
        value = getattr(config, option)
        if option not in options and value != default:
            raise ConfigError(
                f"optimizer {config.name} does not know {option} (got {option}={value!r}); "
                f"leave it at {default!r}. {config.name} accepts {', '.join(options)}"
            )
    for option in ("lr", "momentum", "weight_decay", "l1"):
        value = getattr(config, option)
        if not 0 <= value < math.inf:
            raise ConfigError(
                f"optimizer {config.name}: {option} must be >= 0 and finite, got {value!r}"
            )
    if config.nesterov and config.momentum == 0:
        raise ConfigError(
            f"optimizer {config.name}: nesterov=True needs momentum > 0, got "
            f"momentum={config.momentum!r}; set momentum=0.9 or nesterov=False"
        )
    if config.init_scaled is not None and config.lambd != _DEFAULTS["lambd"]:
        raise ConfigError(
            f"optimizer {config.name}: init_scaled={config.init_scaled!r} takes the place of "
            f"lambd, got lambd={config.lambd!r} as well; choose one"
        )


def _keep_fused(optimizer: Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
    """A state_dict to load, with this machine's choice in place of the one it was saved with."""
    if "fused" not in optimizer.defaults:
        return state_dict
    here = {"fused": optimizer.defaults["fused"]}
    return {**state_dict, "param_groups": [group | here for group in state_dict["param_groups"]]}

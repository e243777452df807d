"""Models by import path: ``torchvision.models:resnet18``, ``my_pkg:make``."""

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType

from torch import nn

from dessilbi._text import did_you_mean
from dessilbi.lab.models.task import ModelError, Task


def build_from_path(path: str, task: Task) -> nn.Module:
    """Import ``module:callable`` and call it for a model.

    The callable gets ``num_classes=`` if its signature names it or takes ``**kwargs`` (as
    torchvision's do), and ``in_channels=`` and ``input_size=`` if it names them. The current
    directory is at the head of ``sys.path`` for the import and the call, as under ``python -m``,
    and is taken off again: ``my_pkg:make`` finds a ``my_pkg.py`` beside the user. An error raised
    inside the callable comes through unchanged.

    Args:
        path: Dotted module, colon, name of the callable.
        task: What the model is asked to do.

    Raises:
        ModelError: If the path is malformed, the import fails, the name is missing, or the callable
            needs other arguments or returns something that is no ``nn.Module``.
    """
    module_name, _, attribute = path.partition(":")
    if not all(part.isidentifier() for part in [*module_name.split("."), attribute]):
        raise ModelError(
            f"import path {path!r} must read module:callable, such as torchvision.models:resnet18"
        )
    with _current_directory_importable():
        factory = _attribute(_import(module_name), attribute, path)
        model = factory(**_accepted(factory, task._asdict(), path))
    if not isinstance(model, nn.Module):
        raise ModelError(
            f"{path!r} must return a torch.nn.Module, got {type(model).__name__}; "
            "name a callable that builds the model"
        )
    return model


@contextmanager
def _current_directory_importable() -> Iterator[None]:
    here = os.getcwd()
    sys.path.insert(0, here)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        if here in sys.path:
            sys.path.remove(here)


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing == "torchvision":
            way_out = "install the imagenet extra: pip install 'dessilbi[imagenet]'"
        elif missing and f"{name}.".startswith(f"{missing}."):
            way_out = "install it, or run from the directory that holds it"
        else:
            way_out = "the module was found, but an import inside it failed"
        raise ModelError(f"cannot import {name!r} ({error}); {way_out}") from error


def _attribute(module: ModuleType, attribute: str, path: str) -> Callable[..., object]:
    if not hasattr(module, attribute):
        hint = did_you_mean(attribute, dir(module), otherwise="; check the part after the colon")
        raise ModelError(f"module {module.__name__!r} has no {attribute!r}{hint}")
    factory: object = getattr(module, attribute)
    if isinstance(factory, nn.Module) or not callable(factory):
        raise ModelError(
            f"{path!r} is a {type(factory).__name__}, not a callable that builds a model; "
            "wrap it in a function that returns it"
        )
    return factory


def _accepted(factory: Callable[..., object], task: dict[str, int], path: str) -> dict[str, int]:
    """The part of the task that the callable asks for."""
    try:
        signature = inspect.signature(factory)
    except ValueError as error:  # some builtins have none
        raise ModelError(f"{path!r}: {error}; wrap it in a Python function") from error
    parameters = signature.parameters.values()
    named = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        named.add("num_classes")
    arguments = {key: value for key, value in task.items() if key in named}
    try:
        signature.bind(**arguments)
    except TypeError as error:
        raise ModelError(
            f"cannot call {path!r} with {', '.join(arguments) or 'no arguments'} ({error}); "
            "give its other arguments defaults, or wrap it in a function that does"
        ) from error
    return arguments

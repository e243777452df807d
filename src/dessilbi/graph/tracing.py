"""A network as a graph of its operations, and the tensors that flow in it.

torch.fx runs the network's Python once with stand-ins for tensors. Layers of torch.nn are nodes of
the graph; what cannot be looked into (control flow that depends on data, modules that do not trace)
becomes one node that is kept whole.
"""

from __future__ import annotations

import inspect
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx, nn
from torch.nn.utils.parametrize import is_parametrized

from .errors import CompactError

if TYPE_CHECKING:
    from collections.abc import Callable

_HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
)


@dataclass(frozen=True)
class Result:
    """What one run of the network showed of a node's result."""

    shape: tuple[int, ...]
    storage: int
    """Tells apart memory: results with the same number share it."""


@dataclass(frozen=True)
class Traced:
    """A graph, and what its nodes gave for the example."""

    module: fx.GraphModule
    results: dict[fx.Node, Result]
    """Only nodes whose result is one tensor."""

    @property
    def nodes(self) -> list[fx.Node]:
        """In the order of execution."""
        return list(self.module.graph.nodes)

    def called(self, node: fx.Node) -> nn.Module | None:
        """The layer that a node calls, if it calls one."""
        if node.op != "call_module":
            return None
        return self.module.get_submodule(str(node.target))


def as_arguments(example_input: Any) -> tuple[Any, ...]:
    """The positional arguments of the network."""
    arguments = example_input if isinstance(example_input, tuple) else (example_input,)
    if not arguments or not isinstance(arguments[0], Tensor) or arguments[0].ndim < 2:
        raise CompactError(
            "example_input must be a batch (a tensor with a batch dimension and channels), or a "
            "tuple of arguments whose first is one"
        )
    if len(arguments[0]) == 0:
        raise CompactError("example_input must have at least one example, got an empty batch")
    return arguments


def refuse_hidden_code(model: nn.Module) -> None:
    """Refuse code that runs beside ``forward``, which a graph does not see."""
    for name, module in model.named_modules():
        which = f"module {name!r}" if name else "the model itself"
        if is_parametrized(module):
            raise CompactError(
                f"{which} is parametrized; make the parameters plain first: "
                "torch.nn.utils.parametrize.remove_parametrizations(module, 'weight')"
            )
        for kind in _HOOKS:
            if getattr(module, kind, None):
                raise CompactError(
                    f"{which} has hooks ({kind.strip('_')}), which compact() cannot see through; "
                    "remove them first (torch.nn.utils.prune.remove, handle.remove())"
                )


def trace(model: nn.Module, arguments: tuple[Any, ...]) -> Traced:
    """The graph of a network in evaluation mode; the model is used as it is, not copied."""
    module = make_graph(model, len(arguments))
    try:
        seen = _results_of(module, _at_least_two(model, arguments))
    except Exception as error:
        reason = (str(error).splitlines() or [""])[0]  # torch.fx adds a page of its own
        raise CompactError(
            f"the traced network does not run on example_input: {type(error).__name__}: {reason}"
        ) from error
    return Traced(module, seen)


def make_graph(model: nn.Module, arguments: int) -> fx.GraphModule:
    """The graph alone, for a call with this many positional arguments; it takes no others."""
    names = _argument_names(model, arguments)
    opaque: set[str] = set()
    while True:
        tracer = _Tracer(names, opaque)
        try:
            graph = tracer.trace(model)
            break
        except Exception as error:  # whatever a network's own code raises on stand-ins
            # A module that is opaque already fails for what it is given: that is its caller's.
            inside = next((name for name in tracer.failed if name not in opaque), None)
            if inside is None:
                raise CompactError(
                    f"the forward of {type(model).__name__} cannot be traced by torch.fx "
                    f"({type(error).__name__}: {error}); move what depends on the data into a "
                    "submodule: it is then kept whole"
                ) from error
            opaque.add(inside)
    for node in reversed(list(graph.nodes)):
        # Assertions may be about sizes, which change.
        if node.op == "call_function" and "assert" in getattr(node.target, "__name__", ""):
            graph.erase_node(node)
    return fx.GraphModule(model, graph, type(model).__name__)


def _argument_names(model: nn.Module, count: int) -> list[str]:
    """What a network's forward calls its first arguments."""
    names: list[str] = []
    for p in inspect.signature(model.forward).parameters.values():
        if p.kind is p.VAR_POSITIONAL:
            names += [f"{p.name}_{i}" for i in range(count - len(names))]
        elif p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD):
            names.append(p.name)
    if count > len(names):
        raise CompactError(
            f"example_input has {count} arguments, but the forward of {type(model).__name__} takes "
            f"at most {len(names)}"
        )
    return names[:count]


class _Tracer(fx.Tracer):
    """Looks into all modules but those of torch.nn and those known to fail."""

    def __init__(self, names: list[str], opaque: set[str]) -> None:
        super().__init__()
        self.names = names
        self.opaque = opaque
        self.failed: list[str] = []
        """The modules whose call failed, the innermost first."""

    def create_args_for_root(
        self, root_fn: Callable[..., Any], is_module: bool, concrete_args: Any = None
    ) -> tuple[Callable[..., Any], list[Any]]:
        # Only what is given: Python itself puts in the defaults of the others, of any type, and to
        # give one of them to the graph is an error. torch.fx would take and ignore it.
        return root_fn, [self.root, *(self._stand_in(name) for name in self.names)]

    def _stand_in(self, name: str) -> fx.Proxy:
        return self.create_proxy("placeholder", name, (), {})

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return module_qualified_name in self.opaque or super().is_leaf_module(
            m, module_qualified_name
        )

    def call_module(
        self,
        m: nn.Module,
        forward: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        try:
            return super().call_module(m, forward, args, kwargs)
        except Exception:
            self.failed.append(self.path_of_module(m))
            raise


class _Recorder(fx.Interpreter):
    """Runs the graph, node by node, and remembers shapes and memory of the results."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.alive: list[Any] = []  # so that memory is not used twice
        self.results: dict[fx.Node, Result] = {}

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if isinstance(result, Tensor):
            self.alive.append(result)
            self.results[n] = Result(tuple(result.shape), result.untyped_storage().data_ptr())
        return result


@torch.no_grad()
def _results_of(module: fx.GraphModule, arguments: tuple[Any, ...]) -> dict[fx.Node, Result]:
    # On a copy of the inputs: layers that work in place would write to the caller's.
    recorder = _Recorder(module)
    recorder.run(*deepcopy(arguments))
    return recorder.results


@torch.no_grad()
def _at_least_two(model: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """At least two examples: with one, a reshape over the batch looks like any other."""
    examples = len(arguments[0])
    if examples > 1:
        return arguments
    doubled = tuple(
        torch.cat([a, a]) if isinstance(a, Tensor) and a.ndim and len(a) == examples else a
        for a in arguments
    )
    try:
        model(*deepcopy(doubled))
    except Exception:  # a network that takes only one, or whose other arguments fit only one
        return arguments
    return doubled

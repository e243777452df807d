"""A network as a graph of its operators, read by ``torch.export``.

Whatever Python a network is written in, here it is a list of calls of ATen operators on its
parameters. A part that cannot be exported (control flow that depends on data) becomes one call that
is kept whole.
"""

from __future__ import annotations

import hashlib
import logging
import operator
import warnings
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from copy import deepcopy
from dataclasses import dataclass, field
from functools import wraps
from io import StringIO
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx, nn
from torch.nn.utils.parametrize import is_parametrized
from torch.utils._pytree import tree_flatten, tree_unflatten

from .errors import CompactError
from .inplace import made_functional

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .example import Example

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


@dataclass(frozen=True)
class Network:
    """A graph and what it was read from."""

    module: fx.GraphModule
    """Takes the network's arguments and gives its outputs; parameters by their names."""
    names: frozenset[str] = frozenset()
    """Of parameters and buffers."""
    whole: dict[str, str] = field(default_factory=dict)
    """Calls of parts that are kept whole: the module's name."""

    @property
    def nodes(self) -> list[fx.Node]:
        """In the order of execution."""
        return list(self.module.graph.nodes)

    def tensor(self, node: fx.Node) -> Tensor:
        """The parameter or buffer that a node stands for."""
        found: Any = self.module
        for part in str(node.target).split("."):
            found = getattr(found, part)
        assert isinstance(found, Tensor)
        return found

    def fingerprint(self) -> str:
        """The operators, names and shapes in sixteen digits, whatever the weights."""
        lines = [f"{n.op} {n.name} {n.target} {n.args} {n.kwargs}" for n in self.nodes]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


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


def read(model: nn.Module, example: Example, *, any_batch: bool = False) -> Network:
    """The graph of a network.

    Args:
        model: in evaluation mode; it is used as it is, not copied.
        example: what it is called with.
        any_batch: whether the graph takes other numbers of examples, where the network does.
    """
    network = _read(model, example)
    if any_batch:
        try:
            other = _read(model, example.with_one_more())
        except CompactError:  # it takes only as many as it is shown
            return network
        _free_batch(network.module, other.module, example)
    return network


def _read(model: nn.Module, example: Example) -> Network:
    whole: list[str] = []
    while True:
        with _kept_whole(model, whole) as failed:
            try:
                program = _exported(model, example)
                break
            except CompactError:
                raise
            except Exception as error:  # whatever a network's own code raises on stand-ins
                inside = next((name for name in failed if name not in whole), None)
                if inside is None:
                    raise _refusal(model, example, error) from error
                whole.append(inside)
    module = program.module(check_guards=False)
    if not made_functional(module.graph):
        with warnings.catch_warnings(), _quiet():
            warnings.simplefilter("ignore")
            module = program.run_decompositions({}).module(check_guards=False)
    graph = module.graph
    calls = {
        n.name: whole[int(n.args[0])]
        for n in graph.nodes
        if n.target is torch.ops.dessilbi.whole.default
    }
    for node in reversed(list(graph.nodes)):
        if node.op == "call_function" and "assert" in str(node.target) and not node.users:
            graph.erase_node(node)
    assert isinstance(module, fx.GraphModule)
    own = [
        *model.named_parameters(remove_duplicate=False),
        *model.named_buffers(remove_duplicate=False),
    ]
    return Network(module, frozenset(name for name, _ in own), calls)


def _exported(model: nn.Module, example: Example) -> torch.export.ExportedProgram:
    with warnings.catch_warnings(), _quiet(), _without_cache(model), torch.no_grad():
        warnings.simplefilter("ignore")
        return torch.export.export(
            model,
            deepcopy(example.args),
            deepcopy(dict(example.kwargs or {})) or None,
            strict=False,
        )


@contextmanager
def _without_cache(model: nn.Module) -> Iterator[None]:
    """Hugging Face's models without the cache of keys and values among their outputs."""
    configs = {id(c): c for m in model.modules() if (c := getattr(m, "config", None)) is not None}
    using = [c for c in configs.values() if getattr(c, "use_cache", None) is True]
    for config in using:
        config.use_cache = False
    try:
        yield
    finally:
        for config in using:
            config.use_cache = True


def _free_batch(module: fx.GraphModule, other: fx.GraphModule, example: Example) -> None:
    """Compute the numbers that grow with the number of examples from the input.

    Args:
        module: the graph for the example, which is changed.
        other: the graph for one example more.
        example: what the first was read with.
    """
    pairs = list(zip(module.graph.nodes, other.graph.nodes, strict=False))
    if len(module.graph.nodes) != len(other.graph.nodes):
        return
    if any((a.op, a.name, a.target) != (b.op, b.name, b.target) for a, b in pairs):
        return
    batch = next(
        n
        for n in module.graph.nodes
        if n.op == "placeholder" and isinstance(n.meta.get("val"), Tensor)
    )
    last = [n for n in module.graph.nodes if n.op == "placeholder"][-1]
    with module.graph.inserting_after(last):
        count = module.graph.call_function(torch.ops.aten.sym_size.int, (batch, 0))
    count.meta["val"] = example.examples
    times: dict[int, fx.Node] = {1: count}

    def free(old: Any, new: Any) -> Any:
        if isinstance(old, list | tuple) and isinstance(new, list | tuple):
            return type(old)(map(free, old, new)) if len(old) == len(new) else old
        if type(old) is not int or type(new) is not int or old == new:
            return old
        factor = new - old
        if factor < 1 or old != factor * example.examples:
            return old
        if factor not in times:
            with module.graph.inserting_after(count):
                times[factor] = module.graph.call_function(operator.mul, (count, factor))
            times[factor].meta["val"] = old
        return times[factor]

    for a, b in pairs:
        if a.op == "call_function":
            a.args = tuple(map(free, a.args, b.args))
            a.kwargs = {k: free(v, b.kwargs.get(k)) for k, v in a.kwargs.items()}
    if not count.users:
        module.graph.erase_node(count)
    module.recompile()


def _refusal(model: nn.Module, example: Example, error: Exception) -> CompactError:
    require_runs(model, example)
    return CompactError(
        f"the forward of {type(model).__name__} cannot be read by torch.export "
        f"({type(error).__name__}: {_line(error)}); move what depends on the data into a "
        "submodule: it is then kept whole"
    )


@torch.no_grad()
def require_runs(model: nn.Module, example: Example) -> None:
    """Raise unless a network runs on an example."""
    try:
        example.copied().call(model)
    except Exception as error:  # whatever a network's own code raises
        raise CompactError(
            f"the network does not run on example_input: {type(error).__name__}: {_line(error)}"
        ) from error


def _line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0]


@contextmanager
def _quiet() -> Iterator[None]:
    """The exporter logs and prints what it then raises."""
    logging.disable(logging.CRITICAL)
    try:
        with redirect_stderr(StringIO()), redirect_stdout(StringIO()):
            yield
    finally:
        logging.disable(logging.NOTSET)


# ---------------------------------------------------------------------- parts that are kept whole


@contextmanager
def _kept_whole(model: nn.Module, whole: list[str]) -> Iterator[list[str]]:
    """Let some modules be one operator each.

    Gives the names of the modules whose forward raised, the innermost first.
    """
    failed: list[str] = []
    patched = [(name, m) for name, m in model.named_modules() if name and "forward" not in vars(m)]
    for name, module in patched:
        vars(module)["forward"] = _watched(module.forward, name, whole, failed)
    try:
        yield failed
    finally:
        for _, module in patched:
            del vars(module)["forward"]


def _watched(plain: Any, name: str, whole: list[str], failed: list[str]) -> Any:
    @wraps(plain)
    def forward(*args: Any, **kwargs: Any) -> Any:
        if name in whole:
            return _one_operator(plain, whole.index(name), args, kwargs)
        try:
            return plain(*args, **kwargs)
        except Exception:
            failed.append(name)
            raise

    return forward


def _one_operator(plain: Any, number: int, args: Any, kwargs: Any) -> Any:
    from torch._subclasses.fake_tensor import unset_fake_temporarily
    from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing

    leaves, spec = tree_flatten((args, kwargs))
    tensors = [t for t in leaves if isinstance(t, Tensor)]

    def run(given: list[Tensor]) -> Any:
        rest = iter(given)
        filled = [next(rest) if isinstance(t, Tensor) else t for t in leaves]
        a, k = tree_unflatten(filled, spec)
        return plain(*a, **k)

    with unset_fake_temporarily(), disable_proxy_modes_tracing(), torch.no_grad():
        # Once with numbers, to see what comes out: its code may ask for them.
        ones = [torch.ones([int(n) for n in t.shape], dtype=t.dtype) for t in tensors]
        result = run(ones)
    outs, out_spec = tree_flatten(result)
    found = torch.ops.dessilbi.whole(number, tensors, [n for t in outs for n in (t.ndim, *t.shape)])
    return tree_unflatten(list(found), out_spec)


@torch.library.custom_op("dessilbi::whole", mutates_args=())
def _whole(number: int, tensors: list[Tensor], shapes: list[int]) -> list[Tensor]:
    raise NotImplementedError("stands for a module in a graph, and is never run")


@_whole.register_fake
def _(number: int, tensors: list[Tensor], shapes: list[int]) -> list[Tensor]:
    rest, found = list(shapes), []
    while rest:  # each shape follows its length
        n, rest = rest[0], rest[1:]
        found.append(tensors[0].new_empty(rest[:n]))
        rest = rest[n:]
    return found

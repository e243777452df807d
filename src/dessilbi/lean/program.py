"""A network as a list of layers for the kernels: passes with hardly any python in them.

torch.fx runs the network's Python once, with stand-ins for tensors. What the kernels know becomes a
layer of its own, BatchNorm, sum, pooling and ReLU behind each other become one, and torch runs the
rest. A network that cannot be looked into has no program.
"""

from __future__ import annotations

import operator
from collections import Counter
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import fx, nn
from torch.nn import functional as F  # noqa: N812 - as everybody does
from torch.nn.utils.parametrize import is_parametrized

from dessilbi.optim._native import KernelBuildError

from ._kernel import DTYPES, Geometry, enter, library, total
from .layers import (
    Average,
    ByTorch,
    Convolution,
    Finish,
    Flatten,
    Layer,
    Linear,
    MaxPool,
    UnsuitedError,
    Wanted,
    examples_first,
    examples_last,
)  # fmt: skip
from .replay import Replays

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping

    from torch import Tensor

    from .layers import Gradients, Weight

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_CLOSE = {torch.float32: 1e-3, torch.float64: 1e-9}
"""How far a program may be from its network, relative to its output."""
_FEW = 8
"""Examples of a batch from which the kernels, whose vectors are of examples, pay."""
_SOME = 16
"""Examples that a program is compared with its network by."""
_GLOBAL_HOOKS = (
    "_global_forward_hooks",
    "_global_forward_pre_hooks",
    "_global_backward_hooks",
    "_global_backward_pre_hooks",
)


def available(tensors: Iterable[Tensor] = ()) -> bool:
    """Whether this machine can build the kernels, and they take these tensors."""
    if not all(t.device.type == "cpu" and t.dtype in DTYPES for t in tensors):
        return False
    try:
        library()
    except KernelBuildError:
        return False
    return True


class Pass(Protocol):
    """A forward pass, and its backward pass, to be made before the next one ``again``."""

    output: Tensor
    """As the network gives it."""
    kept: list[Any]
    """What its layers keep."""

    def backward(self, gradient: Tensor) -> Gradients:
        """Gradients of weights, given that of the output; of those that took part."""


@dataclass
class OnePass:
    """A pass whose memory is its own."""

    program: Program
    weights: Mapping[str, Weight]
    wanted: frozenset[str]
    output: Tensor
    kept: list[Any]

    def backward(self, gradient: Tensor) -> Gradients:
        """See :class:`Pass`."""
        return self.program.backward(self, gradient)


class Program:
    """What a network does to a batch, by the kernels.

    Args:
        model: the network, in the mode (training or not, layer by layer) that it is run in.

    Raises:
        UnsuitedError: it has no program.
    """

    def __init__(self, model: nn.Module) -> None:
        if not available(model.parameters()):
            raise UnsuitedError("no kernels for this machine, or for these weights")
        self._model, self._modules = model, list(model.modules())
        self._flags = _mode(self._modules)
        reader = _Reader(model)
        self.layers = _fused(reader.layers, reader.result)
        self._values = reader.values
        self._result = reader.result
        self._entered: dict[Hashable, Tensor] = {}
        self._replays: dict[Hashable, Replays] = {}
        self._needs = [False] * reader.values
        for layer in self.layers:
            needed = bool(layer.weights) or any(self._needs[i] for i in layer.inputs)
            self._needs[layer.output] = needed
        self._last_use = {
            value: place for place, layer in enumerate(self.layers) for value in layer.inputs
        }

        self.skippable = {
            layer.weight for layer in self.layers if isinstance(layer, Convolution)
        } - {
            name
            for layer in self.layers
            for name in layer.weights
            if not isinstance(layer, Convolution) or name != layer.weight
        }
        """Weights of which only some need be there."""

    def fits(self) -> bool:
        """Whether the network is still in the mode that it was read in."""
        return self._flags == _mode(self._modules)

    def enter(self, x: Tensor) -> Tensor:
        """A batch with its examples last, in memory that the next batch of its shape uses again."""
        shape = (*x.shape[1:], len(x))
        key = (shape, x.dtype)
        if key not in self._entered:
            if len(self._entered) > 1:  # that of most batches, and that of the last of an epoch
                self._entered.clear()
            self._entered[key] = x.new_empty(shape)
        enter(x, self._entered[key])
        return self._entered[key]

    def run(
        self,
        x: Tensor,
        weights: Mapping[str, Weight],
        wanted: Iterable[str],
        *,
        remember: bool = False,
        again: Hashable = None,
    ) -> Pass:
        """A forward pass.

        Args:
            x: the batch, examples last (:meth:`enter`).
            weights: by name, as tensors or, for layers of which only some weights are there, as
                those and their values.
            wanted: names of those whose gradients will be asked for.
            remember: whether running statistics of BatchNorm follow.
            again: a name for passes with these weights in this memory, of which there will be many.
        """
        asked = frozenset(wanted)
        found: Pass | None = None
        if again is not None:
            if again not in self._replays:
                self._replays[again] = Replays(self)
            found = self._replays[again].run(x, weights, asked)
        if found is None:
            found = self.run_once(x, weights, asked)
        if remember:
            for layer, kept in zip(self.layers, found.kept, strict=True):
                if isinstance(layer, Finish):
                    layer.remember(kept)
        return found

    def run_once(self, x: Tensor, weights: Mapping[str, Weight], asked: frozenset[str]) -> OnePass:
        """A forward pass by itself."""
        values: list[Any] = [None] * self._values
        values[0] = x
        kept = []
        for place, layer in enumerate(self.layers):
            values[layer.output], memory = layer.forward(
                weights, *(values[i] for i in layer.inputs)
            )
            kept.append(memory)
            for i in layer.inputs:
                if self._last_use[i] == place and i != self._result:
                    values[i] = None
        output = values[self._result]
        if not isinstance(output, torch.Tensor):
            raise UnsuitedError("a network whose result is not a tensor")
        return OnePass(self, weights, asked, examples_first(output), kept)

    def backward(self, done: OnePass, gradient: Tensor) -> Gradients:
        """See :class:`Pass`."""
        given: list[Tensor | None] = [None] * self._values
        given[self._result] = examples_last(gradient)
        asked = Wanted(False, done.wanted)
        for layer, kept in zip(reversed(self.layers), reversed(done.kept), strict=True):
            dy = given[layer.output]
            given[layer.output] = None
            if dy is None or not self._needs[layer.output]:
                continue
            asked.inputs = any(self._needs[i] for i in layer.inputs)
            found = layer.backward(done.weights, kept, dy, asked)
            for i, new in zip(layer.inputs, found, strict=True):
                if new is not None and self._needs[i]:
                    old = given[i]
                    given[i] = new if old is None else total(old, new)
        return asked.found

    def agrees(self, x: Tensor) -> bool:
        """Whether this is what the network does now: code may depend on more than its input.

        Args:
            x: a batch, as the network takes it.
        """
        try:
            _refuse_hidden_code(self._model)
            return self._compare(x[:_SOME])
        except Exception:  # whatever a network's own code raises, or what it is made of
            return False

    def _compare(self, x: Tensor) -> bool:
        """Output and gradients with those of a copy, which may do to itself what it likes."""
        copy = deepcopy(self._model)
        params = {name: p.detach() for name, p in self._model.named_parameters()}
        wanted = frozenset(name for name, p in self._model.named_parameters() if p.requires_grad)
        with torch.random.fork_rng(devices=()):
            state = torch.random.get_rng_state()
            for _ in range(2):  # also a network that counts its calls
                with torch.enable_grad():
                    expected = copy(x)
                torch.random.set_rng_state(state)
            done = self.run_once(examples_last(x), params, wanted)
            given = torch.randn(expected.shape, dtype=x.dtype)
        if done.output.shape != expected.shape:
            return False
        if not expected.isfinite().all():  # there is nothing left to compare
            return not done.output.isfinite().all()
        names = [name for name, _ in copy.named_parameters() if name in wanted]
        leaves = [copy.get_parameter(name) for name in names]
        gradients = torch.autograd.grad(expected, leaves, given, allow_unused=True)
        known = dict(zip(names, gradients, strict=True))
        expected = expected.detach()
        found = done.backward(given)
        close = _CLOSE[x.dtype]
        if not _near(done.output, expected, close, 0.0):
            return False
        largest = max((float(g.norm()) for g in known.values() if g is not None), default=0.0)
        return all(
            _near(
                found.get(name, torch.zeros_like(params[name])),
                torch.zeros_like(params[name]) if g is None else g,
                50 * close,  # a ReLU at its kink may fall to the other side
                close * largest,
            )
            for name, g in known.items()
        )


def _near(found: Tensor, wanted: Tensor, share: float, least: float) -> bool:
    return float((found - wanted).norm()) <= share * float(wanted.norm()) + least


class Programs:
    """The program of a network as long as it is one, made when it is first asked for.

    Now and then, and after the network's mode has changed, it is compared with the network; if they
    differ, or the network has none, there is none until the mode changes again.

    Args:
        model: the network.
        every: steps between two comparisons.
    """

    def __init__(self, model: nn.Module, every: int = 500) -> None:
        self.model, self._every = model, every
        self._program: Program | None = None
        self._refused: list[bool] | None = None
        """The mode in which there is none."""
        self._checked = -1

    def get(self, arguments: tuple[Any, ...], step: int) -> Program | None:
        """The program for a batch; ``None`` if torch has to run the network itself."""
        x = arguments[0] if len(arguments) == 1 else None
        if not isinstance(x, torch.Tensor) or not _takes(self.model, x):
            return None
        if self._refused is not None and self._refused == _mode(self.model.modules()):
            return None
        turn = step // self._every
        if self._program is None or not self._program.fits():
            self._program = _made(self.model)
        elif turn == self._checked:
            return self._program
        self._checked, self._refused = turn, None
        if self._program is None or not self._program.agrees(x):
            self._program, self._refused = None, _mode(self.model.modules())
        return self._program


def _mode(modules: Iterable[nn.Module]) -> list[bool]:
    return [m.training for m in modules]


def _takes(model: nn.Module, x: Tensor) -> bool:
    first = next(model.parameters(), None)
    plain = x.ndim > 1 and x.layout is torch.strided and not x.requires_grad
    plain = plain and not torch.is_autocast_enabled("cpu")
    fits = first is not None and x.dtype is first.dtype and x.device.type == "cpu"
    return fits and plain and len(x) >= _FEW


def _made(model: nn.Module) -> Program | None:
    try:
        return Program(model)
    except UnsuitedError:
        return None


# ---------------------------------------------------------------------- reading a network


class _Reader:
    """The layers of a network, one for each node of its graph."""

    def __init__(self, model: nn.Module) -> None:
        _refuse_hidden_code(model)
        self._model = model
        self._names = {p: name for name, p in model.named_parameters()}
        try:
            # Of a copy: stand-ins that forward stores, and constants, stay in what is traced.
            graph = fx.Tracer().trace(deepcopy(model))
        except Exception as error:  # whatever a network's own code raises on stand-ins
            raise UnsuitedError(f"torch.fx cannot trace {type(model).__name__}") from error
        self.layers: list[Layer] = []
        self.values = 1
        self.result = 0
        self._numbers: dict[fx.Node, int] = {}
        taken = 0
        for node in graph.nodes:
            if node.op == "placeholder":
                # Further arguments, which have defaults, are stand-ins too: they must not be used.
                if taken == 0:
                    self._numbers[node] = 0
                taken += 1
            elif node.op == "output":
                (given,) = node.args
                if not isinstance(given, fx.Node):
                    raise UnsuitedError("a network whose result is not one tensor")
                self.result = self._number(given)
            else:
                layer = self._layer(node)
                if layer is not None:
                    self.layers.append(layer)

    def _number(self, node: fx.Node) -> int:
        if node not in self._numbers:
            raise UnsuitedError(f"{node} is not made of the batch")
        return self._numbers[node]

    def _new(self, node: fx.Node) -> int:
        self._numbers[node] = self.values
        self.values += 1
        return self._numbers[node]

    def _layer(self, node: fx.Node) -> Layer | None:
        if node.op == "get_attr":
            raise UnsuitedError("weights that are not those of a layer")
        if node.op == "call_module":
            module = self._model.get_submodule(str(node.target))
            known = _MODULES.get(type(module))
            found = known(module, node) if known else None
            if found is not None and not node.kwargs and len(node.args) == 1:
                return self._known(found, node, str(node.target), module)
            return self._module_by_torch(node, str(node.target), module)
        function = _METHODS.get(str(node.target)) if node.op == "call_method" else node.target
        found = _FUNCTIONS[function](node) if function in _FUNCTIONS else None
        if found is not None:
            return self._known(found, node, "", None)
        return self._by_torch(node)

    def _known(
        self, what: dict[str, Any], node: fx.Node, name: str, module: nn.Module | None
    ) -> Layer | None:
        kind = what.pop("kind")
        nodes = [a for a in node.args if isinstance(a, fx.Node)]
        inputs = tuple(self._number(n) for n in nodes)
        if kind is None:  # nothing happens
            self._numbers[node] = inputs[0]
            return None
        if issubclass(kind, Convolution):
            assert module is not None
            what |= {"weight": self._name(module.weight), "bias": self._name(module.bias)}
        if issubclass(kind, Finish) and isinstance(module, nn.modules.batchnorm._BatchNorm):
            if any(isinstance(one, Finish) and one.norm == name for one in self.layers):
                raise UnsuitedError(f"{name} is called twice: its statistics follow in order")
            affine = (self._name(module.weight), self._name(module.bias))
            what |= {"norm": name, "module": module, "affine": affine}
        found: Layer = kind(inputs, self._new(node), **what)
        return found

    def _name(self, p: Any) -> str | None:
        if p is not None and p not in self._names:
            raise UnsuitedError("a weight that is no parameter")
        return None if p is None else self._names[p]

    def _module_by_torch(self, node: fx.Node, name: str, module: nn.Module) -> Layer:
        if any(True for _ in module.buffers()):
            raise UnsuitedError(f"{name} has buffers")  # whose part a narrower network would take
        if node.kwargs or not all(isinstance(a, fx.Node) for a in node.args):
            raise UnsuitedError(f"{name} is called with more than tensors")
        names = tuple((inner, self._names[p]) for inner, p in module.named_parameters())
        inputs = tuple(self._number(a) for a in node.args if isinstance(a, fx.Node))
        if getattr(module, "inplace", False):
            raise UnsuitedError(f"{name} works in place")
        return ByTorch(inputs, self._new(node), call=module, module=module, names=names)

    def _by_torch(self, node: fx.Node) -> Layer:
        target = str(getattr(node.target, "__name__", node.target))
        in_place = target.endswith("_") and not target.endswith("__")
        if in_place or node.kwargs.get("inplace") or "out" in node.kwargs:
            raise UnsuitedError(f"{node} works in place")
        nodes = node.all_input_nodes
        inputs = tuple(self._number(n) for n in nodes)

        def call(*values: Any) -> Any:
            known = dict(zip(nodes, values, strict=True))
            args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: known[n])
            if node.op == "call_method":
                return getattr(args[0], str(node.target))(*args[1:], **kwargs)
            assert callable(node.target)
            return node.target(*args, **kwargs)

        return ByTorch(inputs, self._new(node), call=call)


def _refuse_hidden_code(model: nn.Module) -> None:
    for p in model.parameters():
        if p._backward_hooks or getattr(p, "_post_accumulate_grad_hooks", None):
            raise UnsuitedError("hooks of a parameter, which only torch's own passes call")
    if any(getattr(nn.modules.module, kind, None) for kind in _GLOBAL_HOOKS):
        raise UnsuitedError("hooks of all modules")
    for module in model.modules():
        own = "forward" in vars(module)
        if own or is_parametrized(module) or any(getattr(module, kind, None) for kind in _HOOKS):
            raise UnsuitedError("code that runs beside forward, which a program would not see")


def _refuse_in_place(node: fx.Node, in_place: bool) -> None:
    """Who else reads what is overwritten would, in a program, read what was there before."""
    if in_place and (any(len(n.users) > 1 for n in node.all_input_nodes)):
        raise UnsuitedError(f"{node} overwrites what others read")
    if in_place and any(n.op == "placeholder" for n in node.all_input_nodes):
        raise UnsuitedError(f"{node} overwrites the batch")


# What the kernels know. By module: exactly these classes, since others may do something else.


def _convolution(m: nn.Conv2d, _: fx.Node) -> dict[str, Any] | None:
    if m.groups != 1 or m.padding_mode != "zeros" or isinstance(m.padding, str):
        return None
    if _pair(m.dilation) != (1, 1):
        return None
    return {"kind": Convolution, "how": Geometry(_pair(m.stride), _pair(m.padding))}


def _linear(_: nn.Linear, __: fx.Node) -> dict[str, Any]:
    return {"kind": Linear}


def _norm(m: nn.BatchNorm1d | nn.BatchNorm2d, _: fx.Node) -> dict[str, Any] | None:
    return {"kind": Finish} if m.training else None


def _relu(m: nn.ReLU, node: fx.Node) -> dict[str, Any]:
    _refuse_in_place(node, m.inplace)
    return {"kind": Finish, "relu": True}


def _max_pool(m: nn.MaxPool2d, _: fx.Node) -> dict[str, Any] | None:
    if m.ceil_mode or m.return_indices or _pair(m.dilation) != (1, 1):
        return None
    window, how = _pair(m.kernel_size), Geometry(_pair(m.stride), _pair(m.padding))
    if how == Geometry(window, (0, 0)):
        return {"kind": Finish, "window": window}
    return {"kind": MaxPool, "window": window, "how": how}


def _average(m: nn.AdaptiveAvgPool2d, _: fx.Node) -> dict[str, Any] | None:
    return {"kind": Average} if m.output_size in (1, (1, 1)) else None


def _flatten(m: nn.Flatten, _: fx.Node) -> dict[str, Any] | None:
    return {"kind": Flatten} if (m.start_dim, m.end_dim) == (1, -1) else None


def _nothing(m: nn.Module, _: fx.Node) -> dict[str, Any] | None:
    return None if isinstance(m, nn.Dropout) and m.training and m.p > 0 else {"kind": None}


_MODULES: dict[type[nn.Module], Callable[[Any, fx.Node], dict[str, Any] | None]] = {
    nn.Conv2d: _convolution,
    nn.Linear: _linear,
    nn.BatchNorm1d: _norm,
    nn.BatchNorm2d: _norm,
    nn.ReLU: _relu,
    nn.MaxPool2d: _max_pool,
    nn.AdaptiveAvgPool2d: _average,
    nn.Flatten: _flatten,
    nn.Identity: _nothing,
    nn.Dropout: _nothing,
}


def _relu_function(node: fx.Node) -> dict[str, Any]:
    _refuse_in_place(node, bool(node.kwargs.get("inplace")) or len(node.args) > 1)
    return {"kind": Finish, "relu": True}


def _sum(node: fx.Node) -> dict[str, Any] | None:
    both = len(node.args) == 2 and all(isinstance(a, fx.Node) for a in node.args)
    return {"kind": Finish} if both and not node.kwargs else None


def _flatten_function(node: fx.Node) -> dict[str, Any] | None:
    return {"kind": Flatten} if node.args[1:] == (1,) and not node.kwargs else None


_FUNCTIONS: dict[Any, Callable[[fx.Node], dict[str, Any] | None]] = {
    F.relu: _relu_function,
    torch.relu: _relu_function,
    operator.add: _sum,
    torch.add: _sum,
    torch.flatten: _flatten_function,
}
_METHODS: dict[str, Any] = {"relu": torch.relu, "add": torch.add, "flatten": torch.flatten}


def _pair(value: Any) -> tuple[int, int]:
    if isinstance(value, int):
        return value, value
    first, second = value if len(value) == 2 else (*value, *value)
    return int(first), int(second)


# ---------------------------------------------------------------------- one instead of several


def _fused(layers: list[Layer], result: int) -> list[Layer]:
    """BatchNorm, sum, pooling and ReLU behind each other, whose results nobody else reads, as one.

    The one stands where the last of them stood: by then all inputs are there.
    """
    uses = Counter([*(i for layer in layers for i in layer.inputs), result])
    found: dict[int, Layer] = {}
    """By output."""
    for layer in layers:
        joined = layer
        if isinstance(layer, Finish):
            for i in layer.inputs:
                before = found.get(i)
                if isinstance(before, Finish) and uses[i] == 1:
                    together = _together(before, layer)
                    if together is not None:
                        del found[i]
                        joined = together
                        break
        found[layer.output] = joined
    return list(found.values())


def _together(first: Finish, then: Finish) -> Finish | None:
    if then.module is not None:
        return None
    others = tuple(i for i in then.inputs if i != first.output)
    pools = (then.window != (1, 1)) + (first.window != (1, 1))
    if others:  # a sum behind a norm
        if first.relu or pools or len(first.inputs) > 1 or len(then.inputs) != 2:
            return None
    # What is largest is so before and behind a ReLU. Pooling sees no residual sum.
    elif pools and (pools > 1 or len(first.inputs) > 1):
        return None
    window = then.window if first.window == (1, 1) else first.window
    return replace(
        first, inputs=(*first.inputs, *others), output=then.output, window=window,
        relu=first.relu or then.relu,
    )  # fmt: skip

"""What a network does, layer by layer: torch.fx runs it once with stand-ins for tensors."""

from __future__ import annotations

import operator
from collections import Counter
from copy import deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import fx, nn
from torch.nn import functional as F  # noqa: N812 - as everybody does
from torch.nn.utils.parametrize import is_parametrized

from ._kernel import Geometry
from .layer import Layer, UnsuitedError
from .layers import (
    Average,
    ByTorch,
    Convolution,
    Finish,
    Flatten,
    Linear,
    MaxPool,
)

if TYPE_CHECKING:
    from collections.abc import Callable

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_GLOBAL_HOOKS = (
    "_global_forward_hooks",
    "_global_forward_pre_hooks",
    "_global_backward_hooks",
    "_global_backward_pre_hooks",
)


class Reader:
    """The layers of a network, one for each node of its graph."""

    def __init__(self, model: nn.Module) -> None:
        refuse_hidden_code(model)
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


def refuse_hidden_code(model: nn.Module) -> None:
    """Refuse code that runs beside ``forward``, which a program does not have."""
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


def fused(layers: list[Layer], result: int) -> list[Layer]:
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

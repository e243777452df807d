"""A network as a list of layers for the kernels: passes with hardly any python in them.

torch.fx runs the network's Python once, with stand-ins for tensors. What the kernels know becomes a
layer of its own, BatchNorm, sum, pooling and ReLU behind each other become one, and torch runs the
rest. A network that cannot be looked into has no program.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import nn

from dessilbi.optim._native import KernelBuildError

from ._kernel import enter, total
from ._library import DTYPES, library
from .layer import UnsuitedError, Wanted, examples_first, examples_last
from .layers import Convolution, Finish
from .reading import Reader, fused, refuse_hidden_code
from .replay import Replays

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping

    from torch import Tensor

    from .layer import Gradients, Weight

_CLOSE = {torch.float32: 1e-3, torch.float64: 1e-9}
"""How far a program may be from its network, relative to its output."""
FEW = 8
"""Examples of a batch from which the kernels, whose vectors are of examples, pay."""
_SOME = 16
"""Examples that a program is compared with its network by."""


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
        self._flags = mode_of(self._modules)
        reader = Reader(model)
        self.layers = fused(reader.layers, reader.result)
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
        return self._flags == mode_of(self._modules)

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
            refuse_hidden_code(self._model)
            output, gradients = self._compare(x[:_SOME])
            if output and not gradients and x.dtype is torch.float32:
                # A ReLU at its kink fell to the other side, perhaps: in float64 that is as good as
                # never, and a network that differs still does.
                output, gradients = self._compare(x[:_SOME].double())
        except Exception:  # whatever a network's own code raises, or what it is made of
            return False
        return output and gradients

    def _compare(self, x: Tensor) -> tuple[bool, bool]:
        """Whether output and gradients are those of a copy, which may do to itself what it likes.

        Both compute as precisely as the images are.
        """
        copy = deepcopy(self._model).to(x.dtype)
        params = {name: p.detach().to(x.dtype) for name, p in self._model.named_parameters()}
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
            return False, False
        if not expected.isfinite().all():  # there is nothing left to compare
            both = not done.output.isfinite().all()
            return both, both
        names = [name for name, _ in copy.named_parameters() if name in wanted]
        leaves = [copy.get_parameter(name) for name in names]
        gradients = torch.autograd.grad(expected, leaves, given, allow_unused=True)
        known = dict(zip(names, gradients, strict=True))
        found = done.backward(given)
        close = _CLOSE[x.dtype]
        largest = max((float(g.norm()) for g in known.values() if g is not None), default=0.0)
        return _near(done.output, expected.detach(), close, 0.0), all(
            _near(
                found.get(name, torch.zeros_like(params[name])),
                torch.zeros_like(params[name]) if g is None else g,
                50 * close,  # a little for a ReLU at its kink
                close * largest,
            )
            for name, g in known.items()
        )


def _near(found: Tensor, wanted: Tensor, share: float, least: float) -> bool:
    return float((found - wanted).norm()) <= share * float(wanted.norm()) + least


def mode_of(modules: Iterable[nn.Module]) -> list[bool]:
    """Which modules are in training mode."""
    return [m.training for m in modules]

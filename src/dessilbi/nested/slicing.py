"""Networks of fewer channels, by slices of the weights of the whole one: ``weight[:o, :i]``.

They are computed as ordinary dense networks, at the cost of the smaller ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm

from dessilbi.graph.compare import difference, random_like
from dessilbi.graph.copies import copied, with_known_norms
from dessilbi.graph.errors import CompactError
from dessilbi.graph.example import as_arguments
from dessilbi.graph.layout import NARROW, channels_first
from dessilbi.graph.macs import count_macs_per_weight
from dessilbi.graph.ties import tied_channels

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from dessilbi.graph.ties import Tied

_FEW = 8
"""A network with a layer of fewer filters is faster channels first."""

_ROUNDING = 1e-3
"""Two ways to compute the same network differ by less, relative to its outputs."""

Slices = tuple["Tensor | None", "Tensor | None"]
"""The rows and the columns that stay; ``None`` for all."""


@dataclass(frozen=True)
class Cut:
    """What stays of every tensor that gets smaller."""

    params: dict[str, Slices]
    buffers: dict[str, Slices]
    channels_first: bool
    """Whether images must come so on a CPU, or had better."""

    def arguments(self, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """Arguments of the network as it is to be given them."""
        return channels_first(arguments) if self.channels_first else arguments

    def tensors(self, model: nn.Module) -> dict[str, Tensor]:
        """The smaller network's parameters, as functions of the whole one's, and its buffers.

        Buffers are copies: statistics of the whole network stay as they are.
        """
        return {n: sliced(p, self.params.get(n)) for n, p in model.named_parameters()} | {
            n: sliced(b, self.buffers.get(n)).clone() for n, b in model.named_buffers()
        }

    def inside(self, name: str, p: Tensor) -> Tensor:
        """Where a parameter takes part, shaped as it."""
        nowhere = torch.zeros_like(p, dtype=torch.bool, requires_grad=False)
        return put(torch.ones((), dtype=torch.bool), nowhere, self.params.get(name))


class Slicer:
    """The networks that are left when channels leave a network together.

    Args:
        model: the network.
        example_input: a batch, or a tuple of arguments whose first is one.

    Raises:
        CompactError: it cannot be made narrower with its code as it is.
    """

    def __init__(self, model: nn.Module, example_input: Any) -> None:
        self._model = model
        self.params: dict[str, nn.Parameter] = dict(model.named_parameters())
        known = with_known_norms(model)
        self._shapes = {name: p.shape for name, p in known.named_parameters()}
        grouped = {
            f"{name}.weight" for name, m in model.named_modules() if getattr(m, "groups", 1) != 1
        }
        self.sets: list[Tied] = [
            one
            for one in tied_channels(known, example_input)
            # The number of groups is part of a layer, not of its weights.
            if one.free and not any(m.parameter in grouped for m in one.members)
        ]
        """Channels that can be cut. A BatchNorm layer without parameters is a member by those that
        it would have, which are not in :attr:`params`."""
        self._statistics = {
            f"{name}.weight": [f"{name}.running_mean", f"{name}.running_var"]
            for name, m in model.named_modules()
            if isinstance(m, _BatchNorm) and m.track_running_stats
        }
        self._macs = count_macs_per_weight(copied(model), example_input)
        self._try(as_arguments(example_input))

    def _try(self, arguments: tuple[Any, ...]) -> None:
        """A network of half the channels must run, and be the one whose other half is zero."""
        cut = self.cut([torch.arange(one.channels) < (one.channels + 1) // 2 for one in self.sets])
        model, small = copied(self._model).eval(), narrow_copy(self._model, cut).eval()

        def by_slices(*given: Any) -> Any:
            return functional_call(model, cut.tensors(model), given)

        with torch.no_grad():
            try:
                by_slices(*arguments)
            except (RuntimeError, ValueError) as error:
                raise CompactError(
                    f"{type(self._model).__name__} does not run with fewer channels ({error}); "
                    "sizes that its code names, as in view(-1, 512), are the usual reason: use "
                    "flatten(1)"
                ) from error
            masked = copied(model)
            for name, tensor in [*masked.named_parameters(), *masked.named_buffers()]:
                rows, _ = (cut.params | cut.buffers).get(name, (None, None))
                # The mean of what is zero is zero, as recalibration will find.
                if rows is not None and not name.endswith("running_var"):
                    tensor.copy_(put(tensor[rows], torch.zeros_like(tensor), (rows, None)))
        some = [random_like(arguments, len(arguments[0]))]
        found = max(
            (difference(way, masked, some, "random", choices=False) for way in (by_slices, small)),
            key=lambda one: one.relative,
        )
        if not found.relative <= _ROUNDING:
            raise CompactError(
                f"{type(self._model).__name__} with fewer channels is not the one whose other "
                f"filters are zero: outputs differ by {found}. Activations must be 0 at 0, as "
                "ReLU, GELU and tanh are and the sigmoid is not"
            )

    def cut(self, kept: Sequence[Tensor]) -> Cut:
        """What stays of every tensor when only some channels of each set stay."""
        stays: dict[tuple[str, int], Tensor] = {}
        for one, channels in zip(self.sets, kept, strict=True):
            for member in one.members:
                shape, where = self._shapes[member.parameter], (member.parameter, member.dim)
                bits = stays.setdefault(where, torch.ones(shape[member.dim], dtype=torch.bool))
                bits[member.index[~channels.cpu()].flatten()] = False
        device = next(iter(self.params.values())).device
        found = {
            where: bits.nonzero().flatten().to(device)
            for where, bits in stays.items()
            if not bool(bits.all())
        }
        names = dict.fromkeys(name for name, _ in found if name in self.params)
        return Cut(
            {name: (found.get((name, 0)), found.get((name, 1))) for name in names},
            {
                buffer: (found[name, 0], None)
                for name, buffers in self._statistics.items()
                if (name, 0) in found
                for buffer in buffers
            },
            self._channels_first(found),
        )

    def _channels_first(self, found: Mapping[tuple[str, int], Tensor]) -> bool:
        def left(name: str, dim: int) -> int:
            stay = found.get((name, dim))
            return self._shapes[name][dim] if stay is None else len(stay)

        convolutions = [name for name, p in self.params.items() if p.ndim == 4]
        few = min((left(name, 0) for name in convolutions), default=_FEW) < _FEW
        unsafe = any(
            self._shapes[name][2:] == (1, 1) and left(name, 1) < NARROW for name in convolutions
        )
        return few or unsafe

    def cost(self, cut: Cut) -> float:
        """The multiply-adds of the smaller network, as a fraction of the whole one's."""
        whole = left = 0.0
        for name, p in self.params.items():
            macs = self._macs.get(name, 1.0)
            whole += macs * p.numel()
            left += macs * sliced(p.detach(), cut.params.get(name)).numel()
        return left / whole


def narrow_copy(model: nn.Module, cut: Cut) -> nn.Module:
    """A network of the same class with fewer channels, its layers' sizes as its weights'."""
    copy = copied(model)
    known: dict[int, nn.Parameter] = {}
    for name, p in copy.named_parameters(remove_duplicate=False):
        if id(p) not in known:
            small = sliced(p.detach(), cut.params.get(name)).clone()
            known[id(p)] = nn.Parameter(small, requires_grad=p.requires_grad)
    for module_name, module in copy.named_modules():
        start = f"{module_name}." if module_name else ""
        for name, p in list(module.named_parameters(recurse=False, remove_duplicate=False)):
            setattr(module, name, known[id(p)])
        for name, b in list(module.named_buffers(recurse=False, remove_duplicate=False)):
            setattr(module, name, sliced(b, cut.buffers.get(start + name)))
        _resize(module)
    return copy


@torch.no_grad()
def widened(model: nn.Module, small: nn.Module, cut: Cut) -> nn.Module:
    """A copy of the whole network that computes what the smaller one does: zero elsewhere.

    Variances elsewhere are the whole network's, whose means are zero there.
    """
    copy, ours = copied(model).train(small.training), dict(small.named_parameters())
    for name, p in copy.named_parameters():
        p.copy_(put(ours[name], torch.zeros_like(p), cut.params.get(name)))
    theirs = dict(small.named_buffers())
    for name, b in copy.named_buffers():
        around = b.clone() if name.endswith("running_var") else torch.zeros_like(b)
        b.copy_(put(theirs[name], around, cut.buffers.get(name)))
    return copy


def sliced(tensor: Tensor, slices: Slices | None) -> Tensor:
    """What stays of a tensor; all of it for ``None``."""
    rows, columns = slices or (None, None)
    if rows is not None:
        tensor = tensor.index_select(0, rows)
    return tensor if columns is None else tensor.index_select(1, columns)


def put(small: Tensor, around: Tensor, slices: Slices | None) -> Tensor:
    """The reverse of :func:`sliced`: another tensor with the smaller one in its place."""
    rows, columns = slices or (None, None)
    if columns is None:
        around[... if rows is None else rows] = small
    elif rows is None:
        around[:, columns] = small
    else:
        around[rows[:, None], columns] = small
    return around


def _resize(module: nn.Module) -> None:
    """Let a layer's attributes say the sizes that its tensors have."""
    weight = getattr(module, "weight", None)
    if isinstance(module, nn.Linear):
        module.out_features, module.in_features = module.weight.shape
    elif isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d):
        module.out_channels, inputs = module.weight.shape[:2]
        module.in_channels = inputs * module.groups
    elif isinstance(module, _BatchNorm):
        known = weight if weight is not None else module.running_mean
        module.num_features = module.num_features if known is None else len(known)
    elif isinstance(module, nn.PReLU):
        module.num_parameters = module.weight.numel()

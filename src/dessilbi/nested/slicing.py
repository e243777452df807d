"""A network of fewer channels for one forward and backward pass, cut out of the whole one.

Its cost is that of the smaller network. Weights are copied into it and gradients carried back, so
that nothing of the whole network changes but its gradients.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm

from dessilbi.graph import operations as ops
from dessilbi.graph.compare import difference, random_like
from dessilbi.graph.errors import CompactError
from dessilbi.graph.layout import NARROW, channels_first
from dessilbi.graph.macs import count_macs_per_weight
from dessilbi.graph.ties import tied_channels
from dessilbi.graph.tracing import as_arguments

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from dessilbi.graph.ties import Tied

_FEW = 8
"""A network with a layer of fewer filters is faster channels first."""

_ROUNDING = 1e-3
"""Two ways to compute the same network differ by less, relative to its outputs."""

Places = tuple["Tensor | None", "Tensor | None"]
"""The rows and the columns that stay; ``None`` for all."""


@dataclass(frozen=True)
class Cut:
    """What stays of every tensor that is cut."""

    params: dict[str, Places]
    buffers: dict[str, Tensor]
    """Rows, by name."""
    channels_first: bool
    """Whether images must come so on a CPU, or had better."""

    def places(self, name: str) -> Places:
        """The rows and columns of a parameter that stay."""
        return self.params.get(name, (None, None))


class Narrow:
    """The networks that are left when channels leave a network together.

    Args:
        model: the network.
        example_input: a batch, or a tuple of arguments whose first is one.

    Raises:
        CompactError: it cannot be cut with its code as it is.
    """

    def __init__(self, model: nn.Module, example_input: Any) -> None:
        self._model = model
        self.params: dict[str, nn.Parameter] = dict(model.named_parameters())
        known = _with_known_norms(model)
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
        self._macs = count_macs_per_weight(deepcopy(model), example_input)
        self._try(as_arguments(example_input))

    def _try(self, arguments: tuple[Any, ...]) -> None:
        """A network of half the channels must run, and be the one whose other half is zero."""
        kept = [torch.arange(one.channels) < (one.channels + 1) // 2 for one in self.sets]
        copy = deepcopy(self._model).eval()
        cut = self.cut(kept)
        tensors = self._tensors(copy, cut)
        with torch.no_grad():
            try:
                functional_call(copy, tensors, arguments)
            except (RuntimeError, ValueError) as error:
                raise CompactError(
                    f"{type(self._model).__name__} does not run with fewer channels ({error}); "
                    "sizes that its code names, as in view(-1, 512), are the usual reason: use "
                    "flatten(1)"
                ) from error
            masked = deepcopy(copy)
            stays = {name: rows for name, (rows, _) in cut.params.items()} | cut.buffers
            for name, tensor in [*masked.named_parameters(), *masked.named_buffers()]:
                rows = stays.get(name)
                # The mean of what is zero is zero, as recalibration will find.
                if rows is not None and not name.endswith("running_var"):
                    off = torch.ones(len(tensor), dtype=torch.bool, device=tensor.device)
                    off[rows] = False
                    tensor[off] = 0
        found = difference(
            lambda *given: functional_call(copy, tensors, given),
            masked,
            [random_like(arguments, len(arguments[0]))],
            "random",
            choices=False,
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
        places = {
            where: bits.nonzero().flatten().to(device)
            for where, bits in stays.items()
            if not bool(bits.all())
        }
        names = dict.fromkeys(name for name, _ in places if name in self.params)
        return Cut(
            {name: (places.get((name, 0)), places.get((name, 1))) for name in names},
            {
                buffer: places[name, 0]
                for name, buffers in self._statistics.items()
                if (name, 0) in places
                for buffer in buffers
            },
            self._channels_first(places),
        )

    def _channels_first(self, places: Mapping[tuple[str, int], Tensor]) -> bool:
        """Whether to give images so."""

        def left(name: str, dim: int) -> int:
            stay = places.get((name, dim))
            return self._shapes[name][dim] if stay is None else len(stay)

        convolutions = [name for name, p in self.params.items() if p.ndim == 4]
        filters = [left(name, 0) for name in convolutions]
        few = min(filters, default=_FEW) < _FEW
        unsafe = any(
            self._shapes[name][2:] == (1, 1) and left(name, 1) < NARROW for name in convolutions
        )
        return few or unsafe

    def forward(
        self, cut: Cut, *arguments: Any, own: Mapping[str, Tensor] = MappingProxyType({})
    ) -> tuple[Any, dict[str, Tensor]]:
        """What the smaller network gives, and its weights, which ask for gradients.

        BatchNorm statistics of the whole network stay as they are.

        Args:
            cut: what stays.
            arguments: of the network.
            own: weights of the smaller network that are not the whole one's.
        """
        tensors = self._tensors(self._model, cut, own)
        weights = {
            name: tensors[name].requires_grad_() for name, p in self.params.items()
            if p.requires_grad
        }  # fmt: skip
        if cut.channels_first:
            arguments = channels_first(arguments)
        return functional_call(self._model, tensors, arguments), weights

    def _tensors(
        self, model: nn.Module, cut: Cut, own: Mapping[str, Tensor] = MappingProxyType({})
    ) -> dict[str, Tensor]:
        found = {
            name: own[name] if name in own else taken(p.detach(), *cut.places(name))
            for name, p in model.named_parameters()
        }
        for name, buffer in model.named_buffers():
            rows = cut.buffers.get(name)
            found[name] = buffer.clone() if rows is None else buffer.index_select(0, rows)
        return found

    @torch.no_grad()
    def add_gradients(self, cut: Cut, gradients: dict[str, Tensor]) -> None:
        """Add gradients of the smaller network's weights to those of the whole one."""
        for name, gradient in gradients.items():
            p = self.params[name]
            rows, columns = cut.places(name)
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            if rows is not None and columns is not None:
                p.grad[rows[:, None], columns] += gradient
            elif columns is not None:
                p.grad.index_add_(1, columns, gradient)
            elif rows is not None:
                p.grad.index_add_(0, rows, gradient)
            else:
                p.grad.add_(gradient)

    def cost(self, cut: Cut) -> float:
        """The multiply-adds of the smaller network, as a fraction of the whole one's."""
        whole = left = 0.0
        for name, p in self.params.items():
            macs = self._macs.get(name, 1.0) * p.numel()
            whole += macs
            for dim, stay in enumerate(cut.places(name)):
                macs *= 1.0 if stay is None else len(stay) / p.shape[dim]
            left += macs
        return left / whole

    def used(self, cut: Cut, name: str) -> Tensor:
        """Where a parameter takes part, shaped as it."""
        nowhere = torch.empty_like(self.params[name], dtype=torch.bool, requires_grad=False)
        return put(torch.ones((), dtype=torch.bool), nowhere, *cut.places(name))


def _with_known_norms(model: nn.Module) -> nn.Module:
    """A copy whose BatchNorm layers are torch's own: others, too, work channel by channel.

    They all have parameters, by which the channels of their statistics are found.
    """
    copy = deepcopy(model)
    for parent in [*copy.modules()]:
        for name, child in parent.named_children():
            if isinstance(child, _BatchNorm) and not child.affine and child.running_var is not None:
                child.affine = True
                child.weight = nn.Parameter(torch.ones_like(child.running_var))
                child.bias = nn.Parameter(torch.zeros_like(child.running_var))
            if isinstance(child, _BatchNorm) and not isinstance(child, ops.NORMS):
                known = nn.SyncBatchNorm(child.num_features, child.eps)  # any dimension
                known.__dict__.update(child.__dict__)
                setattr(parent, name, known)
    return copy


def taken(tensor: Tensor, rows: Tensor | None, columns: Tensor | None) -> Tensor:
    """What stays of a tensor."""
    if rows is not None:
        tensor = tensor.index_select(0, rows)
    return tensor if columns is None else tensor.index_select(1, columns)


def put(small: Tensor, like: Tensor, rows: Tensor | None, columns: Tensor | None) -> Tensor:
    """The reverse of :func:`taken`: a tensor shaped as another, zero where nothing stays."""
    whole = torch.zeros_like(like, requires_grad=False)
    if columns is None:
        whole[slice(None) if rows is None else rows] = small
    elif rows is None:
        whole[:, columns] = small
    else:
        whole[rows[:, None], columns] = small
    return whole

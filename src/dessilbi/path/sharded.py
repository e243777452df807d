"""Sharded parameters (FSDP2): each rank looks at its own groups, and what is kept is gathered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
import torch.distributed as dist

from dessilbi.optim import GroupLasso
from dessilbi.optim.dtensor import full, is_dtensor, local
from dessilbi.optim.prox import active

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray
    from torch import Tensor, nn

    from dessilbi.optim import Penalty

    from ._events import EventLog
    from .layers import Layer

    Change = tuple[int, int, bool]
    """Step, number of the group, and whether it entered."""


def is_sharded(model: nn.Module) -> bool:
    """Whether ranks hold parts of the network's parameters."""
    return any(is_dtensor(p) for p in model.parameters())


def resharded(model: nn.Module) -> None:
    """Let no layer hold whole weights that were gathered before its own part of them changed."""
    for module in model.modules():
        if hasattr(module, "reshard") and hasattr(module, "unshard"):  # FSDP2's
            cast("Any", module).reshard()


def placed(whole: Tensor, p: Tensor) -> Tensor:
    """A tensor that every rank has whole, as it lies on the ranks if it is to lie as p does."""
    if not is_dtensor(p):
        return whole
    from torch.distributed.tensor import distribute_tensor

    like = cast("Any", p)
    return distribute_tensor(
        whole.to(p.device), like.device_mesh, like.placements, src_data_rank=None
    )


def active_groups(penalty: Penalty, V: Tensor) -> Tensor:
    """The support by group (by element of a penalty of the user's own), on every rank."""
    if not is_dtensor(V):
        return active(penalty, V)
    if isinstance(penalty, GroupLasso):
        lambd = penalty.lambd
        bound = full(lambd).flatten() if isinstance(lambd, torch.Tensor) else lambd
        return full(penalty.norms(V)).flatten() > bound
    return full(penalty.support(V))


class Whole(Mapping[str, torch.Tensor]):
    """Parameters by name, each gathered from all ranks when it is looked at."""

    def __init__(self, params: Mapping[str, Tensor]) -> None:
        self._params = params

    def __getitem__(self, name: str) -> Tensor:
        return full(self._params[name].detach())

    def __iter__(self) -> Iterator[str]:
        return iter(self._params)

    def __len__(self) -> int:
        return len(self._params)


class OwnGroups:
    """The groups of a layer that this rank looks at: those whose weights it holds.

    Groups that are spread over ranks, or tied to others, are looked at by all.

    Args:
        layer: a layer whose groups are slices.
        p: its parameter.
    """

    def __init__(self, layer: Layer, p: Tensor) -> None:
        numbers = torch.arange(layer.offset, layer.offset + layer.groups)
        self._whole = True
        if is_dtensor(p) and layer.tied is None:
            placements = cast("Any", p).placements
            cut = [one for one in placements if not one.is_replicate()]
            if len(cut) <= 1 and all(one.is_shard(layer.group_dim) for one in cut):
                self._whole = False
                shape = [-1 if d == layer.group_dim else 1 for d in range(p.ndim)]
                numbers = local(placed(numbers.view(shape).expand(p.shape).contiguous(), p))
                numbers = numbers.movedim(cast("int", layer.group_dim), 0).flatten(1)[:, 0]
        self.numbers: NDArray[np.int64] = numbers.cpu().numpy()

    def active(self, penalty: Penalty, V: Tensor) -> Tensor:
        """Which of them are in the support."""
        if self._whole:
            return active_groups(penalty, V)
        own = cast("GroupLasso", penalty)
        lambd = local(own.lambd) if isinstance(own.lambd, torch.Tensor) else own.lambd
        return replace(own, lambd=lambd).active(local(V))


def gather_changes(own: list[Change], log: EventLog) -> None:
    """Append what every rank has seen, in the order of steps; a collective."""
    every: list[list[Change]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(every, own)
    changes = sorted({change for one in every for change in one})
    for step in sorted({change[0] for change in changes}):
        groups = [(group, entered) for at, group, entered in changes if at == step]
        numbers, entered = (np.array(column) for column in zip(*groups, strict=True))
        log.append(step, numbers.astype(np.int64), entered.astype(np.bool_))

"""What nested training by weights and by widths share: counting steps, ranking, checkpoints."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from dessilbi.graph.wrappers import bare_model, bare_optimizer
from dessilbi.optim.dtensor import is_dtensor
from dessilbi.path import Mask
from dessilbi.path.sharded import Whole, is_sharded
from dessilbi.path.twins import ranked_weights
from dessilbi.subnet import recalibrate_batchnorm
from dessilbi.subnet.batchnorm import has_batchnorm
from dessilbi.subnet.scores import scores

from .ranking import WHOLE, budget_ranks, density_of, rank_of
from .restrict import Restriction

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor, nn
    from torch.optim import Optimizer

    from dessilbi.path import Layer

    from .schedule import NestedSchedule

_BATCHES = 8
"""Batches of inputs that are remembered to recalibrate BatchNorm on."""


class Nested(ABC):
    """A training whose steps draw budgets: which groups belong to which of them, and since when.

    Options are those of :class:`NestedTraining`.
    """

    takes_shards = False
    """Whether ranks may hold parts of the parameters (FSDP2)."""
    dependents: dict[str, NDArray[np.int32]] | None = None
    """Biases and BatchNorm parameters: the filter that each element leaves with, or -1. Filters are
    numbered through all layers, as in a path. ``None`` where weights leave alone."""

    def __init__(
        self,
        model: nn.Module,
        opt: Optimizer,
        steps: int,
        schedule: NestedSchedule,
        *,
        groups: Sequence[Mapping[str, Any]] | None = None,
        min_groups: int = 1,
        seed: int = 0,
    ) -> None:
        if steps < 1:
            raise ValueError(f"steps must be >= 1, got {steps!r}")
        if min_groups < 0:
            raise ValueError(f"min_groups must be >= 0, got {min_groups!r}")
        self.steps, self.schedule, self.min_groups, self.seed = steps, schedule, min_groups, seed
        self._model, self._opt = bare_model(model), bare_optimizer(opt)
        self._wrapped = None if self._model is model else model
        """The network as it is to be called, if it was given so."""
        self._params, self._layers = ranked_weights(
            self._model, self._opt, groups, sharded=self.takes_shards
        )
        self._sharded = is_sharded(self._model)
        self._per_layer: bool | None = None
        self._prices: dict[str, float] = {}
        """By layer, what the size of its weights is divided by before layers are compared."""
        self._ranks: list[Tensor] | None = None
        """By layer, one number a group."""
        self._step = 0
        self._used = False
        self._drawn: tuple[int, ...] = (WHOLE,)
        self._inputs: deque[Any] = deque(maxlen=_BATCHES)

    def _attach(self) -> None:
        """Follow the optimizer's steps: the last act of a constructor, which may refuse before."""
        self._restriction = Restriction(self._opt)
        self._handle = self._opt.register_step_post_hook(lambda *_: self._after_step())

    def close(self) -> None:
        """Let go of the optimizer."""
        self._restriction.close()
        self._handle.remove()

    # ------------------------------------------------------------------ a step

    @property
    def budgets(self) -> tuple[float, ...]:
        """The densities (or widths) of the last step's networks, the largest first.

        1 is the whole network.
        """
        return tuple(density_of(rank, self.schedule.min_density) for rank in self._drawn)

    @property
    def _progress(self) -> float:
        return self._step / self.steps

    def backward(
        self,
        x: Any,
        loss: Callable[[Any], Tensor],
        *,
        net: nn.Module | None = None,
        weight: float = 1.0,
    ) -> tuple[Any, Tensor]:
        """Forward and backward pass of this step's networks; gradients are added up.

        Args:
            x: the batch, or a tuple of arguments.
            loss: what to make of an output.
            net: the network as it is to be called, if it is wrapped (DistributedDataParallel) and
                was not given so to the constructor.
            weight: factor of all gradients.

        Returns:
            Output and loss of the largest network.
        """
        net = self._wrapped if net is None else net
        if net is None and _processes() > 1 and not self._sharded:
            raise ValueError(
                f"this is one of {_processes()} processes, and the network is not wrapped: each "
                "would train on its own. Give net=, the DistributedDataParallel around it (or the "
                "network itself, if you average gradients of your own accord)"
            )
        self._begin_step()
        self._inputs.append(x)
        return self._passes(x if isinstance(x, tuple) else (x,), loss, net, weight)

    @abstractmethod
    def _passes(
        self,
        arguments: tuple[Any, ...],
        loss: Callable[[Any], Tensor],
        net: nn.Module | None,
        weight: float,
    ) -> tuple[Any, Tensor]:
        """Draw the step's networks and make their passes."""

    def _begin_step(self) -> None:
        self._used = True
        schedule, progress = self.schedule, self._progress
        if progress >= schedule.ramp_start and (
            self._ranks is None
            or (self._step % schedule.rank_every == 0 and progress < schedule.freeze_ranking_at)
        ):
            self._set_ranks(self._ranked())

    def _ranked(self) -> list[Tensor]:
        weights = Whole(self._params) if self._sharded else self._params
        found = scores(weights, self._layers, self._per_layer, self._prices)
        return budget_ranks(found, self._layers, self.schedule.min_density, self.min_groups)

    def _set_ranks(self, ranks: list[Tensor]) -> None:
        self._ranks = ranks

    def _after_step(self) -> None:
        torch.clear_autocast_cache()  # a step within autocast leaves casts of the old weights there
        if self._used:
            self._step += 1
            self._used = False

    # ------------------------------------------------------------------ what came of it

    @property
    def budget_ranks(self) -> dict[str, NDArray[np.uint8]] | None:
        """By layer, the smallest budget that each group is in; ``None`` before the first ranking.

        :class:`PathRecorder` keeps it, so that ``path.mask`` gives the networks that were trained.
        """
        if self._ranks is None:
            return None
        return {
            layer.name: ranks.flatten().cpu().numpy()
            for layer, ranks in zip(self._layers, self._ranks, strict=True)
        }

    def mask(self, density: float) -> Mask:
        """The subnetwork that is trained for a budget, at the nearest of the budgets drawn."""
        if not 0 < density <= 1:
            raise ValueError(f"density must lie in (0, 1], got {density!r}")
        rank = self._rank_for(density)
        return Mask(
            {
                layer.name: layer.expand((ranks <= rank).flatten())
                for layer, ranks in zip(self._layers, self._known_ranks, strict=True)
            }
        )

    @property
    def _known_ranks(self) -> list[Tensor]:
        if self._ranks is None:
            raise RuntimeError("nothing is ranked yet: budgets begin to fall later in training")
        return self._ranks

    def _rank_for(self, density: float) -> int:
        return rank_of(density, self.schedule.min_density)

    def _recalibrated(
        self, net: nn.Module, inputs: Iterable[Any] | None, *, trained: bool
    ) -> nn.Module:
        """A network in evaluation mode with BatchNorm statistics of its own.

        Args:
            net: the network.
            inputs: batches to take them from; by default the last ones that were trained on.
            trained: whether its statistics are its own already; then only ``inputs`` change them.
        """
        net.eval()
        if has_batchnorm(net) and not (trained and inputs is None):
            if inputs is None and not self._inputs:
                raise ValueError(
                    "recalibrate_on must be given: the network has BatchNorm layers, whose "
                    "statistics are another network's, and `backward` has seen no batch to take "
                    "them anew from; pass a DataLoader, or an iterable of batches"
                )
            recalibrate_batchnorm(net, self._inputs if inputs is None else inputs)
        return net

    # ------------------------------------------------------------------ checkpoints

    def state_dict(self) -> dict[str, Tensor]:
        """What a checkpoint must keep."""
        ranks = {
            f"ranks/{n}": torch.tensor(array) for n, array in (self.budget_ranks or {}).items()
        }
        return {"step": torch.tensor(self._step), **ranks}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on from :meth:`state_dict`."""
        ranked = any(key.startswith("ranks/") for key in state)
        ranks = [self._loaded(layer, state) for layer in self._layers] if ranked else None
        self._step, self._ranks = int(state["step"]), None
        if ranks is not None:
            self._set_ranks(ranks)

    def _loaded(self, layer: Layer, state: Mapping[str, Tensor]) -> Tensor:
        saved, p = state.get(f"ranks/{layer.name}"), self._params[layer.name]
        if saved is None or saved.numel() != layer.groups:
            raise ValueError(
                f"the saved ranking does not fit layer {layer.name!r} with {layer.groups} "
                "groups; load it into a run of the same network"
            )
        if layer.group_dim is not None:
            return saved.to(p.device, torch.uint8)
        if is_dtensor(p):
            return saved.to(p.device, torch.uint8).view(p.shape)
        ranks = torch.empty_like(p, dtype=torch.uint8, requires_grad=False)
        return ranks.copy_(saved.view(p.shape))


def _processes() -> int:
    """How many train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1

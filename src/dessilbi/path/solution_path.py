"""The path of Gamma's support through training: what was recorded, and how to read it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from dessilbi.graph.macs import count_macs_per_weight

from . import _path_file
from ._events import EventLog, Events
from ._supports import SupportSequence
from .layers import unknown
from .orders import DEFAULT_ORDER, DEFAULT_SCALE
from .selection import Budget, select
from .stopping import StabilityRule

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray
    from torch import Tensor, nn

    from ._ranking import Ranking
    from ._snapshots import Snapshot
    from .layers import Layer
    from .mask import Mask
    from .orders import Scale
    from .stopping import Distance


class LayerEvents(NamedTuple):
    """What happened to the groups of one layer, in the order of steps."""

    steps: Tensor
    groups: Tensor
    entered: Tensor
    """True for an entry, False for a leave."""


class Norms(NamedTuple):
    """Euclidean norms: by group, or by slice along dim 0 for Lasso layers."""

    W: Tensor
    Gamma: Tensor
    V: Tensor


class SolutionPath:
    """Which groups were in the support of Gamma, and when.

    Step 1 is the first step of the optimizer; a snapshot is an epoch given to
    :meth:`PathRecorder.record`. Group layers are known to the step, Lasso layers from snapshot to
    snapshot. Nothing here needs the model.
    """

    def __init__(
        self,
        layers: Iterable[Layer],
        *,
        step: int = 0,
        events: EventLog | None = None,
        supports: SupportSequence | None = None,
        snapshots: Sequence[Snapshot] = (),
        ranking: Ranking | None = None,
    ) -> None:
        self.layers: tuple[Layer, ...] = tuple(layers)
        self.step = step
        """Steps recorded so far."""
        self.groups = sum(layer.groups for layer in self.layers)
        self.event_log = events or EventLog()
        self.supports = supports or SupportSequence(self.groups)
        self.snapshots = list(snapshots)
        self.ranking = ranking
        """Of the last snapshot; ``None`` without one, or if it was cut off."""

    def __repr__(self) -> str:
        return (
            f"SolutionPath({len(self.layers)} layers, {self.groups} groups, step {self.step}, "
            f"{len(self.snapshots)} recorded epochs)"
        )

    # ------------------------------------------------------------------ reading

    @property
    def epochs(self) -> tuple[int, ...]:
        """The recorded epochs."""
        return tuple(snapshot.epoch for snapshot in self.snapshots)

    def layer(self, name: str) -> Layer:
        """A layer by its name."""
        for layer in self.layers:
            if layer.name == name:
                return layer
        raise ValueError(unknown("layer", name, (layer.name for layer in self.layers)))

    def support(self, epoch: int) -> dict[str, Tensor]:
        """The support of Gamma at a recorded epoch, shaped as the weights."""
        bits = torch.from_numpy(self.supports.at(self._index(epoch)))
        return {layer.name: layer.expand(bits[layer.slice]) for layer in self.layers}

    def events(self, layer: str) -> LayerEvents:
        """Entries and leaves of a layer's groups.

        Exact to the step for group layers. For Lasso layers the step is that of the snapshot at
        which a change was first seen; what came and went between two of them is not seen.
        """
        found = self.layer(layer)
        events = self.changes([found])
        local = events.groups - found.offset
        arrays = (events.steps.astype(np.int64), local.astype(np.int64), events.entered)
        return LayerEvents(*(torch.from_numpy(a.copy()) for a in arrays))

    def entry_steps(self, layer: str) -> Tensor:
        """Step at which each group first entered; -1 if never. See :meth:`events`."""
        found = self.layer(layer)
        return torch.from_numpy(self.changes([found]).first_entries(self.groups)[found.slice])

    def changes(self, layers: Sequence[Layer]) -> Events:
        """Events of some layers, groups numbered through all layers."""
        wanted = np.zeros(self.groups, dtype=np.bool_)
        for layer in layers:
            wanted[layer.slice] = layer.exact
        exact = self.event_log.all()
        parts = [exact.where(wanted[exact.groups])]
        for layer in layers:
            wanted[layer.slice] = not layer.exact
        if wanted.any() and not all(layer.exact for layer in layers):
            parts += self._changes_between_snapshots(wanted)
        return Events(*(np.concatenate(column) for column in zip(*parts, strict=True)))

    def _changes_between_snapshots(self, wanted: NDArray[np.bool_]) -> list[Events]:
        inside = np.zeros(self.groups, dtype=np.bool_)
        parts = []
        for i, snapshot in enumerate(self.snapshots):
            flips = self.supports.flips(i)
            flips = flips[wanted[flips]]
            inside[flips] ^= True
            steps = np.full(len(flips), snapshot.step, dtype=np.int32)
            parts.append(Events(steps, flips.astype(np.int32), inside[flips]))
        return parts

    def norms(self, epoch: int, layer: str) -> Norms:
        """Norms of W, Gamma and V at an epoch: by group, for the Lasso by slice of dim 0."""
        found, norms = self.layer(layer), self.snapshot(epoch).norms
        start = sum(other.rows for other in self.layers[: self.layers.index(found)])
        return Norms(*torch.from_numpy(norms[:, start : start + found.rows].copy()))

    def density(self, epoch: int, layer: str | None = None) -> float:
        """Fraction of weights in the support: of a layer, or of all weights with a twin."""
        chosen = self._chosen(layer)
        total = sum(self.layers[i].numel for i in chosen)
        counts = self.snapshot(epoch).counts
        return int(counts[chosen].sum()) / total if total else 0.0

    def gap(self, epoch: int, layer: str | None = None) -> float:
        """The coupling gap ``||W - Gamma||`` at a recorded epoch."""
        return math.sqrt(self.snapshot(epoch).gap[self._chosen(layer)].sum())

    def loss(self, epoch: int) -> float | None:
        """The loss that was given for a recorded epoch, if any."""
        loss = self.snapshot(epoch).loss
        return None if math.isnan(loss) else loss

    def augmented_loss(self, epoch: int) -> float | None:
        """The paper's ``L(W) + ||W - Gamma||^2 / (2 nu)``; ``None`` if no loss was given."""
        loss = self.loss(epoch)
        coupling = float(self.snapshot(epoch).coupling.sum())
        return None if loss is None else loss + coupling

    def snapshot(self, epoch: int) -> Snapshot:
        """What was measured at a recorded epoch."""
        return self.snapshots[self._index(epoch)]

    def _index(self, epoch: int) -> int:
        if epoch not in self.epochs:
            recorded = ", ".join(map(str, self.epochs)) or "none"
            raise ValueError(f"epoch {epoch!r} was not recorded; recorded epochs: {recorded}")
        return self.epochs.index(epoch)

    def _chosen(self, layer: str | None) -> list[int]:
        return [self.layers.index(one) for one in ([self.layer(layer)] if layer else self.layers)]

    # ------------------------------------------------------------------ selection

    def mask(
        self,
        epoch: int | None = None,
        *,
        density: float | None = None,
        parameters: int | None = None,
        macs: float | None = None,
        macs_per_weight: Mapping[str, float] | None = None,
        model: nn.Module | None = None,
        example_input: Any = None,
        per_layer: float | Mapping[str, float] | None = None,
        order: str | None = None,
        scale: Scale = DEFAULT_SCALE,
        min_groups: int | Mapping[str, int] | None = None,
        layers: Sequence[str] | None = None,
    ) -> Mask:
        """The support at a recorded epoch, or the best groups that a budget allows.

        A budget takes a prefix of one fixed ranking, so that a smaller budget gives a subset of a
        larger one, whatever its unit. The prefix ends at the first group that does not fit: the
        budget is never exceeded, but for ``min_groups``.

        A run by width (NestedWidths) trained certain networks and nothing between them. There a
        budget gives the largest of these that fits, and ``min_groups`` at least the smallest, which
        holds every layer that cannot be made narrower.

        Args:
            epoch: a recorded epoch: its support as it was.
            density: budget as a fraction of the weights.
            parameters: budget as a number of weights.
            macs: budget in multiply-adds, for one example; they are counted by following
                ``example_input`` through ``model``, or given as ``macs_per_weight``.
            macs_per_weight: the multiply-adds that one weight of a layer takes part in, by layer,
                as :func:`count_macs_per_weight` counts them.
            model: the network, for ``macs``; its weights do not matter.
            example_input: a batch, or a tuple of arguments whose first is one, for ``macs``.
            per_layer: density by layer (or one for every layer). Layers that it does not name share
                ``density``, ``parameters`` or ``macs``, which then count those layers only.
            order: how groups are ranked, a name in :data:`ORDERS`; :attr:`default_order` if not
                given.
            scale: how strengths of different layers are compared, a name in :data:`SCALES`.
            min_groups: least number of groups of a layer that are kept, over the budget if need be:
                one number for all or by layer. 1 for budgets, so that no layer vanishes and cuts
                the network in two; 0 for ``epoch``.
            layers: the layers to choose from, all by default; the others are not in the mask, and
                densities count these layers only.
        """
        if model is not None or example_input is not None:
            if model is None or example_input is None or macs is None or macs_per_weight:
                raise ValueError(
                    "model and example_input count what macs= compares: give both, and macs, and "
                    "no macs_per_weight"
                )
            macs_per_weight = count_macs_per_weight(model, example_input)
        budget = Budget(epoch, density, parameters, macs, macs_per_weight, per_layer)
        order = self.default_order if order is None else order
        return select(self, budget, order=order, scale=scale, min_groups=min_groups, layers=layers)

    @property
    def default_order(self) -> str:
        """``"nested"`` for a nested run, whose budgets were trained; else :data:`DEFAULT_ORDER`."""
        nested = self.ranking is not None and self.ranking.budget_ranks is not None
        return "nested" if nested else DEFAULT_ORDER

    def stable_epoch(
        self, window: int = 5, tolerance: float = 0.1, distance: Distance = "jaccard"
    ) -> int | None:
        """The first recorded epoch at which the support has settled; ``None`` if it has not.

        What :class:`StabilityRule` says when it is shown the recorded supports one after another.
        """
        rule = StabilityRule(window, tolerance, distance)
        sizes = {layer.name: layer.group_size for layer in self.layers}
        for place, epoch in enumerate(self.epochs):
            # By group: a byte for every weight would be slow, and large, for a large network.
            bits = torch.from_numpy(self.supports.at(place))
            if rule.update({layer.name: bits[layer.slice] for layer in self.layers}, sizes):
                return epoch
        return None

    # ------------------------------------------------------------------ keeping

    def truncated(self, step: int | None = None, epoch: int | None = None) -> SolutionPath:
        """A copy without what came after a step or an epoch: the path as a checkpoint knows it.

        Args:
            step: the last step to keep; by default that of the last snapshot kept, or all of them
                if no epoch is given either.
            epoch: the last recorded epoch to keep.
        """
        if step is None:
            step = self.step
            if epoch is not None:
                step = max((m.step for m in self.snapshots if m.epoch <= epoch), default=0)
        if not 0 <= step <= self.step:
            raise ValueError(
                f"step must be from 0 to {self.step}, where this path ends, got {step}; save the "
                "path before the checkpoint that is to continue it"
            )
        snapshots = [
            m for m in self.snapshots if m.step <= step and (epoch is None or m.epoch <= epoch)
        ]
        whole = len(snapshots) == len(self.snapshots)
        return SolutionPath(
            self.layers,
            step=step,
            events=self.event_log.up_to(step),
            supports=self.supports.first(len(snapshots)),
            snapshots=snapshots,
            ranking=self.ranking if whole else None,
        )

    def save(self, file: str | Path) -> int:
        """Write the path to one safetensors file, whole or not at all; returns its size."""
        return _path_file.write(self, file)

    @classmethod
    def load(cls, file: str | Path) -> SolutionPath:
        """Read a path; raises :class:`FormatError` for a damaged, foreign or newer file."""
        return cls(**_path_file.read(file))

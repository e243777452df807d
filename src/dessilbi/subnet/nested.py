"""Train once, ship any size: each step trains the subnetwork of a budget drawn for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from dessilbi.optim._keep import Keeper

from .levels import FULL, density_of, level_of
from .nesting import Nesting

if TYPE_CHECKING:
    from torch import Tensor, nn

    from dessilbi.optim import DessiLBI


class NestedTraining(Nesting):
    """Trains a network whose subnetworks, one for every budget, are good without retraining.

    Every step draws a budget and trains the subnetwork that the ranking of the weights gives for
    it: forward and backward pass see the other weights as zero, and only the weights of the
    subnetwork move, while DessiLBI's coupling with Gamma acts on all. Smaller subnetworks are parts
    of larger ones, and ``path.mask(density=...)`` reads off any of them.

    The whole network is trained first; then the smallest budget to be drawn falls, as in gradual
    pruning, and stays at ``lowest``. Between it and ``highest`` budgets are spread evenly in their
    logarithm, large and small ones in turn. Groups are ranked by the size of their weights, anew
    every so often until the ranking settles.

    Budgets count weights with a twin; what has none (by default biases and BatchNorm; a classifier
    that :func:`split_parameters` excludes) belongs to every subnetwork. A layer is ranked by
    element or by filter, as its penalty says. BatchNorm statistics follow the whole network; take
    them anew for a subnetwork (:func:`recalibrate_batchnorm`).

    Args:
        model: the network.
        opt: its optimizer.
        steps: optimizer steps of the whole training.
        lowest: the smallest budget, as a fraction of the weights.
        highest: the largest budget beside the whole network, once ``lowest`` is
            reached. Single weights beyond 0.3 add little and need no steps of their own; filters
            do.
        begin: when budgets begin to fall, as a fraction of the training.
        descended: when they reach ``lowest``.
        settled: when the ranking is fixed.
        full: fraction of steps that train the whole network, beside the drawn ones.
        tilt: above 1, large budgets are drawn more often than small ones, below 1 less often; at 1
            they are spread evenly in their logarithm.
        refresh: steps between two rankings.
        floor: groups of each layer that are in every subnetwork.
        uniform: whether every layer keeps the same fraction of its groups; by default if there are
            filters. Otherwise groups of all layers are compared by the root mean square of their
            weights.
        seed: where the sequence of budgets begins. A budget depends on it and the number of the
            step only: processes of a distributed run agree, and a resumed run goes on as if it had
            not stopped.

    Example:
        >>> nested = NestedTraining(model, opt, steps=epochs * len(loader))
        >>> for x, y in loader:
        ...     opt.zero_grad()
        ...     with nested:
        ...         cross_entropy(model(x), y).backward()
        ...     opt.step()
    """

    def __init__(
        self,
        model: nn.Module,
        opt: DessiLBI,
        steps: int,
        *,
        lowest: float = 0.004,
        highest: float = 1.0,
        begin: float = 1 / 12,
        descended: float = 0.25,
        settled: float = 0.6,
        full: float = 0.05,
        tilt: float = 1.0,
        refresh: int = 100,
        floor: int = 1,
        uniform: bool | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(
            model, opt, steps, lowest=lowest, highest=highest, begin=begin, descended=descended,
            settled=settled, full=full, tilt=tilt, refresh=refresh, floor=floor, uniform=uniform,
            seed=seed,
        )  # fmt: skip
        self._norms = [
            m for m in model.modules() if isinstance(m, _BatchNorm) and m.track_running_stats
        ]
        self._native = any(group["fused"] for group in opt.param_groups)
        self._level = FULL
        self._keepers: list[tuple[Tensor, Keeper]] = []
        self._moves: dict[Tensor, Tensor] = {}
        self._dense: list[tuple[Tensor, Tensor]] = []
        self._resting: list[tuple[_BatchNorm, float | None, Tensor]] = []
        """BatchNorm layers that remember nothing now: their momentum and number of batches."""
        self._open = False
        self._attach()

    def _attach(self) -> None:
        super()._attach()
        self._guard = self._opt.register_step_pre_hook(lambda *_: self._refuse_within())

    def close(self) -> None:
        """Let go of the optimizer."""
        super().close()
        self._guard.remove()

    # ------------------------------------------------------------------ a step

    def _refuse_within(self) -> None:
        # Also where the whole network is in place: else a run would fail late, at its first budget.
        if self._open:
            raise RuntimeError(
                "leave the `with` before opt.step(): a step within it would move the subnetwork's "
                "copy of the weights, and be lost"
            )

    def __enter__(self) -> NestedTraining:
        if self._open:
            raise RuntimeError(
                "the subnetwork of this step is in place already; do not nest `with`"
            )
        self._open = self._used = True
        self._rank_if_due()
        self._level = self._drawn()
        if self._level < FULL:
            self._put_in_place()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._open, masked = False, bool(self._dense)
        for p, dense in self._dense:
            p.data = dense
        for norm, momentum, batches in self._resting:
            norm.momentum = momentum
            norm.get_buffer("num_batches_tracked").copy_(batches)
        self._dense, self._resting = [], []
        if kind is None and masked:
            for p, keeper in self._keepers:
                if p.grad is not None:  # what was not there has no gradient, for clipping as well
                    keeper.gradient(p.grad, self._level)
            self._opt.restrict(self._moves)

    def _ranked(self, levels: list[Tensor]) -> None:
        super()._ranked(levels)
        self._keepers = []
        for layer, level in zip(self._layers, levels, strict=True):
            p = self._params[layer.name]
            by_weight = level
            if layer.group_dim is not None:
                by_weight = torch.empty_like(p, dtype=torch.uint8, requires_grad=False)
                by_weight.copy_(layer.expand(level))
            self._keepers.append((p, Keeper(by_weight, native=self._native)))
        self._moves = {p: keeper.inside for p, keeper in self._keepers}

    @property
    def budget(self) -> float:
        """The density that the last step under way was drawn at; 1 is the whole network."""
        return density_of(self._level, self.lowest)

    def _drawn(self) -> int:
        """The level of this step, a function of seed and step alone."""
        if self._progress < self.begin:
            return FULL
        place = self._place()
        if place < self.full:
            return FULL
        place = ((place - self.full) / (1 - self.full)) ** self.tilt
        smallest = self._smallest()
        largest = self.highest if self._progress >= self.descended else 1.0
        return level_of(largest * (smallest / largest) ** place, self.lowest)

    def _put_in_place(self) -> None:
        for p, keeper in self._keepers:
            dense = p.data
            self._dense.append((p, dense))
            p.data = keeper.weights(dense, self._level)
        if self.full > 0:  # else nothing would teach BatchNorm any statistics
            for norm in self._norms:
                # A cumulative average, momentum=None, divides by the number of batches.
                batches = norm.get_buffer("num_batches_tracked").clone()
                self._resting.append((norm, norm.momentum, batches))
                norm.momentum = 0.0

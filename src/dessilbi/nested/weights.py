"""Train once, ship any size: each step trains the subnetwork of a budget drawn for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from dessilbi.optim._keep import Keeper

from .levels import FULL, density_of, level_of
from .passes import Run, SubnetPasses
from .schedule import Nesting

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

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

    ``with nested:`` around forward and backward pass trains one budget a step. :meth:`backward`
    makes the passes itself and, once ``lowest`` is reached, trains several, each from a part of its
    own of the budgets (three parts of 0.004 to 0.3 meet at 0.017 and 0.071), and in a fraction
    ``full`` of the steps the whole network as well. On a CPU with a C++ compiler subnetworks cost
    about what their weights do, and all of them together no more than a plain step; elsewhere each
    costs a pass of its own.

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
        full: fraction of steps that train the whole network; beside the drawn ones if there are
            several a step, else instead.
        networks: how many budgets :meth:`backward` trains in a step, beside the whole network; with
            1 it draws one from all of them, as ``with nested:`` does. By default 3, and 2 if there
            are filters: those that are only masked cost most of a plain pass
            (:class:`NestedWidths` serves them better).
        tilt: above 1, large budgets are drawn more often than small ones, below 1 less often; at 1
            they are spread evenly in their logarithm.
        refresh: steps between two rankings.
        floor: groups of each layer that are in every subnetwork.
        uniform: whether every layer keeps the same fraction of its groups; by default if there are
            filters. Otherwise groups of all layers are compared by the root mean square of their
            weights.
        macs: by weight tensor, the multiply-adds of one of its weights, as
            ``dessilbi.path.count_macs_per_weight(model, example_input)`` counts them; for
            ``thrift``.
        thrift: weights of all layers are compared by size / multiply-adds ** thrift. At 0 budgets
            of weights are served best; at 0.25, budgets of multiply-adds: a convolution's weights
            are used at every pixel. Not where every layer keeps the same fraction.
        seed: where the sequence of budgets begins. A budget depends on it and the number of the
            step only: processes of a distributed run agree, and a resumed run goes on as if it had
            not stopped.

    Example:
        >>> nested = NestedTraining(model, opt, steps=epochs * len(loader))
        >>> for x, y in loader:
        ...     opt.zero_grad()
        ...     nested.backward(x, lambda output: cross_entropy(output, y))
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
        networks: int | None = None,
        tilt: float = 1.0,
        refresh: int = 100,
        floor: int = 1,
        uniform: bool | None = None,
        macs: Mapping[str, float] | None = None,
        thrift: float = 0.0,
        seed: int = 0,
    ) -> None:
        super().__init__(
            model, opt, steps, lowest=lowest, highest=highest, begin=begin, descended=descended,
            settled=settled, full=full, tilt=tilt, refresh=refresh, floor=floor, uniform=uniform,
            seed=seed,
        )  # fmt: skip
        if networks is not None and networks < 1:
            raise ValueError(f"networks must be >= 1, got {networks!r}")
        filters = any(layer.group_dim is not None for layer in self._layers)
        self.networks = networks or (2 if filters else 3)
        self.thrift = thrift
        if not thrift >= 0:
            raise ValueError(f"thrift must be >= 0, got {thrift!r}")
        if thrift > 0:
            if macs is None:
                raise ValueError("thrift needs macs: count_macs_per_weight(model, example_input)")
            if filters if uniform is None else uniform:
                raise ValueError(
                    f"thrift compares layers, got {thrift!r} where every layer keeps the same "
                    "fraction; leave it out, or give uniform=False"
                )
            self._prices = {name: count**thrift for name, count in macs.items()}
        self._steps = _spread(self.networks + 1)
        """By network of a step, the whole one last, how far apart its places in two steps are."""
        self._model = model
        self._norms = [
            m for m in model.modules() if isinstance(m, _BatchNorm) and m.track_running_stats
        ]
        self._native = any(group["fused"] for group in opt.param_groups)
        self._levels_drawn: tuple[int, ...] = (FULL,)
        self._keepers: dict[Tensor, Keeper] = {}
        self._passes = SubnetPasses(model, {})
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
        self._begin_step()
        self._levels_drawn = (self._drawn(),)
        self._enter(self._levels_drawn[0])
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._leave(self._levels_drawn[0], done=kind is None)

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
            net: the network as it is to be called, if it is wrapped (DistributedDataParallel).
            weight: factor of all gradients.

        Returns:
            Output and loss of the largest network.
        """
        self._begin_step()
        self._levels_drawn = self._several_drawn()
        run = Run.make(x, loss, weight, net)
        large, *small = self._levels_drawn
        for level in small:
            self._apart(level, run)
        self._enter(large)
        done = False
        try:
            found = run.through(self._model if net is None else net)
            done = True
        finally:
            self._leave(large, done=done)
        return found

    def _apart(self, level: int, run: Run) -> tuple[Any, Tensor]:
        """A pass that adds its own gradients only: those of the step's other networks stay."""
        self._open = True
        try:
            self._rest_norms()
            self._put_in_place(level)
            return self._passes.masked(level, run)
        finally:
            self._leave(level, done=False)

    def _begin_step(self) -> None:
        if self._open:
            raise RuntimeError(
                "the subnetwork of this step is in place already; do not nest `with`"
            )
        self._used = True
        self._rank_if_due()

    def _enter(self, level: int) -> None:
        self._open = True
        if level < FULL:
            self._rest_norms()
            self._put_in_place(level)

    def _leave(self, level: int, *, done: bool) -> None:
        self._open, masked = False, bool(self._dense)
        for p, dense in self._dense:
            p.data = dense
        for norm, momentum, batches in self._resting:
            norm.momentum = momentum
            norm.get_buffer("num_batches_tracked").copy_(batches)
        self._dense, self._resting = [], []
        if done and masked:
            for p, keeper in self._keepers.items():
                if p.grad is not None:  # what was not there has no gradient, for clipping as well
                    keeper.gradient(p.grad, level)
        if done:
            self._opt.restrict(self._moves if masked else {})

    def _ranked(self, levels: list[Tensor]) -> None:
        super()._ranked(levels)
        self._keepers = {}
        for layer, level in zip(self._layers, levels, strict=True):
            p = self._params[layer.name]
            by_weight = level
            if layer.group_dim is not None:
                by_weight = torch.empty_like(p, dtype=torch.uint8, requires_grad=False)
                by_weight.copy_(layer.expand(level))
            self._keepers[p] = Keeper(by_weight, native=self._native)
        self._moves = {p: keeper.inside for p, keeper in self._keepers.items()}
        self._passes = SubnetPasses(self._model, self._keepers)

    @property
    def budget(self) -> float:
        """The density that the last step was drawn at, its largest; 1 is the whole network."""
        return self.budgets[0]

    @property
    def budgets(self) -> tuple[float, ...]:
        """The densities of the last step's networks, the largest first."""
        return tuple(density_of(level, self.lowest) for level in self._levels_drawn)

    def _drawn(self) -> int:
        """The level of this step, a function of seed and step alone."""
        return self._between(self._smallest())

    def _several_drawn(self) -> tuple[int, ...]:
        """The levels of this step, the largest first."""
        if self.networks == 1 or self._progress < self.descended:
            return (self._drawn(),)
        part = (self.lowest / self.highest) ** (1 / self.networks)
        levels = {
            level_of(self.highest * part ** (k + self._place(apart) ** self.tilt), self.lowest)
            for k, apart in enumerate(self._steps[:-1])
        }
        if self._place(self._steps[-1]) < self.full:
            levels.add(FULL)
        return tuple(sorted(levels, reverse=True))

    def _between(self, smallest: float) -> int:
        """A level from the largest budget down to a smallest."""
        if self._progress < self.begin:
            return FULL
        place = self._place()
        if place < self.full:
            return FULL
        place = ((place - self.full) / (1 - self.full)) ** self.tilt
        largest = self.highest if self._progress >= self.descended else 1.0
        return level_of(largest * (smallest / largest) ** place, self.lowest)

    def _put_in_place(self, level: int) -> None:
        for p, keeper in self._keepers.items():
            dense = p.data
            self._dense.append((p, dense))
            p.data = keeper.weights(dense, level)

    def _rest_norms(self) -> None:
        if self.full > 0:  # else nothing would teach BatchNorm any statistics
            for norm in self._norms:
                # A cumulative average, momentum=None, divides by the number of batches.
                batches = norm.get_buffer("num_batches_tracked").clone()
                self._resting.append((norm, norm.momentum, batches))
                norm.momentum = 0.0


def _spread(count: int) -> list[float]:
    """Irrational numbers whose multiples, modulo 1 and taken together, fall evenly into a cube."""
    root = 2.0
    for _ in range(60):  # of x ** (count + 1) == x + 1: the golden ratio, and its like
        root = (1 + root) ** (1 / (count + 1))
    return [root ** -(k + 1) for k in range(count)]

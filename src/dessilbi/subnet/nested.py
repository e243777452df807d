"""Train once, ship any size: each step trains the subnetwork of a budget drawn for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from dessilbi.optim._keep import keep
from dessilbi.path import Mask
from dessilbi.path._twins import layers_of, twins_by_name

from .levels import FULL, density_of, level_of, rank
from .scores import scores

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor, nn

    from dessilbi.optim import DessiLBI
    from dessilbi.path import Layer


# Multiples of the golden ratio, modulo 1, fall evenly: any ten steps in a row, which is as far as
# momentum remembers, see budgets of all sizes. Another irrational number moves the start by seed.
_GOLDEN, _PLASTIC = 0.6180339887498949, 0.7548776662466927


class NestedTraining:
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
        _check(steps, lowest, highest, begin, descended, settled, full, tilt, refresh, floor)
        self.steps, self.full, self.tilt, self.seed = steps, full, tilt, seed
        self.lowest, self.highest = lowest, highest
        self.begin, self.descended, self.settled = begin, descended, settled
        self.refresh, self.floor, self.uniform = refresh, floor, uniform
        self._opt = opt
        self._params = twins_by_name(model, opt)
        self._layers = layers_of(opt, self._params)
        self._norms = [m for m in model.modules() if isinstance(m, _BatchNorm)]
        self._masked = {name: torch.empty_like(p) for name, p in self._params.items()}
        self._moves = {n: torch.empty_like(p, dtype=torch.bool) for n, p in self._params.items()}
        self._levels: list[Tensor] | None = None
        """By layer, one number a group."""
        self._by_weight = {
            name: torch.empty_like(p, dtype=torch.uint8) for name, p in self._params.items()
        }
        self._native = any(group["fused"] for group in opt.param_groups)
        self._step = 0
        self._level = FULL
        self._dense: list[tuple[Tensor, Tensor]] = []
        self._momenta: list[float | None] = []
        self._open = self._used = False
        self._handle = opt.register_step_post_hook(lambda *_: self._after_step())

    # ------------------------------------------------------------------ a step

    def __enter__(self) -> NestedTraining:
        if self._open:
            raise RuntimeError(
                "the subnetwork of this step is in place already; do not nest `with`"
            )
        self._open = self._used = True
        progress = self._step / self.steps
        if progress >= self.begin and (
            self._levels is None or (self._step % self.refresh == 0 and progress < self.settled)
        ):
            found = scores(self._params, self._layers, self.uniform)
            self._ranked(rank(found, self._layers, self.lowest, self.floor))
        self._level = self._drawn(progress)
        if self._level < FULL:
            self._put_in_place()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._open, masked = False, bool(self._dense)
        for p, dense in self._dense:
            p.data = dense
        for norm, momentum in zip(self._norms, self._momenta, strict=False):
            norm.momentum = momentum
        self._dense, self._momenta = [], []
        if kind is None and masked:
            for name, p in self._params.items():
                if p.grad is not None:  # what was not there has no gradient, for clipping as well
                    levels, level = self._by_weight[name], self._level
                    keep(p.grad, levels, level, out=p.grad, inside=None, native=self._native)
            self._opt.restrict({self._params[name]: w for name, w in self._moves.items()})

    def _ranked(self, levels: list[Tensor]) -> None:
        self._levels = levels
        for layer, level in zip(self._layers, levels, strict=True):
            if layer.group_dim is None:
                self._by_weight[layer.name] = level
            else:
                self._by_weight[layer.name].copy_(layer.expand(level))

    @property
    def budget(self) -> float:
        """The density that the last step under way was drawn at; 1 is the whole network."""
        return density_of(self._level, self.lowest)

    def _drawn(self, progress: float) -> int:
        """The level of this step, a function of seed and step alone."""
        if progress < self.begin:
            return FULL
        place = (self.seed * _PLASTIC + self._step * _GOLDEN) % 1
        if place < self.full:
            return FULL
        place = ((place - self.full) / (1 - self.full)) ** self.tilt
        smallest, largest = self.lowest, self.highest
        if progress < self.descended:
            left = 1 - (progress - self.begin) / (self.descended - self.begin)
            smallest, largest = self.lowest + (1 - self.lowest) * left**3, 1.0
        return level_of(largest * (smallest / largest) ** place, self.lowest)

    @torch.no_grad()
    def _put_in_place(self) -> None:
        for name, p in self._params.items():
            levels, masked, moves = self._by_weight[name], self._masked[name], self._moves[name]
            keep(p.data, levels, self._level, out=masked, inside=moves, native=self._native)
            self._dense.append((p, p.data))
            p.data = masked
        if self.full > 0:  # else nothing would teach BatchNorm any statistics
            self._momenta = [norm.momentum for norm in self._norms]
            for norm in self._norms:
                norm.momentum = 0.0

    def _after_step(self) -> None:
        if self._used:
            self._step += 1
            self._used = False
            self._opt.restrict({})

    # ------------------------------------------------------------------ what came of it

    @property
    def levels(self) -> dict[str, NDArray[np.uint8]] | None:
        """The ranking for :meth:`PathRecorder.record`; ``None`` before the first."""
        if self._levels is None:
            return None
        return {
            layer.name: levels.flatten().cpu().numpy()
            for layer, levels in zip(self._layers, self._levels, strict=True)
        }

    def mask(self, density: float) -> Mask:
        """The subnetwork that is trained for a budget, at the nearest of the budgets drawn."""
        if not 0 < density <= 1:
            raise ValueError(f"density must lie in (0, 1], got {density!r}")
        if self._levels is None:
            raise RuntimeError("nothing is ranked yet: budgets begin to fall later in training")
        level = level_of(density, self.lowest)
        return Mask(
            {
                layer.name: layer.expand((levels <= level).flatten())
                for layer, levels in zip(self._layers, self._levels, strict=True)
            }
        )

    def state_dict(self) -> dict[str, Tensor]:
        """What a checkpoint must keep: the number of steps and the ranking."""
        ranking = {} if self._levels is None else self.levels
        assert ranking is not None
        levels = {f"levels.{name}": torch.tensor(array) for name, array in ranking.items()}
        return {"step": torch.tensor(self._step), **levels}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on from :meth:`state_dict`."""
        self._step, self._levels = int(state["step"]), None
        if len(state) > 1:
            self._ranked([self._loaded(layer, state) for layer in self._layers])

    def _loaded(self, layer: Layer, state: Mapping[str, Tensor]) -> Tensor:
        saved, p = state.get(f"levels.{layer.name}"), self._params[layer.name]
        if saved is None or saved.numel() != layer.groups:
            raise ValueError(
                f"the saved ranking does not fit layer {layer.name!r} with {layer.groups} "
                "groups; load it into a run of the same network"
            )
        if layer.group_dim is not None:
            return saved.to(p.device, torch.uint8)
        return torch.empty_like(p, dtype=torch.uint8).copy_(saved.view(p.shape))

    def close(self) -> None:
        """Let go of the optimizer."""
        self._handle.remove()
        self._opt.restrict({})


def _check(
    steps: int,
    lowest: float,
    highest: float,
    begin: float,
    descended: float,
    settled: float,
    full: float,
    tilt: float,
    refresh: int,
    floor: int,
) -> None:
    for rule, holds in {
        f"steps must be >= 1, got {steps!r}": steps >= 1,
        f"lowest must lie in (0, 1), got {lowest!r}": 0 < lowest < 1,
        f"highest must lie in [lowest, 1], got {highest!r}": lowest <= highest <= 1,
        f"begin must lie in [0, 1], got {begin!r}": 0 <= begin <= 1,
        f"descended must lie in [begin, 1], got {descended!r}": begin <= descended <= 1,
        f"settled must be >= begin, got {settled!r}": settled >= begin,
        f"full must lie in [0, 1], got {full!r}": 0 <= full <= 1,
        f"tilt must be > 0, got {tilt!r}": tilt > 0,
        f"refresh must be >= 1, got {refresh!r}": refresh >= 1,
        f"floor must be >= 0, got {floor!r}": floor >= 0,
    }.items():
        if not holds:
            raise ValueError(rule)

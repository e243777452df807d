"""What the ways of nested training share: a schedule of budgets and a ranking of the groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from dessilbi.path import Mask
from dessilbi.path.twins import layers_of, twins_by_name
from dessilbi.subnet.scores import scores

from .levels import level_of, rank

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
SECOND = 0.5698402909980532
"""For the second network of a step, so that the two are drawn apart."""


class Nesting:
    """Which groups belong to which budget, and which budgets a step may draw.

    The options are those of :class:`NestedTraining`.
    """

    def __init__(
        self,
        model: nn.Module,
        opt: DessiLBI,
        steps: int,
        *,
        lowest: float,
        highest: float,
        begin: float,
        descended: float,
        settled: float,
        full: float,
        tilt: float,
        refresh: int,
        floor: int,
        uniform: bool | None,
        seed: int,
    ) -> None:
        self.steps, self.full, self.tilt, self.seed = steps, full, tilt, seed
        self.lowest, self.highest = lowest, highest
        self.begin, self.descended, self.settled = begin, descended, settled
        self.refresh, self.floor, self.uniform = refresh, floor, uniform
        _check(self)
        self._opt = opt
        self._params = twins_by_name(model, opt)
        self._layers = layers_of(opt, self._params)
        self._prices: dict[str, float] = {}
        """By layer, what the size of its weights is divided by before layers are compared."""
        self._levels: list[Tensor] | None = None
        """By layer, one number a group."""
        self._step = 0
        self._used = False

    def _attach(self) -> None:
        """Follow the optimizer's steps: the last act of a constructor, which may refuse before."""
        self._handle = self._opt.register_step_post_hook(lambda *_: self._after_step())

    # ------------------------------------------------------------------ a step

    @property
    def _progress(self) -> float:
        return self._step / self.steps

    def _rank_if_due(self) -> None:
        if self._progress >= self.begin and (
            self._levels is None
            or (self._step % self.refresh == 0 and self._progress < self.settled)
        ):
            self._ranked(self._ranking())

    def _ranking(self) -> list[Tensor]:
        found = scores(self._params, self._layers, self.uniform, self._prices)
        return rank(found, self._layers, self.lowest, self.floor)

    def _ranked(self, levels: list[Tensor]) -> None:
        self._levels = levels

    def _place(self, irrational: float = _GOLDEN) -> float:
        """A number in [0, 1) for this step, a function of seed and step alone."""
        return (self.seed * _PLASTIC + self._step * irrational) % 1

    def _smallest(self) -> float:
        """The smallest budget that this step may draw."""
        progress = self._progress
        if progress >= self.descended:
            return self.lowest
        left = 1 - (progress - self.begin) / (self.descended - self.begin)
        return self.lowest + (1 - self.lowest) * min(left, 1.0) ** 3

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
        level = self._level_for(density)
        return Mask(
            {
                layer.name: layer.expand((levels <= level).flatten())
                for layer, levels in zip(self._layers, self._levels, strict=True)
            }
        )

    def _level_for(self, density: float) -> int:
        return level_of(density, self.lowest)

    def state_dict(self) -> dict[str, Tensor]:
        """What a checkpoint must keep: the number of steps and the ranking."""
        ranking = {} if self._levels is None else self.levels
        assert ranking is not None
        levels = {f"levels.{name}": torch.tensor(array) for name, array in ranking.items()}
        return {"step": torch.tensor(self._step), **levels}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on from :meth:`state_dict`."""
        self._step, self._levels = int(state["step"]), None
        if len(state) > 1:  # something was ranked
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


def _check(n: Nesting) -> None:
    for rule, holds in {
        f"steps must be >= 1, got {n.steps!r}": n.steps >= 1,
        f"lowest must lie in (0, 1), got {n.lowest!r}": 0 < n.lowest < 1,
        f"highest must lie in [lowest, 1], got {n.highest!r}": n.lowest <= n.highest <= 1,
        f"begin must lie in [0, 1], got {n.begin!r}": 0 <= n.begin <= 1,
        f"descended must lie in [begin, 1], got {n.descended!r}": n.begin <= n.descended <= 1,
        f"settled must be >= begin, got {n.settled!r}": n.settled >= n.begin,
        f"full must lie in [0, 1], got {n.full!r}": 0 <= n.full <= 1,
        f"tilt must be > 0, got {n.tilt!r}": n.tilt > 0,
        f"refresh must be >= 1, got {n.refresh!r}": n.refresh >= 1,
        f"floor must be >= 0, got {n.floor!r}": n.floor >= 0,
    }.items():
        if not holds:
            raise ValueError(rule)

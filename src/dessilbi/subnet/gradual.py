"""Gradual magnitude pruning: the competitor that needs a run for every budget."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from dessilbi.graph.names import named_weights
from dessilbi.optim.hooks import Attached
from dessilbi.path import Mask
from dessilbi.path.layers import tied_sets
from dessilbi.path.mask import most_weights
from dessilbi.path.twins import layers_of_groups

from .project import masked_weights, zero_outside
from .scores import scores

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from torch import Tensor, nn
    from torch.optim import Optimizer

    from dessilbi.path import Layer


class GradualPruning(Attached):
    """Prunes the smallest weights while a network trains, with any optimizer.

    From ``begin`` to ``end`` of the training the density falls from 1 to its target along the cubic
    of Zhu and Gupta (2017), fast at first; every so often the smallest remaining groups are set to
    zero, and held there. With ``begin == end`` all goes at once: prune and fine-tune.

    Args:
        model: the network.
        opt: its optimizer.
        density: the target, as a fraction of the weights that may be pruned.
        steps: optimizer steps of the whole training.
        groups: :func:`split_parameters` of the model: which weights may be pruned, and whether by
            element or by filter.
        begin: when pruning begins, as a fraction of the training.
        end: when the target is reached.
        every: steps between two prunings.
        min_groups: groups of each layer that are kept.
        per_layer: whether every layer keeps the same fraction, as in :class:`NestedTraining`.
    """

    def __init__(
        self,
        model: nn.Module,
        opt: Optimizer,
        density: float,
        steps: int,
        groups: Sequence[Mapping[str, Any]],
        *,
        begin: float = 1 / 12,
        end: float = 2 / 3,
        every: int = 50,
        min_groups: int = 1,
        per_layer: bool | None = None,
    ) -> None:
        for rule, holds in {
            f"density must lie in (0, 1], got {density!r}": 0 < density <= 1,
            f"steps must be >= 1, got {steps!r}": steps >= 1,
            f"begin must lie in [0, 1], got {begin!r}": 0 <= begin <= 1,
            f"end must lie in [begin, 1], got {end!r}": begin <= end <= 1,
            f"every must be >= 1, got {every!r}": every >= 1,
        }.items():
            if not holds:
                raise ValueError(rule)
        self.density, self.steps, self.begin, self.end = density, steps, begin, end
        self.every, self.min_groups, self.per_layer = every, min_groups, per_layer
        self._model = model
        self._layers = layers_of_groups(groups)
        self._step = 0
        self._kept: list[tuple[Tensor, Tensor]] = []
        self.mask: Mask | None = None
        """What is kept now; ``None`` before the first pruning."""
        self._handles = (opt.register_step_post_hook(lambda *_: self._after_step()),)

    def target(self, step: int) -> float:
        """The density that is due after a number of steps."""
        progress = step / self.steps
        if progress < self.begin:
            return 1.0
        done = (progress - self.begin) / (self.end - self.begin) if progress < self.end else 1.0
        return self.density + (1 - self.density) * (1 - done) ** 3

    def _after_step(self) -> None:
        self._step += 1
        before = self.target(self._step - 1) if self._step > 1 else 1.0  # also if begin is 0
        last = before > self.density >= self.target(self._step)
        falling = self._step % self.every == 0 and self.density < self.target(self._step) < 1
        # Before anything is ranked: what was pruned has just been moved by its momentum, and behind
        # a BatchNorm, which divides by a variance of zero, so far that it would be ranked first.
        zero_outside(self._kept)
        if last or falling:
            self._prune(self.target(self._step))

    def _prune(self, density: float) -> None:
        params = named_weights(self._model)
        found = scores(params, self._layers, self.per_layer)
        self._hold(best_groups(found, self._layers, density, self.min_groups))

    def _hold(self, mask: Mask) -> None:
        self.mask, self._kept = mask, masked_weights(self._model, mask)
        zero_outside(self._kept)

    def state_dict(self) -> dict[str, Tensor]:
        """What a checkpoint must keep."""
        kept = {} if self.mask is None else dict(self.mask.tensors)
        return {"step": torch.tensor(self._step), **{f"mask.{n}": t for n, t in kept.items()}}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on from :meth:`state_dict`."""
        self._step = int(state["step"])
        if len(state) > 1:  # in the order of the layers, whatever that of the file is
            self._hold(Mask({layer.name: state[f"mask.{layer.name}"] for layer in self._layers}))


@torch.no_grad()
def best_groups(
    ranking: Sequence[Tensor], layers: Sequence[Layer], density: float, min_groups: int
) -> Mask:
    """The groups with the largest numbers that a density has room for, and each layer's best."""
    by_name = {layer.name: score for layer, score in zip(layers, ranking, strict=True)}
    sets = tied_sets(layers)  # the groups of which are kept or not as one
    flat = [by_name[first.name].flatten().cpu().clone() for first, *_ in sets]
    for score in flat:
        score[score.topk(min(min_groups, len(score))).indices] = torch.inf
    counts = [first.groups for first, *_ in sets]
    sizes = [sum(layer.group_size for layer in tied) for tied in sets]
    cost = torch.repeat_interleave(torch.tensor(sizes), torch.tensor(counts))
    ranked = torch.argsort(torch.cat(flat), descending=True, stable=True)
    room = cost[ranked].cumsum(0) <= most_weights(density, sum(layer.numel for layer in layers))
    kept = torch.cat(flat) == torch.inf
    kept[ranked[room]] = True
    parts = torch.split(kept, counts)
    return Mask(
        {layer.name: layer.expand(p) for tied, p in zip(sets, parts, strict=True) for layer in tied}
    )

"""Gradual pruning: a training that ends with exactly as much of a network as was asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch

from dessilbi.graph.macs import count_macs_per_weight
from dessilbi.graph.names import named_weights
from dessilbi.graph.wrappers import bare_model, bare_optimizer
from dessilbi.optim.hooks import Attached
from dessilbi.optim.twin import TwinOptimizer
from dessilbi.path import Mask
from dessilbi.path.layers import tied_sets
from dessilbi.path.twins import ranked_weights

from .best_groups import best_groups
from .compact_size import CompactSize
from .project import masked_weights, zero_outside
from .scores import rank_shares, scores
from .twin_support import TwinSupport

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from torch import Tensor, nn
    from torch.optim import Optimizer

    from dessilbi.path import Layer


class GradualPruning(Attached):
    """Trains a network to a budget: it is hit to one group, then the rest of the training heals.

    From ``begin`` to ``end`` of the training the size falls from 1 to its target along the cubic of
    Zhu and Gupta (2017), fast at first; every so often the smallest remaining groups are set to
    zero, and held there. With ``begin == end`` all goes at once: prune and fine-tune.

    With an optimizer that has a twin, Gamma is the network that is left, so that ``opt.mask()``,
    a :class:`PathRecorder` and a report show it. The coupling rests, as it costs accuracy here;
    ``by="gamma"`` is the way of the twin: the coupling goes on, the thresholds follow the quantile
    that makes the support of Gamma grow to the target, and there it is frozen.

    Args:
        model: the network.
        opt: its optimizer, any of torch's.
        steps: optimizer steps of the whole training.
        density: the target, as a fraction of the weights that may be pruned. With ``example_input``
            those of the compact network are counted: a filter that leaves takes the weights of the
            next layer along that read it.
        groups: the target, as a fraction of the groups (filters, neurons, single weights).
        macs: the target, as a fraction of the multiply-adds of these layers; needs
            ``example_input``.
        example_input: a batch to follow through the network, or a tuple of arguments whose first is
            one.
        param_groups: :func:`split_parameters` of the model: which weights may be pruned, and
            whether by element or by filter; by default what the optimizer's own groups say.
        by: ``"weights"``, the smallest leave; ``"gamma"``, the first to enter stay.
        begin: when pruning begins, as a fraction of the training.
        end: when the target is reached.
        every: steps between two prunings.
        min_groups: groups of each layer that are kept.
        per_layer: whether every layer keeps the same fraction; by default if there are filters.

    Example:
        >>> model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
        >>> opt = torch.optim.AdamW(split_parameters(model), lr=0.01)
        >>> pruning = GradualPruning(model, opt, steps=60, density=0.25)
        >>> x, y = torch.randn(32, 8), torch.randint(2, (32,))
        >>> for _ in range(60):
        ...     opt.zero_grad()
        ...     nn.functional.cross_entropy(model(x), y).backward()
        ...     opt.step()
        >>> pruning.mask
        Mask(2 tensors, 40 of 160 weights kept)
    """

    def __init__(
        self,
        model: nn.Module,
        opt: Optimizer,
        steps: int,
        *,
        density: float | None = None,
        groups: float | None = None,
        macs: float | None = None,
        example_input: Any = None,
        param_groups: Sequence[Mapping[str, Any]] | None = None,
        by: Literal["weights", "gamma"] = "weights",
        begin: float = 1 / 12,
        end: float = 2 / 3,
        every: int = 50,
        min_groups: int = 1,
        per_layer: bool | None = None,
    ) -> None:
        model, opt = bare_model(model), bare_optimizer(opt)
        budgets = {"density": density, "groups": groups, "macs": macs}
        given = {name: value for name, value in budgets.items() if value is not None}
        if len(given) != 1:
            found = " and ".join(given) or "none"
            raise ValueError(f"give one of density, groups and macs, got {found}")
        ((kind, self.budget),) = given.items()
        for rule, holds in {
            f"{kind} must lie in (0, 1], got {self.budget!r}": 0 < self.budget <= 1,
            f"steps must be >= 1, got {steps!r}": steps >= 1,
            f"begin must lie in [0, 1], got {begin!r}": 0 <= begin <= 1,
            f"end must lie in [begin, 1], got {end!r}": begin <= end <= 1,
            f"every must be >= 1, got {every!r}": every >= 1,
            f"min_groups must be >= 0, got {min_groups!r}": min_groups >= 0,
            f"by must be 'weights' or 'gamma', got {by!r}": by in ("weights", "gamma"),
            "macs needs example_input, a batch that is followed through the network": (
                kind != "macs" or example_input is not None
            ),
        }.items():
            if not holds:
                raise ValueError(rule)
        self.steps, self.begin, self.end, self.every = steps, begin, end, every
        self.by, self.min_groups = by, min_groups
        self._model = model
        self._step = 0
        self._kept: list[tuple[Tensor, Tensor]] = []
        # By parameter, what was pruned as it last was: to fill the budget a group may come back.
        self._pruned: dict[str, Tensor] = {}
        self.mask: Mask | None = None
        """What is kept now; ``None`` before the first pruning."""
        self._params, self._layers = ranked_weights(model, opt, param_groups)
        self.per_layer = (
            any(layer.exact for layer in self._layers) if per_layer is None else per_layer
        )
        self._size = _size(kind, model, self._layers, example_input)
        self._twin: TwinSupport | None = None
        if isinstance(opt, TwinOptimizer) and param_groups is None:
            self._twin = TwinSupport(opt, self._params)
            if by == "weights":
                self._twin.rest()
        elif by == "gamma":
            raise ValueError(
                "by='gamma' needs an optimizer with a twin, whose groups decide; got "
                f"{type(opt).__name__}: use DessiLBI or SplitLBI, and leave param_groups out"
            )
        least = self._size(self._best(self._ranking(), 0.0)) / self._size.total
        if least > self.budget:
            raise ValueError(
                f"{kind}={self.budget!r} cannot be reached: {least:.3g} is left when each layer "
                f"keeps {min_groups} of its groups, the layers that cannot leave included; ask for "
                "more, or give more weights a penalty (split_parameters)"
            )
        self._handles = (opt.register_step_post_hook(lambda *_: self._after_step()),)

    def target(self, step: int) -> float:
        """The size that is due after a number of steps."""
        progress = step / self.steps
        if progress < self.begin:
            return 0.0 if self.by == "gamma" else 1.0
        done = (progress - self.begin) / (self.end - self.begin) if progress < self.end else 1.0
        if self.by == "gamma":
            return self.budget * done
        return self.budget + (1 - self.budget) * (1 - done) ** 3

    @property
    def density(self) -> float:
        """What is left, in the unit of the budget."""
        return self._size(self._groups_kept()) / self._size.total

    @property
    def densities(self) -> dict[str, float]:
        """By layer, the fraction of its groups that is left."""
        kept = self._groups_kept()
        return {
            layer.name: float(bits.float().mean())
            for layer, bits in zip(self._layers, kept, strict=True)
        }

    def _groups_kept(self) -> list[Tensor]:
        if self.mask is None:
            return [torch.ones(layer.groups, dtype=torch.bool) for layer in self._layers]
        return [layer.groups_in(self.mask[layer.name]) for layer in self._layers]

    @property
    def done(self) -> bool:
        """Whether the target is reached."""
        return self._step / self.steps >= self.end and self.mask is not None

    def _after_step(self) -> None:
        self._step += 1
        # Before anything is ranked: what was pruned has just been moved by its momentum, and behind
        # a BatchNorm, which divides by a variance of zero, so far that it would be ranked first.
        zero_outside(self._kept)
        progress, before = self._step / self.steps, (self._step - 1) / self.steps
        due = self._step % self.every == 0
        last = progress >= self.end and (before < self.end or self._step == 1)
        if last:
            self._hold(self._best(self._ranking(), self.budget))
            self._pruned.clear()
            if self._twin is not None:
                self._twin.rest()
        elif due and self.by == "gamma" and self.begin < progress < self.end:
            assert self._twin is not None
            kept = self._best(self._ranking(), self.target(self._step))
            self._twin.follow(self._twin.strengths(), kept)
        elif due and self.by == "weights" and self.budget < self.target(self._step) < 1:
            self._hold(self._best(self._ranking(), self.target(self._step)))
        if (last or due) and self._twin is not None and self.mask is not None:
            self._twin.show(self.mask)

    # ------------------------------------------------------------------ what stays

    @torch.no_grad()
    def _ranking(self) -> list[Tensor]:
        """By layer, a number for each group; layers that are tied have the same numbers."""
        if self._twin is None or self.by == "weights":
            return scores(self._params, self._layers, self.per_layer)
        found = self._twin.strengths()
        return [rank_shares(one) for one in found] if self.per_layer else found

    def _best(self, ranking: Sequence[Tensor], target: float) -> list[Tensor]:
        # What has left is zero, and so comes last.
        return best_groups(ranking, self._layers, self._size, target, self.min_groups)

    @torch.no_grad()
    def _hold(self, kept: list[Tensor]) -> None:
        weights = {
            layer.name: layer.expand(groups)
            for layer, groups in zip(self._layers, kept, strict=True)
        }
        mask = Mask({**weights, **self._size.dependents(kept)})
        for name, p in named_weights(self._model).items():
            if name not in mask:
                continue
            stays = mask[name].to(p.device)
            stayed = torch.ones_like(stays) if self.mask is None else self.mask[name].to(p.device)
            before = self._pruned.setdefault(name, torch.zeros_like(p))
            before.copy_(torch.where(stayed & ~stays, p, before))
            p.copy_(torch.where(stays & ~stayed, before, p))
        self._set_mask(mask)

    def _set_mask(self, mask: Mask) -> None:
        self.mask, self._kept = mask, masked_weights(self._model, mask)
        zero_outside(self._kept)

    # ------------------------------------------------------------------ checkpoints

    def state_dict(self) -> dict[str, Tensor]:
        """What a checkpoint must keep."""
        kept = {} if self.mask is None else dict(self.mask.tensors)
        factors = {} if self._twin is None else self._twin.state_dict()
        return {
            "step": torch.tensor(self._step),
            **{f"mask.{name}": t for name, t in kept.items()},
            **{f"pruned.{name}": t for name, t in self._pruned.items()},
            **{f"factor.{name}": t for name, t in factors.items()},
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on from :meth:`state_dict`."""
        self._step = int(state["step"])
        self._pruned = {name: t.clone() for name, t in _part(state, "pruned.").items()}
        kept = _part(state, "mask.")
        if kept:
            # In the order of the layers, whatever that of the file is.
            layers = {layer.name: kept.pop(layer.name) for layer in self._layers}
            self._set_mask(Mask(layers | kept))
        if self._twin is not None:
            self._twin.load_state_dict(_part(state, "factor."))


def _size(
    kind: str,
    model: nn.Module,
    layers: Sequence[Layer],
    example_input: Any,
) -> CompactSize:
    if kind == "groups":
        prices = {
            layer.name: 1 / (layer.group_size * len(tied))
            for tied in tied_sets(layers)
            for layer in tied
        }
        return CompactSize(model, layers, prices=prices)
    if kind == "macs":
        prices = count_macs_per_weight(model, example_input)
        for layer in layers:
            if layer.name not in prices:
                raise ValueError(
                    f"the multiply-adds of {layer.name!r} are not known: it belongs to no linear "
                    "layer or convolution; give density or groups, or leave it without a penalty"
                )
        return CompactSize(model, layers, example_input, prices)
    return CompactSize(model, layers, example_input)


def _part(state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {n.removeprefix(prefix): t for n, t in state.items() if n.startswith(prefix)}

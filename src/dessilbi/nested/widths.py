"""Train once, ship any width: each step trains networks of several widths at their own cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import kl_div, log_softmax, softmax

from dessilbi.path import Mask

from .branches import EQUAL, Ladder, Rung, rungs_of
from .channel_ranks import ChannelRanks
from .levels import FULL, density_of, level_of
from .passes import Run, average_over_processes
from .schedule import SECOND, Nesting
from .slicing import Narrow, put, taken

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor, nn

    from dessilbi.optim import DessiLBI

    from .slicing import Cut


class NestedWidths(Nesting):
    """Trains a network whose narrower parts, one for every width, are good without retraining.

    Like :class:`NestedTraining` with whole channels: a filter takes its bias, its BatchNorm
    parameters and what reads it along. So a subnetwork is a smaller dense network and is computed
    as one, which is cheap enough for two of them in a step: a large one (the whole network in a
    fraction ``full`` of the steps) and a small one, which also learns from the large one's output.
    A step takes up to 1.4 times the multiply-adds of a plain one and, on a CPU with a C++ compiler,
    about its time.

    The whole network is trained first; then the smallest width falls, as in gradual pruning, and
    stays at ``lowest``. Then the widths of a ladder leave, the narrowest first: from there on they
    have weights of their own and are trained beside the whole network, in every step or, where they
    would cost too much, in turn. Sharing has brought them on their way, and would hold them and
    wider ones back. In the end a budget is served by the widest of them that fits.

    Channels are ranked by the size of their filters, every layer for itself; layers whose outputs
    are added are ranked together. Weights outside the largest network of a step do not move, while
    DessiLBI's coupling with Gamma acts on all.

    A layer keeps all its filters if it has no twin, if its outputs are added to those of a layer
    without one, or if it cannot be made narrower (the last layer, a grouped convolution). It is
    whole in every network, and widths are fractions of the other layers.

    :meth:`PathRecorder.record` with :attr:`levels` and :attr:`followers` makes
    ``path.mask(density=...)`` the networks that were trained. BatchNorm statistics follow the whole
    network; take them anew for another (:func:`recalibrate_batchnorm`). :meth:`weights` gives the
    weights of a width; clipping of gradients does not reach those of the ladder.

    Args:
        model: the network.
        opt: its optimizer; penalties by filter (or neuron) for the weights with a twin.
        steps: optimizer steps of the whole training.
        example_input: a batch, to find out which channels belong together.
        lowest: the smallest width, as a fraction of the filters of each layer.
        begin: when widths begin to fall, as a fraction of the training.
        descended: when they reach ``lowest``.
        settled: when the ranking is fixed.
        full: fraction of steps whose large network is the whole one, while widths share.
        small: fraction of steps that train a small network as well, while widths share.
        beside: multiply-adds of the ladder's widths a step, as a fraction of the whole network's.
            Those of a convolutional network take less, about a third, and are trained in every
            step; of others, as many as that allows, in turn.
        parted: when the first and the last width of the ladder part from the whole network, the
            narrowest first; (1, 1) if never: then there is a network for every width, and all
            share (and ``full=0.5, descended=0.5`` are better).
        ladder: their widths; by default each half of the one before, down to ``lowest``.
        teach: how much of the small network's loss is the distance of its outputs, as
            probabilities, to those of the large one; 0 if they are not logits of classes.
        refresh: steps between two rankings.
        seed: where the sequence of widths begins; see :class:`NestedTraining`.

    Example:
        >>> nested = NestedWidths(model, opt, epochs * len(loader), example_input)
        >>> for x, y in loader:
        ...     opt.zero_grad()
        ...     output, loss = nested.backward(x, lambda output: cross_entropy(output, y))
        ...     opt.step()
    """

    def __init__(
        self,
        model: nn.Module,
        opt: DessiLBI,
        steps: int,
        example_input: Any,
        *,
        lowest: float = 0.125,
        begin: float = 1 / 12,
        descended: float = 0.3,
        settled: float = 0.6,
        full: float = 1.0,
        small: float = 0.8,
        beside: float = 0.4,
        parted: tuple[float, float] = (0.3, 0.6),
        ladder: Sequence[float] = (),
        teach: float = 0.5,
        refresh: int = 100,
        seed: int = 0,
    ) -> None:
        super().__init__(
            model, opt, steps, lowest=lowest, highest=1.0, begin=begin, descended=descended,
            settled=settled, full=full, tilt=1.0, refresh=refresh, floor=1, uniform=True, seed=seed,
        )  # fmt: skip
        for name, value in (("teach", teach), ("small", small)):
            if not 0 <= value <= 1:
                raise ValueError(f"{name} must lie in [0, 1], got {value!r}")
        if not begin <= parted[0] <= parted[1] <= 1:
            raise ValueError(f"parted must lie in [begin, 1] and not fall, got {parted!r}")
        self._ladder = Ladder(ladder, parted, lowest)
        self.ladder = self._ladder.widths
        if not beside > 0:
            raise ValueError(f"beside must be positive, got {beside!r}")
        self.teach, self.small, self.beside, self.parted = teach, small, beside, parted
        self._model = model
        self._narrow = Narrow(model, example_input)
        for layer in self._layers:
            if layer.group_dim != 0:
                how, instead = "weight by weight", "give penalty='group_lasso', or exclude it"
                if layer.group_dim is not None:  # of a transposed convolution these are its filters
                    how, instead = f"by slices along dimension {layer.group_dim}", "exclude it"
                raise ValueError(
                    f"parameter {layer.name!r} enters Gamma {how}; widths need whole filters or "
                    f"neurons, which lie along dimension 0: {instead}"
                )
        self._channels = ChannelRanks(self._layers, self._narrow)
        self.followers = self._channels.followers()
        """Biases and BatchNorm parameters: the filter that each element leaves with, or -1. Filters
        are numbered through all layers, as in a path."""
        self._drawn: tuple[int, ...] = (FULL,)
        self._cuts: dict[int, Cut] = {}
        self._frequency: float | None = None
        """What :meth:`_often` found for this ranking."""
        self._attach()

    # ------------------------------------------------------------------ a step

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
        self._used = True
        self._rank_if_due()
        self._part_if_due()
        if not any(p.grad is not None for p in self._params.values()):
            for one in self._ladder.rungs.values():
                one.forget_gradients()  # zero_grad, perhaps of a step that was given up
        self._drawn = self._widths()
        run = Run.make(x, loss, weight, net)
        first, *others = self._drawn
        if first < FULL:
            largest = self._narrower(first, run)
            self._restrict(self._cut(first))
        else:
            largest = run.through(self._model if net is None else net)
        teacher = softmax(largest[0], 1) if others and self.teach > 0 else None
        for level in others:
            self._narrower(level, run, teacher)
        return largest

    def _narrower(self, level: int, run: Run, teacher: Tensor | None = None) -> tuple[Any, Tensor]:
        """A pass of a narrower network, taught by the probabilities that another gives."""
        rung = self._ladder.rungs.get(level)
        cut, own = (self._cut(level), {}) if rung is None else (rung.cut, rung.own)
        output, leaves = self._narrow.forward(cut, *run.arguments, own=own)
        value = total = run.loss(output)
        if teacher is not None:
            distance = kl_div(log_softmax(output, 1), teacher, reduction="batchmean")
            total = (1 - self.teach) * value + self.teach * distance
        found = torch.autograd.grad(total * run.weight, [*leaves.values()], allow_unused=True)
        gradients = {n: g for n, g in zip(leaves, found, strict=True) if g is not None}
        if run.average:
            average_over_processes(gradients)
        if rung is not None:
            rung.add_gradients({n: gradients.pop(n) for n in own if n in gradients})
        self._narrow.add_gradients(cut, gradients)
        return output.detach(), value.detach()

    def _restrict(self, cut: Cut) -> None:
        held = {p for group in self._opt.param_groups for p in group["params"]}
        params = {name: self._narrow.params[name] for name in cut.params}
        self._opt.restrict(
            {p: self._narrow.used(cut, name) for name, p in params.items() if p in held}
        )

    def _widths(self) -> tuple[int, ...]:
        """Levels of this step's networks, the largest first."""
        if self._progress < self.begin:
            return (FULL,)
        often = self._often()
        rungs = tuple(
            level
            for place, level in enumerate(self._ladder.rungs)
            if _falls_on(self._step, often, place / len(self._ladder.rungs))
        )[::-1]
        if self._ladder.complete:
            return (FULL, *rungs)
        smallest, place = self._smallest(), self._place()
        large = 1.0
        if place >= self.full:  # the upper half of the widths, in their logarithm
            large = smallest ** (0.5 * (place - self.full) / (1 - self.full))
        widths = [large]
        second = self._place(SECOND)
        if second < often * self.small:
            widths.append(self._small_width(smallest, second / (often * self.small)))
        levels = {level_of(width, self.lowest) for width in widths}
        return (*sorted(levels, reverse=True), *rungs)

    def _small_width(self, smallest: float, place: float) -> float:
        """One from the lower half, in their logarithm; at last one that is about to leave."""
        left = self._ladder.left
        if not self._by_ladder:
            return float(smallest ** (1 - 0.5 * place))
        return left[int(place * len(left))]

    @property
    def _by_ladder(self) -> bool:
        """Whether only widths of the ladder are trained beside the whole network."""
        return self._progress >= self.descended and self.parted[0] < 1

    def _often(self) -> float:
        """In what part of the steps a width of the ladder is trained."""
        if not self._by_ladder:
            return 1.0
        if self._frequency is None:
            cost = sum(self._narrow.cost(rung.cut) for rung in self._ladder.rungs.values())
            left = [level_of(width, self.lowest) for width in self._ladder.left]
            for level in left:
                cost += self.small * self._narrow.cost(self._cut(level)) / len(left)
            self._frequency = min(1.0, self.beside / cost)
        return self._frequency

    @property
    def budgets(self) -> tuple[float, ...]:
        """The widths that the last step was drawn at; 1 is the whole network."""
        return tuple(density_of(level, self.lowest) for level in self._drawn)

    # ------------------------------------------------------------------ the ladder

    def _part_if_due(self) -> None:
        ladder = self._ladder
        while ladder.due(self._progress):
            assert self._levels is not None
            levels = self._ranking() if self._progress < self.settled else self._levels
            level, left = ladder.next_level, len(ladder.rungs) + 1
            self._ranked(ladder.relabelled(levels, self._channels.shares(levels), left))
            ladder.rungs[level] = Rung(self._narrow, self._opt, self._cut(level))

    def _smallest(self) -> float:
        return self._ladder.floor(super()._smallest())

    def _rank_if_due(self) -> None:
        if not self._ladder.complete:
            super()._rank_if_due()

    def _after_step(self) -> None:
        if self._used:
            for level, rung in self._ladder.rungs.items():
                if level in self._drawn:
                    rung.step()
        super()._after_step()

    def _level_for(self, density: float) -> int:
        level, rungs = super()._level_for(density), self._ladder.rungs
        if level > max(rungs, default=-1) and not self._ladder.complete:
            return level
        assert self._levels is not None
        shares = self._channels.shares(self._levels)
        return max((n for n in (*rungs, FULL) if shares[n] <= density + EQUAL), default=0)

    def weights(self, density: float) -> dict[str, Tensor]:
        """The weights of the network that :meth:`mask` has, shaped as the whole network's.

        Zero outside of it; ``model.load_state_dict(weights, strict=False)`` takes them.
        """
        level = self._level_for(density)
        if level == FULL:
            return {name: p.detach().clone() for name, p in self._narrow.params.items()}
        cut = self._cut(level)
        shared = {
            name: put(taken(p.detach(), *cut.places(name)), p, *cut.places(name))
            for name, p in self._narrow.params.items()
        }
        rung = self._ladder.rungs.get(level)
        return shared if rung is None else shared | rung.weights()

    def state_dict(self) -> dict[str, Tensor]:
        """See :meth:`Nesting.state_dict`; with the weights of the ladder."""
        found = super().state_dict()
        for level, rung in self._ladder.rungs.items():
            found |= rung.state_dict(level)
        return found

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on from :meth:`state_dict`."""
        super().load_state_dict(state)
        self._ladder.rungs = {}
        for level in rungs_of(state):
            rung = Rung(self._narrow, self._opt, self._cut(level))
            rung.load_state_dict(level, state)
            self._ladder.rungs[level] = rung

    # ------------------------------------------------------------------ the ranking

    def _ranking(self) -> list[Tensor]:
        rungs, rank = self._ladder.rungs, self._channels.ranked
        if not rungs:
            return rank(self._params, self.lowest, self.floor)
        assert self._levels is not None
        levels = rank(self._params, self.lowest, self.floor, self._levels, [*rungs])
        return self._ladder.relabelled(levels, self._channels.shares(levels), len(rungs))

    def _ranked(self, levels: list[Tensor]) -> None:
        super()._ranked(levels)
        self._cuts, self._frequency = {}, None

    def _cut(self, level: int) -> Cut:
        if level not in self._cuts:
            assert self._levels is not None
            self._cuts[level] = self._narrow.cut(self._channels.kept(self._levels, level))
        return self._cuts[level]

    def mask(self, density: float) -> Mask:
        """The network that is trained for a width, at the nearest of the widths drawn."""
        filters = super().mask(density)
        assert self._levels is not None
        level = self._level_for(density)
        inside = torch.cat([(levels <= level).flatten().cpu() for levels in self._levels])
        others = {
            name: inside[torch.from_numpy(numbers).long()] | torch.from_numpy(numbers < 0)
            for name, numbers in self.followers.items()
        }
        return Mask({**filters.tensors, **others})


def _falls_on(step: int, often: float, offset: float) -> bool:
    """Whether one of the evenly spaced steps, so many of all, is this one."""
    return int((step + 1) * often + offset) > int(step * often + offset)

"""Train once, ship any width: each step trains networks of several widths at their own cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import kl_div, log_softmax, softmax

from dessilbi.graph.copies import copied
from dessilbi.graph.wrappers import averages_gradients
from dessilbi.optim import TwinOptimizer
from dessilbi.path import Mask
from dessilbi.path.layers import make_layers

from .branches import EQUAL, Branch, Branches
from .channels import ChannelRanking
from .passes import add_gradients, detached, forward
from .ranking import WHOLE
from .schedule import NestedSchedule
from .slicing import Slicer, narrow_copy, widened
from .training import Nested
from .width_draws import WidthDraws

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from torch import Tensor, nn
    from torch.optim import Optimizer

    from dessilbi.path import Layer

    from .slicing import Cut


class NestedWidths(Nested):
    """Trains a network whose narrower parts, one for every width, are good without retraining.

    Like :class:`NestedTraining` with whole channels: a filter takes its bias, its BatchNorm
    parameters and what reads it along. So a subnetwork is a smaller dense network and is computed
    as one, by slices of the weights. A step trains a large one (the whole network in a fraction
    ``full_fraction`` of the steps) and a small one, which also learns from the large one's output.

    The whole network is trained first; then the smallest width falls, as in gradual pruning, and
    stays at ``min_density``. Then ``widths`` branch off, the narrowest first: from there on each is
    a network of its own (of the model's class, with an optimizer of the class and the options of
    ``opt``) and is trained beside the whole one, in every step or, where that would cost too much,
    in turn. Sharing has brought them on their way, and would hold them and wider ones back. In the
    end a budget is served by the widest of them that fits.

    Channels are ranked by the size of their filters, every layer for itself; layers whose outputs
    are added are ranked together. Weights outside the largest network of a step do not move (with
    :class:`DessiLBI` its coupling with Gamma acts on all).

    A layer keeps all its filters if it is not ranked, if its outputs are added to those of such a
    layer, or if it cannot be made narrower (the last layer, a grouped convolution). It is whole in
    every network, and widths are fractions of the other layers.

    BatchNorm statistics of the whole network and of branches are their own; :meth:`network` takes
    them anew for a width that shares its weights. Gradients of branches are not the optimizer's:
    they are neither clipped nor unscaled (by ``torch.amp.GradScaler``; bfloat16 needs none) with
    those of the others.

    Args:
        model: the network.
        opt: its optimizer, any of torch's. A :class:`DessiLBI` must have penalties by filter (or
            neuron) for the weights with a twin.
        steps: optimizer steps of the whole training.
        example_input: a batch, to find out which channels belong together.
        schedule: when widths begin to fall, and when they are ranked; by default
            :meth:`NestedSchedule.for_widths`.
        widths: of the branches; by default each half of the one before, down to ``min_density``.
        branch_at: when the first and the last of them leave, as fractions of the training, the
            narrowest first; (1, 1) if never: then there is a network for every width, and all share
            (and ``full_fraction=0.5, ramp_end=0.5`` are better).
        branch_macs: multiply-adds of the branches a step, as a fraction of the whole network's.
            Those of a convolutional network take less, about a third, and are trained in every
            step; of others, as many as that allows, in turn.
        distill: how much of a small network's loss is the distance of its outputs, as
            probabilities, to those of the large one; 0 if they are not logits of classes.
        small_fraction: fraction of steps that train a small network as well, while widths share.
        seed: where the sequence of widths begins; see :class:`NestedTraining`.

    Example:
        >>> from torch.nn.functional import cross_entropy
        >>> from torch.nn import Linear, ReLU, Sequential
        >>> model = Sequential(Linear(8, 16), ReLU(), Linear(16, 2))
        >>> opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
        >>> nested = NestedWidths(model, opt, steps=100, example_input=torch.randn(2, 8))
        >>> for _ in range(100):
        ...     x, y = torch.randn(32, 8), torch.randint(2, (32,))
        ...     opt.zero_grad()
        ...     output, loss = nested.backward(x, lambda output: cross_entropy(output, y))
        ...     opt.step()
        >>> nested.network(0.25)[0].out_features
        4
    """

    def __init__(
        self,
        model: nn.Module,
        opt: Optimizer,
        steps: int,
        example_input: Any,
        *,
        schedule: NestedSchedule | None = None,
        widths: Sequence[float] = (),
        branch_at: tuple[float, float] = (0.3, 0.6),
        branch_macs: float = 0.4,
        distill: float = 0.5,
        small_fraction: float = 0.8,
        seed: int = 0,
    ) -> None:
        schedule = schedule or NestedSchedule.for_widths()
        super().__init__(model, opt, steps, schedule, seed=seed)
        for name, value in (("distill", distill), ("small_fraction", small_fraction)):
            if not 0 <= value <= 1:
                raise ValueError(f"{name} must lie in [0, 1], got {value!r}")
        if not schedule.ramp_start <= branch_at[0] <= branch_at[1] <= 1:
            raise ValueError(
                f"branch_at must lie in [ramp_start, 1] and not fall, got {branch_at!r}"
            )
        if not branch_macs > 0:
            raise ValueError(f"branch_macs must be positive, got {branch_macs!r}")
        self._branches = Branches(widths, branch_at, schedule.min_density)
        self.widths = self._branches.widths
        self.branch_at, self.branch_macs = branch_at, branch_macs
        self.distill, self.small_fraction = distill, small_fraction
        self._layers = self._by_filter()
        if branch_at[0] < 1:
            self._refuse_others()
        self._slicer = Slicer(self._model, example_input)
        self._channels = ChannelRanking(self._layers, self._slicer)
        self.dependents = self._channels.dependents()
        self._cuts: dict[int, Cut] = {}
        self._draws = WidthDraws(
            schedule, self._branches, branch_at, branch_macs, small_fraction,
            lambda rank: self._slicer.cost(self._cut(rank)),
        )  # fmt: skip
        self._attach()

    def _by_filter(self) -> tuple[Layer, ...]:
        """The layers, grouped by filter: a width takes whole ones, whatever a penalty would."""
        if isinstance(self._opt, TwinOptimizer):
            for layer in self._layers:
                if layer.group_dim != 0:
                    how, instead = "weight by weight", "give penalty='group_lasso', or exclude it"
                    if layer.group_dim is not None:  # a transposed convolution's filters are there
                        how = f"by slices along dimension {layer.group_dim}"
                        instead = "exclude it"
                    raise ValueError(
                        f"parameter {layer.name!r} enters Gamma {how}; widths need whole filters "
                        f"or neurons, which lie along dimension 0: {instead}"
                    )
            return self._layers
        rows = [layer for layer in self._layers if layer.group_dim in (None, 0)]
        return make_layers((layer.name, layer.shape, 0) for layer in rows)

    def _refuse_others(self) -> None:
        held = {id(p) for group in self._opt.param_groups for p in group["params"]}
        for name, p in self._model.named_parameters():
            if p.requires_grad and id(p) not in held:
                raise ValueError(
                    f"parameter {name!r} is trained by another optimizer than opt, and a width "
                    "with weights of its own would have none for it; give opt all parameters, or "
                    "branch_at=(1, 1)"
                )

    # ------------------------------------------------------------------ a step

    def _passes(
        self,
        arguments: tuple[Any, ...],
        loss: Callable[[Any], Tensor],
        net: nn.Module | None,
        weight: float,
    ) -> tuple[Any, Tensor]:
        branches = self._branches.by_rank
        if not any(p.grad is not None for p in self._params.values()):
            for branch in branches.values():
                branch.opt.zero_grad()  # as the others' were, perhaps of a step that was given up
        self._drawn = self._draws.ranks(self.seed, self._step, self.steps)
        average = net is not None and averages_gradients(net)
        first, *others = self._drawn
        if first == WHOLE:
            output = (self._model if net is None else net)(*arguments)
            value = loss(output)
            torch.autograd.backward(value * weight)
        else:
            output, value = self._narrow_pass(first, arguments, loss, weight, average, None)
        largest = detached(output), value.detach()
        teacher = softmax(largest[0], 1) if others and self.distill > 0 else None
        for rank in others:
            self._narrow_pass(rank, arguments, loss, weight, average, teacher)
        self._restrict(first)
        return largest

    def _narrow_pass(
        self,
        rank: int,
        arguments: tuple[Any, ...],
        loss: Callable[[Any], Tensor],
        weight: float,
        average: bool,
        teacher: Tensor | None,
    ) -> tuple[Any, Tensor]:
        """A pass of a narrower network, taught by the probabilities that another gives."""
        cut, branch = self._cut(rank), self._branches.by_rank.get(rank)
        # A branch's, too: what a loss reads of the model is then what this pass has stored there.
        tensors = cut.tensors(self._model) if branch is None else branch.tensors()
        output, value = forward(self._model, tensors, cut.arguments(arguments), loss)
        total = value
        if teacher is not None:
            distance = kl_div(log_softmax(output, 1), teacher, reduction="batchmean")
            total = (1 - self.distill) * value + self.distill * distance
        moved = self._model if branch is None else branch.model
        add_gradients(total * weight, moved.parameters(), average=average)
        return output, value

    def _restrict(self, rank: int) -> None:
        moves: dict[Tensor, Tensor] = {}
        if rank != WHOLE:
            held = {p for group in self._opt.param_groups for p in group["params"]}
            cut = self._cut(rank)
            for name in cut.params:
                p = self._slicer.params[name]
                if p in held:
                    moves[p] = cut.inside(name, p)
        self._restriction.set(moves)

    def _begin_step(self) -> None:
        if self._branches.complete:
            self._used = True  # nothing is ranked any more
        else:
            super()._begin_step()
        branches = self._branches
        while branches.due(self._progress):
            known = self._known_ranks
            ranks = self._ranked() if self._progress < self.schedule.freeze_ranking_at else known
            rank, left = branches.next_rank, len(branches.by_rank) + 1
            self._set_ranks(branches.relabelled(ranks, self._channels.shares(ranks), left))
            branches.by_rank[rank] = Branch(self._model, self._opt, self._cut(rank))

    def _after_step(self) -> None:
        if self._used:
            for rank, branch in self._branches.by_rank.items():
                if rank in self._drawn:
                    branch.step()
        super()._after_step()

    # ------------------------------------------------------------------ the ranking

    def _ranked(self) -> list[Tensor]:
        branches, low = self._branches, self.schedule.min_density
        if not branches.by_rank:
            return self._channels.ranks(self._params, low)
        ranks = self._channels.ranks(self._params, low, self._known_ranks, [*branches.by_rank])
        return branches.relabelled(ranks, self._channels.shares(ranks), len(branches.by_rank))

    def _set_ranks(self, ranks: list[Tensor]) -> None:
        super()._set_ranks(ranks)
        self._cuts = {}
        self._draws.forget_costs()

    def _cut(self, rank: int) -> Cut:
        if rank not in self._cuts:
            self._cuts[rank] = self._slicer.cut(self._channels.kept(self._known_ranks, rank))
        return self._cuts[rank]

    # ------------------------------------------------------------------ what came of it

    def _rank_for(self, density: float) -> int:
        rank, branches = super()._rank_for(density), self._branches
        if rank > max(branches.by_rank, default=-1) and not branches.complete:
            return rank
        shares = self._channels.shares(self._known_ranks)
        known = (*branches.by_rank, WHOLE)
        return max((n for n in known if shares[n] <= density + EQUAL), default=0)

    def mask(self, density: float) -> Mask:
        """The network that is trained for a width, at the nearest of the widths drawn."""
        filters, rank = super().mask(density), self._rank_for(density)
        inside = torch.cat([(ranks <= rank).flatten().cpu() for ranks in self._known_ranks])
        others = {
            name: inside[torch.from_numpy(numbers).long()] | torch.from_numpy(numbers < 0)
            for name, numbers in (self.dependents or {}).items()
        }
        return Mask({**filters.tensors, **others})

    def network(
        self, density: float, recalibrate_on: Iterable[Any] | None = None, *, small: bool = True
    ) -> nn.Module:
        """The network of a width, ready to be used: a copy in evaluation mode.

        Args:
            density: the width.
            recalibrate_on: batches of inputs to take BatchNorm statistics from; by default the last
                ones that :meth:`backward` has seen, for a width that shares its weights. A branch
                has statistics of its own from training, and so has the whole network if every step
                trains it (``full_fraction`` is 1).
            small: a smaller network of the model's class; ``False`` gives one of the whole size,
                zero outside of the width.
        """
        if not 0 < density <= 1:
            raise ValueError(f"density must lie in (0, 1], got {density!r}")
        self._known_ranks  # noqa: B018 - refuses before the first ranking
        rank = self._rank_for(density)
        branch = self._branches.by_rank.get(rank)
        if rank == WHOLE:
            each_step = self.schedule.full_fraction >= 1
            return self._recalibrated(copied(self._model), recalibrate_on, trained=each_step)
        cut = self._cut(rank)
        net = narrow_copy(self._model, cut) if branch is None else copied(branch.model)
        self._recalibrated(net, recalibrate_on, trained=branch is not None)
        return net if small else widened(self._model, net, cut)

    # ------------------------------------------------------------------ checkpoints

    def state_dict(self) -> dict[str, Tensor]:
        """What a checkpoint must keep; branches by their parameters' names."""
        return super().state_dict() | self._branches.state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on from :meth:`state_dict`."""
        super().load_state_dict(state)
        self._branches.by_rank = {}
        for rank, saved in self._branches.saved(state):
            branch = Branch(self._model, self._opt, self._cut(rank))
            branch.load_state_dict(saved)
            self._branches.by_rank[rank] = branch

"""Train once, ship any size: each step trains the subnetworks of budgets drawn for it."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch

from dessilbi.graph.copies import copied
from dessilbi.graph.wrappers import averages_gradients
from dessilbi.subnet.project import masked_weights, zero_outside

from .in_place import added_gradients, masked_in_place
from .passes import Masked, add_gradients, detached, forward
from .ranking import WHOLE, by_weight, density_of
from .schedule import NestedSchedule
from .training import Nested

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from torch import Tensor, nn
    from torch.optim import Optimizer


class NestedTraining(Nested):
    """Trains a network whose subnetworks, one for every budget, are good without retraining.

    Every step draws budgets and trains the subnetworks that the ranking of the weights gives for
    them: a pass sees the other weights as zero, gradients add up, and only the weights of the
    largest one move. (With :class:`DessiLBI` the coupling with Gamma acts on all.) Smaller
    subnetworks are parts of larger ones, and :meth:`network` gives any of them.

    :meth:`backward` makes the passes, one for each budget, by the network's own forward; once the
    smallest budget is reached there are ``budgets_per_step``, and in a fraction ``full_fraction``
    of the steps the whole network as well. Where another loop makes the passes, :meth:`passes` puts
    the weights of one budget after the other in place, and ``with nested:`` those of one budget a
    step: call ``opt.step()`` after leaving it.

    Budgets count the weights that are ranked; what is not (by default biases and BatchNorm; a
    classifier that :func:`split_parameters` excludes) belongs to every subnetwork. BatchNorm
    statistics follow the whole network only (the largest one of a step if ``full_fraction`` is 0),
    in the few steps that train it: :meth:`network` takes them anew, for the whole one as well.

    Args:
        model: the network.
        opt: its optimizer, any of torch's.
        steps: optimizer steps of the whole training.
        schedule: which budgets are drawn when, and when weights are ranked.
        groups: which weights are ranked, and whether one by one or by filter, as
            :func:`split_parameters` says it. By default the optimizer's own groups where they have
            a penalty, as those that :func:`split_parameters` made; else its defaults.
        budgets_per_step: how many budgets :meth:`backward` trains in a step, beside the whole
            network; by default 3, and 2 if there are filters (:class:`NestedWidths` serves them
            better).
        min_groups: groups of each layer that are in every subnetwork.
        per_layer: whether every layer keeps the same fraction of its groups; by default if there
            are filters. Otherwise groups of all layers are compared by the root mean square of
            their weights.
        macs: by weight tensor, the multiply-adds of one of its weights, as
            ``dessilbi.path.count_macs_per_weight(model, example_input)`` counts them; for
            ``mac_exponent``.
        mac_exponent: weights of all layers are compared by size / multiply-adds ** mac_exponent. At
            0 budgets of weights are served best; at 0.25, budgets of multiply-adds: a convolution's
            weights are used at every pixel. Not where every layer keeps the same fraction.
        seed: where the sequence of budgets begins. A budget depends on it and the number of the
            step only: processes of a distributed run agree, and a resumed run goes on as if it had
            not stopped.

    Example:
        >>> from torch.nn.functional import cross_entropy
        >>> from dessilbi import split_parameters
        >>> from torch.nn import Linear, ReLU, Sequential
        >>> model = Sequential(Linear(8, 16), ReLU(), Linear(16, 2))
        >>> opt = torch.optim.AdamW(split_parameters(model), lr=1e-3)
        >>> nested = NestedTraining(model, opt, steps=100)
        >>> for _ in range(100):
        ...     x, y = torch.randn(32, 8), torch.randint(2, (32,))
        ...     opt.zero_grad()
        ...     output, loss = nested.backward(x, lambda output: cross_entropy(output, y))
        ...     opt.step()
        >>> small = nested.network(0.1)
    """

    takes_shards = True

    def __init__(
        self,
        model: nn.Module,
        opt: Optimizer,
        steps: int,
        *,
        schedule: NestedSchedule | None = None,
        groups: Sequence[Mapping[str, Any]] | None = None,
        budgets_per_step: int | None = None,
        min_groups: int = 1,
        per_layer: bool | None = None,
        macs: Mapping[str, float] | None = None,
        mac_exponent: float = 0.0,
        seed: int = 0,
    ) -> None:
        schedule = schedule or NestedSchedule()
        super().__init__(
            model, opt, steps, schedule, groups=groups, min_groups=min_groups, seed=seed
        )
        filters = any(layer.group_dim is not None for layer in self._layers)
        if budgets_per_step is not None and budgets_per_step < 1:
            raise ValueError(f"budgets_per_step must be >= 1, got {budgets_per_step!r}")
        self.budgets_per_step = budgets_per_step or (2 if filters else 3)
        self._per_layer = filters if per_layer is None else per_layer
        self.mac_exponent = mac_exponent
        if not mac_exponent >= 0:
            raise ValueError(f"mac_exponent must be >= 0, got {mac_exponent!r}")
        if mac_exponent > 0:
            if macs is None:
                raise ValueError(
                    "mac_exponent needs macs: count_macs_per_weight(model, example_input)"
                )
            if self._per_layer:
                raise ValueError(
                    f"mac_exponent compares layers, got {mac_exponent!r} where every layer keeps "
                    "the same fraction; leave it out, or give per_layer=False"
                )
            self._prices = {name: count**mac_exponent for name, count in macs.items()}
        self._by_weight: dict[str, Tensor] = {}
        """By parameter, the rank of each weight."""
        self._masked: dict[str, Masked] = {}
        self._in_place: AbstractContextManager[None] | None = None
        self._attach()

    def _attach(self) -> None:
        self._guard = self._opt.register_step_pre_hook(lambda *_: self._refuse_within())
        super()._attach()

    def close(self) -> None:
        """Let go of the optimizer."""
        super().close()
        self._guard.remove()

    # ------------------------------------------------------------------ a step

    def _passes(
        self,
        arguments: tuple[Any, ...],
        loss: Callable[[Any], Tensor],
        net: nn.Module | None,
        weight: float,
    ) -> tuple[Any, Tensor]:
        if self._sharded:
            for _ in self._turns():
                output = (self._model if net is None else net)(*arguments)
                value = loss(output)
                torch.autograd.backward(value * weight)
            return detached(output), value.detach()
        self._drawn = self._drawn_budgets()
        average = net is not None and averages_gradients(net)
        largest, *others = self._drawn
        for rank in others:
            self._pass(rank, arguments, loss, weight, average=average)
        if net is None and largest < WHOLE:
            output, value = self._pass(largest, arguments, loss, weight, largest=True)
        else:
            with self._weights_in_place(largest):
                output = (self._model if net is None else net)(*arguments)
                value = loss(output)
                torch.autograd.backward(value * weight)
        self._restrict(largest)
        return detached(output), value.detach()

    def _drawn_budgets(self) -> tuple[int, ...]:
        many = self.budgets_per_step
        return self.schedule.several_budgets(many, self.seed, self._step, self.steps)

    def _pass(
        self,
        rank: int,
        arguments: tuple[Any, ...],
        loss: Callable[[Any], Tensor],
        weight: float,
        *,
        average: bool = False,
        largest: bool = False,
    ) -> tuple[Any, Tensor]:
        """A pass of a subnetwork, beside the whole one: with copies of weights and buffers."""
        tensors = {n: self._masked[n].set(ranks, rank) for n, ranks in self._by_weight.items()}
        torch.clear_autocast_cache()  # it knows tensors by their identity, not by what is in them
        others = (p for n, p in self._model.named_parameters() if n not in tensors)
        run_with = tensors
        if not self._teaches_batchnorm(rank, largest=largest):
            run_with = tensors | {n: b.clone() for n, b in self._model.named_buffers()}
        output, value = forward(self._model, run_with, arguments, loss)
        add_gradients(value * weight, (*tensors.values(), *others), average=average)
        for name in tensors:
            self._masked[name].pass_gradient_on()
        return output, value

    def _teaches_batchnorm(self, rank: int, *, largest: bool) -> bool:
        return rank == WHOLE or (largest and self.schedule.full_fraction == 0)

    def _restrict(self, rank: int) -> None:
        whole = rank == WHOLE
        ranks = {} if whole else self._by_weight
        self._restriction.set({self._params[name]: r <= rank for name, r in ranks.items()})

    def _begin_step(self) -> None:
        if self._in_place is not None:
            raise RuntimeError(
                "the subnetwork of this step is in place already; do not nest `with`"
            )
        super()._begin_step()

    def _set_ranks(self, ranks: list[Tensor]) -> None:
        super()._set_ranks(ranks)
        self._by_weight = {
            layer.name: by_weight(layer, r, self._params[layer.name])
            for layer, r in zip(self._layers, ranks, strict=True)
        }
        for name in () if self._sharded else self._by_weight:
            self._masked.setdefault(name, Masked.like(self._params[name]))

    # ------------------------------------------------------------------ weights in place

    def passes(self) -> Iterator[float]:
        """This step's budgets, the smallest first, for passes that another loop makes.

        The weights of each are in place for its forward and backward pass; gradients add up::

            for budget in nested.passes():
                loss_fn(model(x), y).backward()
            opt.step()
        """
        self._begin_step()
        yield from self._turns()

    def _turns(self) -> Iterator[float]:
        self._drawn = self._drawn_budgets()
        for rank in reversed(self._drawn):
            self._in_place = self._weights_in_place(rank, largest=rank == self._drawn[0])
            try:
                with added_gradients(self._model), self._in_place:
                    yield density_of(rank, self.schedule.min_density)
            finally:
                self._in_place = None
        self._restrict(self._drawn[0])

    def __enter__(self) -> NestedTraining:
        self._begin_step()
        self._drawn = (self.schedule.one_budget(self.seed, self._step, self.steps),)
        self._in_place = self._weights_in_place(self._drawn[0])
        self._in_place.__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        in_place, self._in_place = self._in_place, None
        assert in_place is not None
        in_place.__exit__(*raised)
        if raised[0] is None:
            self._restrict(self._drawn[0])

    def _weights_in_place(self, rank: int, *, largest: bool = True) -> AbstractContextManager[None]:
        if rank == WHOLE:
            return nullcontext()
        outside = {self._params[name]: ranks > rank for name, ranks in self._by_weight.items()}
        followed = self._teaches_batchnorm(rank, largest=largest)
        return masked_in_place(self._model, outside, () if followed else self._model.buffers())

    def _refuse_within(self) -> None:
        # Also where the whole network is in place: else a run would fail late, at its first budget.
        if self._in_place is not None:
            raise RuntimeError(
                "leave the `with` before opt.step(): a step within it would move the subnetwork's "
                "copy of the weights, and be lost"
            )

    # ------------------------------------------------------------------ what came of it

    def network(
        self, density: float, recalibrate_on: Iterable[Any] | None = None, *, small: bool = True
    ) -> nn.Module:
        """The network of a budget, ready to be used: a copy in evaluation mode.

        The weights outside of it are zero; ``compact(model, nested.mask(density), x)`` removes
        filters and neurons that have none.

        Args:
            density: the budget; 1.0 is the whole network.
            recalibrate_on: batches of inputs to take BatchNorm statistics from; by default the last
                ones that :meth:`backward` has seen.
            small: no difference here; see :meth:`NestedWidths.network`.
        """
        mask = self.mask(density)
        if self._sharded:
            raise ValueError(
                "each rank holds a part of the weights (FSDP2): use project(model, "
                "nested.mask(density)), there or on a model with the gathered weights"
            )
        net = copied(self._model)
        zero_outside(masked_weights(net, mask))
        # The whole network's, too, are those of the last steps that drew it, not of its weights.
        return self._recalibrated(net, recalibrate_on, trained=False)

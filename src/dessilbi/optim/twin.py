"""What optimizers with a sparse twin have in common: looking at Gamma, and its two knobs."""

from __future__ import annotations

import copy
import math
from types import MappingProxyType, SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar, cast

import torch
from torch.optim import Optimizer

from dessilbi.graph.names import named_weights

from . import dtensor
from ._group_step import penalty_of
from ._options import at_least_zero, check_group
from ._state import TWIN_KEYS, check_fit, dual_dtype, new_scale, new_v, restored
from .prox import GroupLasso, Penalty, TiedGroupLasso, resolve_penalty

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import Tensor, nn
    from torch.optim.lr_scheduler import LRScheduler


class TwinOptimizer(Optimizer):
    """An optimizer that keeps V for some of its parameters, and so their sparse twin Gamma.

    The base class of :class:`DessiLBI` and :class:`SplitLBI`.
    """

    _options: tuple[str, ...] = ()
    """Of a parameter group: those that are checked when they were changed."""
    twin_keys: ClassVar[tuple[str, ...]] = TWIN_KEYS
    """Of a parameter's state: those of its twin."""
    _state_keys: tuple[str, ...] = TWIN_KEYS
    """Of a parameter's state: those that are ours."""
    _v_dtype: torch.dtype | None = None
    # The options that were last checked, by group.
    _checked: Mapping[int, list[Any]] = MappingProxyType({})
    # Where the loss moves a parameter, if not everywhere; not part of the state.
    _update_masks: Mapping[Tensor, Tensor] = MappingProxyType({})

    # ------------------------------------------------------------------ the twin

    def twins(self) -> Iterator[tuple[str, Tensor]]:
        """Name and tensor of each parameter that has a twin, in order.

        A parameter that was given without a name is called by its position: ``"0.3"`` is the fourth
        of the first group.
        """
        for i, group in enumerate(self.param_groups):
            names = group.get("param_names")
            for j, p in enumerate(group["params"]):
                if resolve_penalty(group["penalty"], p.ndim) is not None:
                    yield (names[j] if names else f"{i}.{j}"), p

    def penalty(self, p: Tensor) -> Penalty:
        """The penalty on p's twin, threshold included."""
        group = self._group_of(p)
        if group["tied"]:
            return self._tied_penalties(group)[p]
        penalty = penalty_of(p, group, self._scale(p, group))
        if penalty is None:
            raise ValueError(
                f"parameter {self._name(p)} has no twin: its penalty is {group['penalty']!r}; "
                "use penalty='lasso' or 'group_lasso' for its group"
            )
        return penalty

    def penalties(self) -> dict[Tensor, Penalty]:
        """The penalty of each parameter that has a twin; joint norms are taken once for all."""
        found: dict[Tensor, Penalty] = {}
        for group in self.param_groups:
            if group["tied"]:
                found |= self._tied_penalties(group)
                continue
            for p in group["params"]:
                if resolve_penalty(group["penalty"], p.ndim) is not None:
                    found[p] = cast("Penalty", penalty_of(p, group, self._scale(p, group)))
        return found

    @torch.no_grad()
    def _tied_penalties(self, group: dict[str, Any]) -> dict[Tensor, TiedGroupLasso]:
        params: list[Tensor] = group["params"]
        alone = [cast("GroupLasso", penalty_of(p, group, self._scale(p, group))) for p in params]
        joint = dtensor.tie(alone, [self.dual(p) for p in params])
        return dict(zip(params, joint, strict=True))

    def _scale(self, p: Tensor, group: dict[str, Any]) -> Tensor | None:
        scale = self.state.get(p, {}).get("lambd_scale")
        own = isinstance(resolve_penalty(group["penalty"], p.ndim), str)
        if scale is None and own and group["lambd_scale"] == "init":
            return new_scale(p, group, self.state)
        return cast("Tensor | None", scale)

    def dual(self, p: Tensor) -> Tensor:
        """V of parameter p, in float32 at least; zero before the first step."""
        self._check_fit(p, self._group_of(p))
        v: Tensor | None = self.state.get(p, {}).get("v")
        return new_v(p) if v is None else v.to(dual_dtype(p))

    @torch.no_grad()
    def gamma(self, p: Tensor) -> Tensor:
        """Gamma of parameter p, computed from V; zero before the first step."""
        penalty, V = self.penalty(p), self.dual(p)
        return cast("float", self._group_of(p)["kappa"]) * penalty.prox(V)

    @torch.no_grad()
    def support(self, p: Tensor) -> Tensor:
        """Boolean mask, shaped as p: where Gamma is not zero. Groups are in or out as a whole."""
        return self._own_mask(p, self.penalty(p))

    def _own_mask(self, p: Tensor, penalty: Penalty) -> Tensor:
        support = penalty.support(self.dual(p))  # the weights of a filter share one element
        if dtensor.is_dtensor(p):
            return support.clone()
        return torch.empty_like(p, dtype=torch.bool, requires_grad=False).copy_(support)

    @torch.no_grad()
    def mask(self, model: nn.Module | None = None) -> dict[str, Tensor]:
        """The support of Gamma by parameter name: the subnetwork of now.

        It goes straight into :func:`dessilbi.project` and :func:`dessilbi.compact`.

        Args:
            model: gives the names; needed if the optimizer was made without, as by
                ``model.parameters()``.
        """
        names: dict[Tensor, str] = {}
        if model is not None:
            names = {p: name for name, p in named_weights(model).items()}
        else:
            for group in self.param_groups:
                names |= zip(group["params"], group.get("param_names", ()), strict=False)
        found = {}
        for p, penalty in self.penalties().items():
            if p not in names:
                way_out = "opt.mask(model)" if model is None else "the model that it trains"
                raise ValueError(
                    f"parameter {self._name(p)} of the optimizer has no name; use {way_out}"
                )
            found[names[p]] = self._own_mask(p, penalty)
        return found

    @torch.no_grad()
    def density(self, p: Tensor | None = None) -> float:
        """Fraction of weights in the support of Gamma: of p, or of all weights with a twin."""
        penalties = self.penalties() if p is None else {p: self.penalty(p)}
        total = sum(q.numel() for q in penalties)
        kept = sum(dtensor.count(one.support(self.dual(q))) for q, one in penalties.items())
        return kept / total if total else 0.0

    # ------------------------------------------------------------------ the knobs

    def set_coupling_time(
        self,
        tau: float | None = None,
        *,
        steps: int,
        scheduler: LRScheduler | None = None,
        every: int = 1,
    ) -> None:
        """Set ``nu`` of every group such that the coupling time of the training is tau.

        The coupling time is the sum of ``lr / nu`` over the steps of the training: how many times W
        could have relaxed onto Gamma. Groups whose ``nu`` was given as a number keep it, unless
        ``tau`` is given here.

        Args:
            tau: the coupling time; by default that of each group.
            steps: optimizer steps of the training.
            scheduler: of the learning rate, as it is before training; without one the rate is taken
                to stay as it is. It is not moved: a copy of it is.
            every: optimizer steps between two steps of the scheduler.
        """
        rates = _total_rates(self, steps, scheduler, every)
        for group, total in zip(self.param_groups, rates, strict=True):
            goal = group["tau"] if tau is None else tau
            if goal is not None:
                group["tau"] = goal
                group["nu"] = total / goal

    # ------------------------------------------------------------------ checks and look-ups

    def _check_changed(self, group: dict[str, Any]) -> None:
        """Check the options of a group that was changed since it was last checked."""
        lr = group["lr"]
        options = [group[name] for name in self._options if name not in ("lr", "penalty")]
        options.append(penalty if isinstance(penalty := group["penalty"], str) else id(penalty))
        if isinstance(lr, torch.Tensor):
            lr = float(lr) if lr.numel() == 1 else math.nan
        if not at_least_zero(lr) or self._checked.get(id(group)) != options:
            index = next(i for i, one in enumerate(self.param_groups) if one is group)
            check_group(group, index, self._options)
            self._checked = {**self._checked, id(group): options}

    def _check_fit(self, p: Tensor, group: dict[str, Any]) -> None:
        check_fit(p, group, self.state.get(p, {}), self._update_masks.get(p), self._name)

    def _restore_precision(self, saved: dict[str, Any]) -> None:
        """After loading: our tensors in their own dtype and layout, and all options checked."""
        ids = [i for group in saved["param_groups"] for i in group["params"]]
        params = [p for group in self.param_groups for p in group["params"]]
        for i, p in zip(ids, params, strict=True):
            if i in saved["state"]:
                own = restored(p, saved["state"][i], self._name, self._state_keys, self._v_dtype)
                self.state[p].update(own)
        for index, group in enumerate(self.param_groups):
            check_group(group, index, self._options)
            for p in group["params"]:
                self._check_fit(p, group)

    def _group_of(self, p: Tensor) -> dict[str, Any]:
        for group in self.param_groups:
            if any(p is q for q in group["params"]):
                return group
        raise ValueError(
            f"this optimizer does not hold the given tensor of shape {tuple(p.shape)}; "
            "pass one of its parameters"
        )

    def _name(self, p: Tensor) -> str:
        group = self._group_of(p)
        i = next(i for i, q in enumerate(group["params"]) if q is p)
        names = group.get("param_names")
        return repr(names[i]) if names else f"{i} of its group, shape {tuple(p.shape)}"


def _total_rates(
    opt: Optimizer, steps: int, scheduler: LRScheduler | None, every: int
) -> list[float]:
    """The sum of the learning rates of the next steps, by parameter group."""
    if steps < 1:
        raise ValueError(f"steps must be >= 1, got {steps!r}")
    if every < 1:
        raise ValueError(f"every must be >= 1, got {every!r}")
    if scheduler is None:
        return [float(group["lr"]) * steps for group in opt.param_groups]
    groups = [
        {k: copy.deepcopy(v) for k, v in group.items() if k != "params"}
        for group in opt.param_groups
    ]
    # A scheduler knows of its optimizer the groups, and that its step was called.
    dry: Any = SimpleNamespace(
        param_groups=groups, defaults=opt.defaults, step=lambda: None, _opt_called=True
    )
    dry.step._wrapped_by_lr_sched = True
    moved = copy.deepcopy(scheduler, {id(scheduler.optimizer): dry, id(opt): dry})
    totals = [0.0] * len(groups)
    for step in range(1, steps + 1):
        totals = [total + float(group["lr"]) for total, group in zip(totals, groups, strict=True)]
        if step % every == 0:
            moved.step()
    return totals

"""DessiLBI as a torch optimizer."""

from __future__ import annotations

import math
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast, overload

import torch
from torch.optim import Optimizer

from dessilbi.graph.names import named_weights

from . import dtensor
from ._group_step import penalty_of, step_group
from ._options import DEFAULTS, at_least_zero, check_group, check_options, check_params
from ._state import check_fit, init_state, new_scale, new_v, only_asks_for_state, restored
from .prox import (
    GroupLasso,
    LambdScale,
    Penalty,
    TiedGroupLasso,
    resolve_penalty,
    tie,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from torch import Tensor, nn
    from torch.optim.optimizer import ParamsT

    from ._options import Coupling, PenaltyOption


class DessiLBI(Optimizer):
    r"""Trains the weights W while a sparse twin Gamma, coupled to them, grows from nothing.

    DessiLBI (Deep structurally splitting Linearized Bregman Iteration, ICML 2020) is SGD with a
    second set of variables. With :math:`V_0 = \Gamma_0 = 0` each step does

    .. math::
        C_k          &= (W_k - \Gamma_k) / \nu \\
        W_{k+1}      &= W_k - lr \, (\nabla L(W_k) + C_k) \\
        V_{k+1}      &= V_k + (lr / \kappa) \, C_k \\
        \Gamma_{k+1} &= \kappa \, \mathrm{prox}_{\lambda \Omega}(V_{k+1})

    where ``lr`` is the paper's :math:`\kappa\alpha` (so SGD recipes carry over), ``nu`` is
    :math:`\nu` and ``lambd`` is :math:`\lambda`. Important weights enter the support of Gamma
    early, unimportant ones late or never; as ``nu`` goes to infinity W follows SGD.

    Gamma is a function of V and is never stored: the state is V and the momentum buffer.

    Args:
        params: parameters, named parameters or groups of them; see :func:`split_parameters`.
        lr: step of W, as in SGD; a float or a one-element tensor.
        kappa: damping; at a fixed lr it acts only through ``kappa * lambd``.
        nu: how loosely Gamma is coupled to W; smaller is tighter.
        lambd: threshold that a group of V must pass to enter Gamma.
        penalty: ``"auto"`` (the paper's: tensors with 3 or more dimensions by slice, matrices by
            element, nothing for vectors), ``"lasso"``, ``"group_lasso"`` or ``None`` (no twin:
            plain SGD). ``"auto"`` sees shapes only; :func:`split_parameters` sees modules and so
            leaves embeddings alone.
        group_dim: dimension whose slices are the groups of ``"group_lasso"``: 0 for filters and
            neurons, 1 for input channels.
        momentum: as in :class:`torch.optim.SGD`.
        nesterov: as in :class:`torch.optim.SGD`.
        weight_decay: L2 decay, part of the gradient as in :class:`torch.optim.SGD`.
        decoupled_weight_decay: use the paper's form instead, ``W <- ... - weight_decay * W``, not
            scaled by lr.
        coupling: ``"direct"`` adds C to the step, ``"momentum"`` (the paper's text) to the momentum
            buffer, which amplifies it by ``1 / (1 - momentum)``.
        maximize: climb the loss instead of descending it.
        foreach: multi-tensor implementation; by default only where torch would use it (GPUs).
        fused: one pass over the weights, at the cost of Adam: a C++ kernel on CPU (needs a
            compiler, two seconds on first use), torch.compile elsewhere.
        lambd_scale: ``None``; ``"size"``, thresholds times sqrt(group size); ``"init"``, times the
            norm of the group at the first step. :func:`split_parameters` sets it.
        tied: slice i along ``group_dim`` of all tensors of a parameter group is one group of
            Gamma: its norm is taken over all of them, and they enter and leave together. For
            filters that can only be removed together; :func:`split_parameters` finds them.

    Every option can be set by parameter group.

    Example:
        Change ``torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)`` to this:

        >>> model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
        >>> opt = DessiLBI(split_parameters(model), lr=0.1, momentum=0.9, nu=1, lambd=0.3)
        >>> x, y = torch.randn(32, 8), torch.randint(2, (32,))
        >>> for _ in range(20):
        ...     opt.zero_grad()
        ...     nn.functional.cross_entropy(model(x), y).backward()
        ...     opt.step()
        >>> 0 < opt.density() < 1, list(opt.mask())
        (True, ['0.weight', '2.weight'])

    References:
        Fu, Liu, Li, Sun, Zeng, Yao: DessiLBI: Exploring Structural Sparsity of Deep Networks via
        Differential Inclusion Paths. ICML 2020.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 0.1,
        *,
        kappa: float = 1.0,
        nu: float = 100.0,
        lambd: float = 1.0,
        penalty: PenaltyOption = "auto",
        group_dim: int = 0,
        momentum: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
        decoupled_weight_decay: bool = False,
        coupling: Coupling = "direct",
        maximize: bool = False,
        foreach: bool | None = None,
        fused: bool | None = None,
        lambd_scale: LambdScale | None = None,
        tied: bool = False,
    ) -> None:
        options = locals()
        defaults = {name: options[name] for name in DEFAULTS}
        check_options(defaults)
        super().__init__(params, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group, checking its options and parameters as the constructor does."""
        index = len(self.param_groups)
        check_params(param_group, index)
        super().add_param_group(param_group)
        try:
            check_group(self.param_groups[-1], index)
        except ValueError:
            self.param_groups.pop()
            raise

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
        joint = tie(alone, [self._v(p) for p in params], [], group["group_dim"])
        return dict(zip(params, joint, strict=True))

    def _scale(self, p: Tensor, group: dict[str, Any]) -> Tensor | None:
        scale = self.state.get(p, {}).get("lambd_scale")
        if scale is None and group["lambd_scale"] == "init":
            return new_scale(p, group, self.state)
        return cast("Tensor | None", scale)

    @torch.no_grad()
    def gamma(self, p: Tensor) -> Tensor:
        """Gamma of parameter p, computed from V; zero before the first step."""
        penalty, V = self.penalty(p), self._v(p)
        return cast("float", self._group_of(p)["kappa"]) * penalty.prox(V)

    @torch.no_grad()
    def support(self, p: Tensor) -> Tensor:
        """Boolean mask, shaped as p: where Gamma is not zero. Groups are in or out as a whole."""
        return self._own_mask(p, self.penalty(p))

    def _own_mask(self, p: Tensor, penalty: Penalty) -> Tensor:
        support = penalty.support(self._v(p))  # the weights of a filter share one element
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
        kept = sum(dtensor.count(one.support(self._v(q))) for q, one in penalties.items())
        return kept / total if total else 0.0

    # ------------------------------------------------------------------ the step

    # Not part of the state: whoever restricts does so before each step.
    _update_masks: Mapping[Tensor, Tensor] = MappingProxyType({})
    # The options that were last checked, by group.
    _checked: Mapping[int, list[Any]] = MappingProxyType({})

    def restrict(self, update_masks: Mapping[Tensor, Tensor]) -> None:
        """Let the loss move only some weights, until the next call; ``{}`` frees all.

        Elsewhere gradient, weight decay and momentum rest (the buffer keeps its value), while the
        coupling with Gamma goes on: a subnetwork is trained and the path still grows on all
        weights. See :class:`dessilbi.NestedTraining`.

        Args:
            update_masks: by parameter, a boolean tensor shaped as it: True where the loss acts.
        """
        own = {p for group in self.param_groups for p in group["params"]}
        for p, where in update_masks.items():
            if p not in own:
                self._group_of(p)  # says so
            if where.dtype is not torch.bool or where.shape != p.shape:
                raise ValueError(
                    f"restrict needs a bool tensor of shape {tuple(p.shape)} for parameter "
                    f"{self._name(p)}, got {where.dtype} of shape {tuple(where.shape)}"
                )
        self._update_masks = dict(update_masks)

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Perform one iteration.

        Args:
            closure: reevaluates the model and returns the loss.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        # What is refused is refused before any weight of any group has moved.
        ready = []
        for group in self.param_groups:
            params: list[Tensor] = []
            grads: list[Tensor] = []
            vs: list[Tensor | None] = []
            buffers: list[Tensor | None] = []
            scales: list[Tensor | None] = []
            frozen_duals: list[Tensor] = []
            self._init_group(group, params, grads, vs, buffers, scales, frozen_duals)
            ready.append((group, params, grads, vs, buffers, scales, frozen_duals))
        for group, params, grads, vs, buffers, scales, frozen_duals in ready:
            step_group(group, params, grads, vs, buffers, scales, frozen_duals, self._update_masks)
        return loss

    def _init_group(
        self,
        group: dict[str, Any],
        params: list[Tensor],
        grads: list[Tensor],
        vs: list[Tensor | None],
        buffers: list[Tensor | None],
        scales: list[Tensor | None],
        frozen_duals: list[Tensor],
    ) -> None:
        # torch.compile runs this method, by its name, outside of the traced graph.
        self._check_changed(group)
        for p in group["params"]:
            self._check_fit(p, group)
            if p.grad is None:
                if group["tied"] and "v" in self.state.get(p, {}):
                    frozen_duals.append(self.state[p]["v"])  # not stepped, but a part of the norms
                continue
            if p.grad.is_sparse:
                raise RuntimeError(
                    f"DessiLBI does not support sparse gradients (parameter {self._name(p)}); "
                    "make the layer with sparse=False, or give it to torch.optim.SparseAdam"
                )
            fresh = p not in self.state
            _ = self.state[p]  # even if it stays empty: torch.distributed.checkpoint wants it
            init_state(p, group, self.state)
            if fresh and only_asks_for_state(p, group["lr"]):
                continue
            state = self.state.get(p, {})
            params.append(p)
            grads.append(p.grad)
            vs.append(state.get("v"))
            buffers.append(state.get("momentum_buffer") if group["momentum"] != 0 else None)
            scales.append(state.get("lambd_scale"))

    def _check_changed(self, group: dict[str, Any]) -> None:
        """Check the options of a group that was changed since it was last checked."""
        lr, *options = (group[name] for name in DEFAULTS)
        if isinstance(lr, torch.Tensor):
            lr = float(lr) if lr.numel() == 1 else math.nan
        if not at_least_zero(lr) or self._checked.get(id(group)) != options:
            index = next(i for i, one in enumerate(self.param_groups) if one is group)
            check_group(group, index)
            self._checked = {**self._checked, id(group): options}

    def _check_fit(self, p: Tensor, group: dict[str, Any]) -> None:
        check_fit(p, group, self.state.get(p, {}), self._update_masks.get(p), self._name)

    def _v(self, p: Tensor) -> Tensor:
        self._check_fit(p, self._group_of(p))
        v: Tensor | None = self.state.get(p, {}).get("v")
        return new_v(p) if v is None else v

    # ------------------------------------------------------------------ checkpoints

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the state; V keeps its float32 where torch would round it to the weights' dtype."""
        saved: dict[str, Any] = {}
        # Ours runs after the user's own hooks on the way in, and before them on the way out.
        former = self.state, self.param_groups, dict(self.defaults)
        before = self.register_load_state_dict_pre_hook(lambda _, final: saved.update(final))
        after = self.register_load_state_dict_post_hook(
            lambda _: self._restore_precision(saved), prepend=True
        )
        try:
            super().load_state_dict(state_dict)
        except BaseException:
            self.state, self.param_groups, self.defaults = former
            raise
        finally:
            before.remove()
            after.remove()

    def _restore_precision(self, saved: dict[str, Any]) -> None:
        ids = [i for group in saved["param_groups"] for i in group["params"]]
        params = [p for group in self.param_groups for p in group["params"]]
        for i, p in zip(ids, params, strict=True):
            if i in saved["state"]:
                self.state[p].update(restored(p, saved["state"][i], self._name))
        for index, group in enumerate(self.param_groups):
            check_group(group, index)
            for p in group["params"]:
                self._check_fit(p, group)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        # Checkpoints from before an option existed behave as if it had its default.
        for group in self.param_groups:
            if "coupled" in group:  # as version 0.1 called it
                group["tied"] = group.pop("coupled")
            for name, default in DEFAULTS.items():
                group.setdefault(name, default)

    # ------------------------------------------------------------------ look-ups

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

"""DessiLBI as a torch optimizer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

import torch

from ._group_step import step_group
from ._options import (
    OPTIONS,
    SGD_DEFAULTS,
    TAU,
    C,
    check_group,
    check_options,
    check_params,
    resolve_group,
    twin_defaults,
)
from ._state import KEYS, init_state, only_asks_for_state
from .prox import dim_of
from .twin import TwinOptimizer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor
    from torch.optim.optimizer import ParamsT

    from ._options import Coupling, PenaltyOption
    from .prox import LambdScale


class DessiLBI(TwinOptimizer):
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
        steps: optimizer steps of the training. With it ``nu`` follows from ``tau``, if the rate
            stays as it is; where it does not, :meth:`set_coupling_time` takes the scheduler.
        tau: coupling time, the sum of ``lr / nu`` over the training: how many times W could have
            relaxed onto Gamma. Carries over between networks, rates and lengths, as ``c`` does.
        c: relative threshold: a group enters Gamma when its part of V passes ``c`` times the norm
            that it began with.
        kappa: damping; at a fixed lr it acts only through ``kappa * lambd``.
        nu: how loosely Gamma is coupled to W, in place of ``tau``: smaller is tighter. 100 where
            neither it nor ``steps`` is given.
        lambd: threshold that a group of V must pass to enter Gamma, in place of ``c``.
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
        steps: int | None = None,
        tau: float = TAU,
        c: float = C,
        kappa: float = 1.0,
        nu: float | None = None,
        lambd: float | None = None,
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
        defaults = {name: options[name] for name in SGD_DEFAULTS} | twin_defaults(
            kappa=kappa,
            nu=nu,
            lambd=lambd,
            tau=tau,
            c=c,
            penalty=penalty,
            group_dim=group_dim,
            lambd_scale=lambd_scale,
            tied=tied,
        )
        check_options(defaults)
        super().__init__(params, defaults)
        if steps is not None:
            self.set_coupling_time(steps=steps)

    _options = OPTIONS
    _state_keys = KEYS

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group, checking its options and parameters as the constructor does."""
        index = len(self.param_groups)
        check_params(param_group, index)
        resolve_group(param_group)
        super().add_param_group(param_group)
        try:
            check_group(self.param_groups[-1], index)
        except ValueError:
            self.param_groups.pop()
            raise

    # ------------------------------------------------------------------ the step

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
                    # Not stepped, but a part of the norms.
                    frozen_duals.append(self.state[p]["v"].movedim(dim_of(p, group), 0))
                continue
            if p.grad.is_sparse:
                raise RuntimeError(
                    f"DessiLBI does not support sparse gradients (parameter {self._name(p)}); "
                    "make the layer with sparse=False, or give it to torch.optim.SparseAdam"
                )
            fresh = p not in self.state
            _ = self.state[p]  # even if it stays empty: torch.distributed.checkpoint wants it
            init_state(p, group, self.state)
            if group["momentum"] != 0 and "momentum_buffer" not in self.state[p]:
                self.state[p]["momentum_buffer"] = torch.zeros_like(p)
            if fresh and only_asks_for_state(p, group["lr"]):
                continue
            state = self.state.get(p, {})
            params.append(p)
            grads.append(p.grad)
            vs.append(state.get("v"))
            buffers.append(state.get("momentum_buffer") if group["momentum"] != 0 else None)
            scales.append(state.get("lambd_scale"))

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

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        # Checkpoints from before an option existed behave as if it had its default.
        for group in self.param_groups:
            if "coupled" in group:  # as version 0.1 called it
                group["tied"] = group.pop("coupled")
            for name, default in SGD_DEFAULTS.items():
                group.setdefault(name, default)
            for name, default in _BEFORE.items():
                group.setdefault(name, default)


# What groups meant that did not say so: 0.1 knew neither tau nor thresholds relative to anything.
_BEFORE = {
    "kappa": 1.0,
    "nu": 100.0,
    "lambd": 1.0,
    "penalty": "auto",
    "group_dim": 0,
    "lambd_scale": None,
    "tied": False,
    "tau": None,
}

"""SplitLBI: a sparse twin beside the weights that any torch optimizer trains."""

from __future__ import annotations

from collections import ChainMap
from typing import TYPE_CHECKING, Any, overload

import torch
from torch.optim import LBFGS, SGD, Optimizer

from ._group_step import scalar, twins_of
from ._options import TAU, TWIN_OPTIONS, C, check_group, resolve_group, twin_defaults
from ._state import TWIN_KEYS, init_state
from ._step import Item, Options, single_tensor
from .dtensor import localize
from .prox import dim_of
from .twin import TwinOptimizer

if TYPE_CHECKING:
    from collections import defaultdict
    from collections.abc import Callable, Iterable

    from torch import Tensor

    from ._options import PenaltyOption
    from .prox import LambdScale


class SplitLBI(TwinOptimizer):
    r"""Wraps any optimizer, so that a sparse twin Gamma grows beside the weights it trains.

    Before each step of the base optimizer, with the gradient taken at :math:`W_k` and the rate of
    that step, the coupling moves W and V; then the base moves W by the loss:

    .. math::
        C_k          &= (W_k - \Gamma_k) / \nu \\
        V_{k+1}      &= V_k + (lr / \kappa) \, C_k \\
        W_{k+1}      &= \mathrm{base}(W_k - lr \, C_k, \nabla L(W_k)) \\
        \Gamma_{k+1} &= \kappa \, \mathrm{prox}_{\lambda \Omega}(V_{k+1})

    Around :class:`torch.optim.SGD` that is :class:`DessiLBI`, to rounding. The base's parameter
    groups are ours: schedulers, ``add_param_group`` and options act on both. V lies beside the
    base's own state, so that one ``state_dict`` holds both, and methods that only the base has
    (``train`` and ``eval`` of a schedule-free one) are reached through this one. Under
    ``torch.compile`` the step of the base is compiled, the coupling is not: take ``fused=True``.

    Args:
        base: an optimizer that takes its gradients from ``p.grad``. What its parameter groups say
            of their twins (``penalty``, ``group_dim``, ``c``, ``nu``, ...), as those of
            :func:`split_parameters` do, wins over the options below.
        steps: optimizer steps of the training. With it ``nu`` follows from ``tau``, if the rate
            stays as it is; where it does not, :meth:`set_coupling_time` takes the scheduler.
        tau: coupling time, the sum of ``lr / nu`` over the training.
        c: relative threshold: a group enters Gamma when its part of V passes ``c`` times the norm
            that it began with.
        kappa: damping; it acts only through ``kappa * lambd``.
        nu: how loosely Gamma is coupled to W, in place of ``tau``.
        lambd: threshold that a group of V must pass to enter Gamma, in place of ``c``.
        penalty: as in :class:`DessiLBI`.
        group_dim: as in :class:`DessiLBI`.
        lambd_scale: as in :class:`DessiLBI`.
        tied: as in :class:`DessiLBI`.
        fused: one pass over W and V for the coupling: a C++ kernel on CPU (needs a compiler, two
            seconds on first use), torch.compile elsewhere. Whether the base is fused is its own.
        v_dtype: of V; by default float32 at least. ``torch.bfloat16`` halves its memory; it is
            rounded up or down at random, so the path is no longer the same to the bit.

    Example:
        >>> model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
        >>> opt = SplitLBI(torch.optim.AdamW(split_parameters(model), lr=0.01), steps=60)
        >>> x, y = torch.randn(32, 8), torch.randint(2, (32,))
        >>> for _ in range(60):
        ...     opt.zero_grad()
        ...     nn.functional.cross_entropy(model(x), y).backward()
        ...     opt.step()
        >>> 0 < opt.density() < 1
        True
    """

    # GradScaler would hand the scale to us; the base never saw it.
    _step_supports_amp_scaling = False
    _options = TWIN_OPTIONS

    def __init__(
        self,
        base: Optimizer,
        *,
        steps: int | None = None,
        tau: float = TAU,
        c: float = C,
        kappa: float = 1.0,
        nu: float | None = None,
        lambd: float | None = None,
        penalty: PenaltyOption = "auto",
        group_dim: int = 0,
        lambd_scale: LambdScale | None = None,
        tied: bool = False,
        fused: bool | None = None,
        v_dtype: torch.dtype | None = None,
    ) -> None:
        if not isinstance(base, Optimizer):
            raise TypeError(
                f"base must be a torch optimizer, for example torch.optim.AdamW(...), got "
                f"{type(base).__name__}"
            )
        if isinstance(base, TwinOptimizer):
            raise TypeError(f"base must not have a twin already, got {type(base).__name__}")
        if isinstance(base, LBFGS):
            raise TypeError("LBFGS takes several gradients a step; SplitLBI couples W once a step")
        if v_dtype is not None and not v_dtype.is_floating_point:
            raise ValueError(f"v_dtype must be a floating point type, got {v_dtype}")
        self._own_defaults = twin_defaults(
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
        # What Optimizer.__init__ does but for the groups, which the base has.
        self.__setstate__({"base": base, "defaults": base.defaults | self._own_defaults})
        self.fused, self._v_dtype = fused, v_dtype
        for index, group in enumerate(self.param_groups):
            self._complete(group, index)
        if steps is not None:
            self.set_coupling_time(steps=steps)

    def _complete(self, group: dict[str, Any], index: int) -> None:
        resolve_group(group)
        for name, value in self._own_defaults.items():
            group.setdefault(name, value)
        check_group(group, index, TWIN_OPTIONS)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group to the base, with a twin if it has a penalty."""
        self.base.add_param_group(param_group)
        try:
            self._complete(self.param_groups[-1], len(self.param_groups) - 1)
        except ValueError:
            self.param_groups.pop()
            raise

    def around(self, base: Optimizer) -> SplitLBI:
        """The same around another base, whose groups say what those of this one's say."""
        made = SplitLBI(base, fused=self.fused, v_dtype=self._v_dtype)
        made._own_defaults = dict(self._own_defaults)
        made.defaults = base.defaults | made._own_defaults
        return made

    # ------------------------------------------------------------------ one optimizer of two

    base: Optimizer

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Those of the base."""
        return self.base.param_groups

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:
        self.base.param_groups = groups

    @property
    def state(self) -> defaultdict[Tensor, Any]:
        """That of the base, and ``v`` (and ``lambd_scale``) of each parameter with a twin."""
        return self.base.state

    @state.setter
    def state(self, state: defaultdict[Tensor, Any]) -> None:
        self.base.state = state

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "base":
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.base, name)

    def __getstate__(self) -> dict[str, Any]:
        return {
            name: self.__dict__[name]
            for name in ("base", "defaults", "fused", "_v_dtype", "_own_defaults")
        }

    # ------------------------------------------------------------------ the step

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Perform one iteration: the coupling, then a step of the base.

        Args:
            closure: reevaluates the model and returns the loss.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        fresh, given = self._step_twins()
        try:
            self.base.step()
        finally:
            for p, grad in given:
                p.grad = grad
        self._begin(fresh)
        return loss

    # torch.compile compiles the step of the base alone: state that is made while it traces is lost.
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _step_twins(self) -> tuple[dict[Tensor, dict[str, Any]], list[tuple[Tensor, Tensor]]]:
        """The coupling; returns the state of twins that begin, and gradients that were changed."""
        # Most optimizers take a parameter without state for one that has not been stepped: the
        # twins that begin wait until the base has begun.
        fresh: dict[Tensor, dict[str, Any]] = {}
        ready = []
        for group in self.param_groups:
            params: list[Tensor] = []
            vs: list[Tensor | None] = []
            scales: list[Tensor | None] = []
            frozen_duals: list[Tensor] = []
            self._init_group(group, params, vs, scales, frozen_duals, fresh)
            ready.append((group, params, vs, scales, frozen_duals))
        given: list[tuple[Tensor, Tensor]] = []
        for group, params, vs, scales, frozen_duals in ready:
            twins = twins_of(group, params, vs, scales, frozen_duals)
            items = [Item(p, None, t) for p, t in zip(params, twins, strict=True)]
            decay = group["weight_decay"] if isinstance(self.base, SGD) else 0
            before = [p.clone() for p in params] if decay else []
            self._couple(items, group)
            # DessiLBI's decay is that of W_k; SGD would take that of the W which has moved. Only
            # there it can be told apart: it is a part of the gradient, and goes into the momentum.
            for p, W in zip(params, before, strict=decay != 0):
                assert p.grad is not None
                given.append((p, p.grad))
                p.grad = p.grad.add(W.sub_(p), alpha=-decay if group["maximize"] else decay)
        return fresh, given

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _begin(self, fresh: dict[Tensor, dict[str, Any]]) -> None:
        for p, own in fresh.items():
            self._refuse_a_clash(self.state[p].keys() & own.keys())
            self.state[p].update(own)

    def _refuse_a_clash(self, keys: Iterable[str]) -> None:
        for key in keys:
            raise ValueError(
                f"{type(self.base).__name__} keeps a {key!r} of its own in its state, where the "
                "twin's would go; wrap it in an optimizer that calls it otherwise"
            )

    def _couple(self, items: list[Item], group: dict[str, Any]) -> None:
        options = Options(
            lr=scalar(group["lr"]),
            kappa=group["kappa"],
            nu=group["nu"],
            momentum=0.0,
            nesterov=False,
            weight_decay=0.0,
            decoupled_weight_decay=False,
            coupling="direct",
            maximize=False,
        )
        items = localize(items, options.kappa)
        if self.fused:
            from ._fused import fused

            fused(items, options)
        else:
            single_tensor(items, options)

    def _init_group(
        self,
        group: dict[str, Any],
        params: list[Tensor],
        vs: list[Tensor | None],
        scales: list[Tensor | None],
        frozen_duals: list[Tensor],
        fresh: dict[Tensor, dict[str, Any]],
    ) -> None:
        self._check_changed(group)
        for p in group["params"]:
            self._check_fit(p, group)
            known: dict[str, Any] = self.state.get(p, {})
            if p.grad is None:
                if group["tied"] and "v" in known:
                    # Not stepped, but a part of the norms.
                    frozen_duals.append(known["v"].movedim(dim_of(p, group), 0))
                continue
            own = {key: known[key] for key in TWIN_KEYS if key in known}
            missing = len(own)
            init_state(p, group, ChainMap({p: own}, fresh, self.state), self._v_dtype)
            if len(own) > missing:
                fresh[p] = own
            if "v" in own:
                params.append(p)
                vs.append(own["v"])
                scales.append(own.get("lambd_scale"))

    # ------------------------------------------------------------------ checkpoints

    def state_dict(self) -> dict[str, Any]:
        """The base's, V included."""
        for before in self._optimizer_state_dict_pre_hooks.values():
            before(self)
        found = self.base.state_dict()
        for after in self._optimizer_state_dict_post_hooks.values():
            changed = after(self, found)
            found = found if changed is None else changed
        return found

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what :meth:`state_dict` gave; refused as a whole or loaded as a whole."""
        state_dict = dict(state_dict)
        for before in self._optimizer_load_state_dict_pre_hooks.values():
            changed = before(self, state_dict)
            state_dict = state_dict if changed is None else changed
        former = self.state, self.param_groups
        groups = state_dict["param_groups"]
        alone = [i for group in groups if "kappa" not in group for i in group["params"]]
        for i in alone:  # saved by the base without a twin
            self._refuse_a_clash(state_dict["state"].get(i, {}).keys() & set(TWIN_KEYS))
        try:
            self.base.load_state_dict(state_dict)
            for group in self.param_groups:
                for name, value in self._own_defaults.items():
                    group.setdefault(name, value)  # a checkpoint of the base alone
            self._restore_precision(state_dict)
        except BaseException:
            self.state, self.param_groups = former
            raise
        for after in self._optimizer_load_state_dict_post_hooks.values():
            after(self)

"""Watches the Lyapunov function of the paper's appendix while the optimizer runs."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from dessilbi.optim import SplitLBI
from dessilbi.optim.hooks import Attached

from .history import LyapunovHistory
from .scope import l2_of, numbers, outside, steps_along_gradient

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from dessilbi.optim import TwinOptimizer

    _Held = tuple[Tensor, dict[str, Any]]

_COLUMNS = tuple(f.name for f in fields(LyapunovHistory) if f.name not in ("precision", "outside"))


class _Iterate(NamedTuple):
    """(W, V, Gamma, g) as flat float64 vectors, and the losses there."""

    W: Tensor
    """All weights; those with a twin come first, so that ``W[:len(Gamma)]`` is its partner."""
    V: Tensor
    Gamma: Tensor
    g: Tensor
    omega: float
    """Omega(Gamma)."""
    loss: float
    """L(W) with weight decay."""
    augmented: float
    """Lbar(W, Gamma)."""
    grad: Tensor
    """grad L(W) with weight decay."""
    grad_w: Tensor
    """Gradient of Lbar in W."""
    grad_gamma: Tensor
    """Gradient of Lbar in Gamma."""


class LyapunovMonitor(Attached):
    r"""Records F, its descent and the other quantities of the convergence theorem.

    .. math::
        F(W, \Gamma, g) = \alpha \bar L(W, \Gamma) + \Omega(\Gamma) - \langle g, \Gamma \rangle,
        \qquad g = V - \Gamma / \kappa, \quad \alpha = lr / \kappa

    taken at :math:`Q_k = (W_k, \Gamma_k, g_{k-1})`, where the last two terms are the Bregman
    distance from :math:`\Gamma_{k-1}`. Hooks before and after a step do the work; training is not
    changed. A step that is watched costs one more gradient on top (two, if the step before was not
    watched) and a few copies of the weights.

    The theorem is about the full loss: ``closure`` should compute it, or a large fixed part of it.
    For mini-batch training take ``every=0`` and ask for single steps with :meth:`watch`.

    Args:
        opt: the optimizer to watch, DessiLBI or SplitLBI around SGD; one lr, and one kappa for all
            groups with a twin.
        closure: computes the loss L(W) and returns it, without backward and without weight decay,
            which is added here. Must be the same function each time: no dropout, fixed data. It is
            called once more than training does: put a network with BatchNorm in ``eval`` mode
            inside, or its running statistics move along.
        every: watch each step (1), each n-th, or none that is not asked for (0).

    Example:
        >>> net = torch.nn.Linear(3, 2)
        >>> x, y = torch.randn(8, 3), torch.randn(8, 2)
        >>> def loss():
        ...     return torch.nn.functional.mse_loss(net(x), y)
        >>> opt = DessiLBI(net.parameters(), lr=0.1, nu=1.0)
        >>> with LyapunovMonitor(opt, loss) as monitor:
        ...     for _ in range(10):
        ...         opt.zero_grad()
        ...         loss().backward()
        ...         opt.step()
        >>> monitor.history.check(lip=5.0).increases
        0
    """

    def __init__(
        self, opt: TwinOptimizer, closure: Callable[[], Tensor], *, every: int = 1
    ) -> None:
        if not steps_along_gradient(opt):
            base = f" around {type(opt.base).__name__}" if isinstance(opt, SplitLBI) else ""
            raise TypeError(
                "opt must be a DessiLBI optimizer, or SplitLBI around torch.optim.SGD: the theorem "
                f"is about steps along the gradient; got {type(opt).__name__}{base}"
            )
        if every < 0:
            raise ValueError(f"every must be >= 0, got {every}")
        numbers(opt)
        self._opt, self._closure, self._every = opt, closure, every
        self._step = 0
        self._asked = False
        self._before: _Iterate | None = None
        self._after: _Iterate | None = None
        self._constants: list[tuple[object, ...]] = []
        self._g_earlier = torch.zeros(0)
        self._bregman = 0.0
        self._rows: dict[str, list[float]] = {name: [] for name in _COLUMNS}
        self._precision = float(torch.finfo(torch.float64).eps)
        self._outside: dict[str, None] = {}
        self._handles = (
            opt.register_step_pre_hook(lambda *_: self._pre()),
            opt.register_step_post_hook(lambda *_: self._post()),
        )

    def watch(self) -> None:
        """Record the next step, whatever ``every`` says."""
        self._asked = True

    @property
    def history(self) -> LyapunovHistory:
        """What was recorded so far."""
        columns = {name: np.array(values) for name, values in self._rows.items()}
        columns["step"] = columns["step"].astype(np.int64)
        return LyapunovHistory(**columns, precision=self._precision, outside=tuple(self._outside))

    # ------------------------------------------------------------------ the hooks

    def _pre(self) -> None:
        watched = self._asked or (self._every > 0 and self._step % self._every == 0)
        self._asked = False
        if not watched:
            self._before = self._after = None
            return
        # With other constants F is another function, and a new series begins.
        groups = self._opt.param_groups
        constants: list[tuple[object, ...]] = [
            (g["kappa"], g["nu"], g["lambd"], l2_of(g)) for g in groups
        ]
        if (
            self._after is not None
            and constants == self._constants
            and self._is_at(self._after)  # and not loaded or changed since
        ):
            self._before = self._after
            return
        # The first of a series: Q_k with g_{k-1} = g_k, as at the start of a run.
        self._constants = constants
        self._before = self._iterate()
        self._g_earlier, self._bregman = self._before.g, 0.0

    def _post(self) -> None:
        if numbers(self._opt).lr > 0:
            self._step += 1
            if self._before is not None:
                self._record(self._before)

    def _record(self, old: _Iterate) -> None:
        n = numbers(self._opt)
        alpha = n.lr / n.kappa
        self._outside |= dict.fromkeys(outside(self._opt))
        new = self._iterate()
        # Omega(Gamma_k) = <g_k, Gamma_k>, so the Bregman distance from Gamma_k is this.
        bregman = new.omega - float(old.g @ new.Gamma)
        dGamma = new.Gamma - old.Gamma
        moved = _square(new.W - old.W) + _square(dGamma)
        # H = (alpha grad_W Lbar, alpha grad_Gamma Lbar + g_{k+1} - g_k, Gamma_k - Gamma_{k+1})
        subgrad = (
            alpha**2 * _square(new.grad_w)
            + _square(alpha * new.grad_gamma + new.g - old.g)
            + _square(dGamma)
        )
        row = {
            "step": self._step,
            "alpha": alpha,
            "kappa": n.kappa,
            "nu": n.nu,
            "loss": new.loss,
            "augmented": new.augmented,
            "bregman": bregman,
            "F_before": alpha * old.augmented + self._bregman,
            "F": alpha * new.augmented + bregman,
            "moved": moved,
            "moved_with_g": moved + _square(old.g - self._g_earlier),
            "grad": math.sqrt(_square(new.grad_w) + _square(new.grad_gamma)),
            "grad_loss": math.sqrt(_square(new.grad)),
            "gap": math.sqrt(_square(new.W[: len(new.Gamma)] - new.Gamma)),
            "subgrad": math.sqrt(subgrad),
        }
        for name, value in row.items():
            self._rows[name].append(value)
        self._after, self._g_earlier, self._bregman = new, old.g, bregman

    def _held(self) -> tuple[list[_Held], list[_Held]]:
        """Parameters with their groups: those with a twin, and the others."""
        twins = {id(p) for _, p in self._opt.twins()}
        held = [(p, g) for g in self._opt.param_groups for p in g["params"] if p.requires_grad]
        return [h for h in held if id(h[0]) in twins], [h for h in held if id(h[0]) not in twins]

    def _flat_state(self, twins: list[_Held], others: list[_Held]) -> tuple[Tensor, Tensor]:
        """W and V, flat."""
        state = self._opt.state
        W = [p.detach() for p, _ in (*twins, *others)]
        V = [state.get(p, {}).get("v", torch.zeros_like(p.detach())) for p, _ in twins]
        return _flat(W), _flat(V)

    def _is_at(self, point: _Iterate) -> bool:
        W, V = self._flat_state(*self._held())
        return torch.equal(W, point.W) and torch.equal(V, point.V)

    def _iterate(self) -> _Iterate:
        """The present point, with one evaluation of the loss and its gradient."""
        twins, others = self._held()
        held = twins + others
        with torch.enable_grad():
            loss = self._closure()
        if not isinstance(loss, torch.Tensor) or not loss.requires_grad:
            raise ValueError(
                "closure must return the loss as a tensor with its graph, and not call backward"
            )
        self._precision = max(self._precision, float(torch.finfo(loss.dtype).eps))
        gradients = torch.autograd.grad(
            loss, [p for p, _ in held], allow_unused=True, materialize_grads=True
        )
        W, duals = self._flat_state(twins, others)
        decay = _flat([torch.full_like(p, l2_of(g)) for p, g in held])
        Gammas, gs, pulls, omega = [], [], [], 0.0
        parts = torch.split(duals, [p.numel() for p, _ in twins])
        for (p, group), part in zip(twins, parts, strict=True):
            penalty, V = self._opt.penalty(p), part.view(p.shape)
            # Gamma = kappa prox(V), and so g = V - prox(V): the projection on the dual ball.
            small = penalty.prox(V)
            Gamma = group["kappa"] * small
            omega += float(penalty.value(Gamma))
            Gammas.append(Gamma)
            gs.append(V - small)
            pulls.append((p.detach().double() - Gamma) / group["nu"])
        Gamma, pull = _flat(Gammas), _flat(pulls)
        value = float(loss.detach()) + float((decay * W) @ W) / 2
        grad = _flat(list(gradients)) + decay * W
        grad_w = grad.clone()
        grad_w[: len(pull)] += pull
        return _Iterate(
            W=W,
            V=duals,
            Gamma=Gamma,
            g=_flat(gs),
            omega=omega,
            loss=value,
            augmented=value + float((W[: len(Gamma)] - Gamma) @ pull) / 2,
            grad=grad,
            grad_w=grad_w,
            grad_gamma=-pull,
        )


def _flat(tensors: list[Tensor]) -> Tensor:
    if not tensors:
        return torch.zeros(0, dtype=torch.float64)
    return torch.cat([t.reshape(-1).double() for t in tensors])


def _square(t: Tensor) -> float:
    return float(t @ t)

"""AdaBound: Adam with learning rates clipped between two bounds that close on one value."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, overload

import torch
from torch.optim import Optimizer

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor
    from torch.optim.optimizer import ParamsT


class AdaBound(Optimizer):
    r"""Adam at first, SGD in the end, by bounds on the rate of each weight.

    With :math:`m_0 = v_0 = 0`, and for :math:`t = 1, 2, \dots`

    .. math::
        g_t       &= \nabla L(W_{t-1}) + \mathrm{decay} \cdot W_{t-1} \\
        m_t       &= \beta_1 m_{t-1} + (1 - \beta_1) \, g_t \\
        v_t       &= \beta_2 v_{t-1} + (1 - \beta_2) \, g_t^2 \\
        \alpha_t  &= lr \, \sqrt{1 - \beta_2^t} \, / \, (1 - \beta_1^t) \\
        \alpha^*  &= \mathrm{final\_lr} \cdot lr \, / \, \mathrm{base\_lr} \\
        \eta_l(t) &= \alpha^* \, (1 - 1 / (\gamma t + 1)), \qquad
        \eta_u(t)  = \alpha^* \, (1 + 1 / (\gamma t)) \\
        W_t       &= W_{t-1} -
            \mathrm{clip}(\alpha_t / (\sqrt{v_t} + \epsilon), \, \eta_l(t), \, \eta_u(t)) \odot m_t

    Both bounds tend to :math:`\alpha^*`: for large t this is SGD at rate ``final_lr`` along the
    running mean of the gradients. This is Algorithm 2 of the paper as its authors run it: with
    Adam's bias correction of the rate, and without the factor :math:`1/\sqrt{t}` that the
    convergence proof puts on the rate. ``gamma`` is :math:`1 - \beta_2` in the paper.

    ``base_lr``, kept in each parameter group, is the rate the group was made with: a schedule that
    lowers ``lr`` lowers the bounds alike.

    Args:
        params: parameters, named parameters or groups of them.
        lr: rate of the Adam phase; > 0, as the bounds are relative to it.
        betas: decay of the running means of gradient and squared gradient.
        eps: added to the denominator.
        weight_decay: L2 decay, part of the gradient.
        final_lr: rate of the SGD phase.
        gamma: speed at which the bounds close.

    Every option can be set by parameter group.

    References:
        Luo, Xiong, Liu, Sun: Adaptive Gradient Methods with Dynamic Bound of Learning Rate.
        ICLR 2019.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        final_lr: float = 0.1,
        gamma: float = 1e-3,
    ) -> None:
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "final_lr": final_lr,
            "gamma": gamma,
        }
        super().__init__(params, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group, checking its options, and note the rate that its bounds refer to."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        group.setdefault("base_lr", float(group["lr"]))
        try:
            _check(group)
        except ValueError:
            self.param_groups.pop()
            raise

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
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                if p.grad.is_sparse:
                    raise RuntimeError(
                        "AdaBound does not support sparse gradients; make the layer with "
                        "sparse=False, or give it to torch.optim.SparseAdam"
                    )
                state = self.state[p]
                if not state:
                    state["step"] = torch.zeros((), dtype=torch.float64)
                    state["exp_avg"] = torch.zeros_like(p)
                    state["exp_avg_sq"] = torch.zeros_like(p)
                state["step"] += 1
                t = int(state["step"])
                adabound(p, p.grad, state["exp_avg"], state["exp_avg_sq"], t, group)
        return loss


def adabound(W: Tensor, g: Tensor, m: Tensor, v: Tensor, t: int, group: dict[str, Any]) -> None:
    """Iteration t for one tensor; changes W, m and v in options, and leaves the gradient alone."""
    beta1, beta2 = group["betas"]
    lr = float(group["lr"])
    if group["weight_decay"] != 0:
        g = g.add(W, alpha=group["weight_decay"])
    m.lerp_(g, 1 - beta1)
    v.mul_(beta2).addcmul_(g, g, value=1 - beta2)

    alpha = lr * math.sqrt(1 - beta2**t) / (1 - beta1**t)
    lower, upper = bounds(group, t)
    eta = v.sqrt().add_(group["eps"]).reciprocal_().mul_(alpha).clamp_(lower, upper)
    W.addcmul_(eta, m, value=-1)


def bounds(group: dict[str, Any], t: int) -> tuple[float, float]:
    """The lower and upper bound of the rates at iteration t >= 1."""
    target = group["final_lr"] * float(group["lr"]) / group["base_lr"]
    return (
        target * (1 - 1 / (group["gamma"] * t + 1)),
        target * (1 + 1 / (group["gamma"] * t)),
    )


def _check(group: dict[str, Any]) -> None:
    for name in ("lr", "base_lr", "final_lr", "gamma"):
        if not 0 < float(group[name]) < math.inf:
            raise ValueError(f"{name} must be > 0 and finite, got {group[name]!r}")
    for name in ("eps", "weight_decay"):
        if not 0 <= group[name] < math.inf:
            raise ValueError(f"{name} must be >= 0 and finite, got {group[name]!r}")
    if not all(0 <= beta < 1 for beta in group["betas"]):
        raise ValueError(f"betas must lie in [0, 1), got {group['betas']!r}")

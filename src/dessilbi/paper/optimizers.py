"""Optimizers that only the paper compares; importing this lets configurations name them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch.optim import Optimizer

from dessilbi.lab.training.fused import torch_fuses
from dessilbi.lab.training.optimizers import register_optimizer
from dessilbi.paper.competitors import COMPETITORS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor, nn
    from torch.optim.optimizer import ParamsT

    from dessilbi.lab.run.config import OptimizerConfig

__all__ = ["COMPETITORS", "SGDL1", "AdaBound", "add_l1"]


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
    convergence proof puts on the rate. ``base_lr``, kept in each parameter group, is the rate it
    was made with: a schedule that lowers ``lr`` lowers the bounds alike.

    References:
        Luo, Xiong, Liu, Sun: Adaptive Gradient Methods with Dynamic Bound of Learning Rate.
        ICLR 2019.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        final_lr: float = 0.1,
        gamma: float = 1e-3,
    ) -> None:
        if not 0 < lr < math.inf:
            raise ValueError(f"lr must be > 0 and finite, got {lr!r}")
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
        """Add a group, and note the rate that its bounds refer to."""
        super().add_param_group(param_group)
        self.param_groups[-1].setdefault("base_lr", self.param_groups[-1]["lr"])

    @torch.no_grad()
    def step(  # type: ignore[override]
        self, closure: Callable[[], float] | None = None
    ) -> float | None:
        """Perform one iteration."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
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
    """Iteration t for one tensor; changes W, m and v in place, and leaves the gradient alone."""
    beta1, beta2 = group["betas"]
    if group["weight_decay"] != 0:
        g = g.add(W, alpha=group["weight_decay"])
    m.lerp_(g, 1 - beta1)
    v.mul_(beta2).addcmul_(g, g, value=1 - beta2)

    alpha = group["lr"] * math.sqrt(1 - beta2**t) / (1 - beta1**t)
    final = group["final_lr"] * group["lr"] / group["base_lr"]
    lower = final * (1 - 1 / (group["gamma"] * t + 1))
    upper = final * (1 + 1 / (group["gamma"] * t))
    eta = v.sqrt().add_(group["eps"]).reciprocal_().mul_(alpha).clamp_(lower, upper)
    W.addcmul_(eta, m, value=-1)


def add_l1(optimizer: Optimizer, weights: Sequence[Tensor], strength: float) -> None:
    r"""Train with :math:`L(W) + s \|w\|_1` over some weights, by a subgradient of the penalty.

    Before every step :math:`s \operatorname{sign}(w)`, with sign(0) = 0, is added to the gradients
    of these weights. One rarely becomes exactly zero this way (it hovers around it at the height of
    a step): this is a competitor, not a way to a sparse network.

    Args:
        optimizer: on every step of which this acts from now on, whichever it is.
        weights: which of its parameters are penalised.
        strength: s.
    """
    if not strength >= 0:
        raise ValueError(f"strength must be >= 0, got {strength!r}")

    def penalise(*_: object) -> None:
        for w in weights:
            if w.grad is not None:
                w.grad.add_(w.detach().sign(), alpha=strength)

    optimizer.register_step_pre_hook(penalise)


class SGDL1(torch.optim.SGD):
    """SGD with an l1 penalty on "the weights", as the paper has it.

    Here these are filters and matrices, to which DessiLBI gives a twin. Biases and normalisation
    stay free, since shrinking them makes nothing sparse.
    """

    def __init__(self, params: ParamsT, l1: float, **options: Any) -> None:
        super().__init__(params, **options)
        weights = [p for group in self.param_groups for p in group["params"] if p.ndim >= 2]
        add_l1(self, weights, l1)


def _sgd_l1(groups: list[dict[str, Any]], model: nn.Module, config: OptimizerConfig) -> Optimizer:
    options = {name: getattr(config, name) for name in OF_SGD_L1}
    return SGDL1(groups, fused=True if torch_fuses(model) else None, **options)


def _adabound(groups: list[dict[str, Any]], model: nn.Module, config: OptimizerConfig) -> Optimizer:
    return AdaBound(groups, lr=config.lr, weight_decay=config.weight_decay)


register_optimizer("adabound", _adabound, ("lr", "weight_decay"))
OF_SGD_L1 = ("lr", "momentum", "nesterov", "weight_decay", "l1")
register_optimizer("sgd-l1", _sgd_l1, OF_SGD_L1, wraps=False)

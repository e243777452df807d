"""SGD on the loss plus an l1 penalty: the Lasso of the paper's comparison."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim.optimizer import ParamsT


class SGDL1(torch.optim.SGD):
    r"""SGD on :math:`L(W) + \ell_1 \|W\|_1`, by a subgradient of the penalty.

    .. math::
        G_k     &= \nabla L(W_k) + \ell_1 \, \mathrm{sign}(W_k), \qquad \mathrm{sign}(0) = 0 \\
        W_{k+1} &= W_k - lr \, G_k

    ``l1`` is :math:`\ell_1`; momentum, Nesterov and weight decay act on :math:`G_k` as in
    :class:`torch.optim.SGD`. A weight rarely becomes exactly zero this way (it hovers around it at
    the height of a step); the method is a competitor, not a way to a sparse net.

    ``p.grad`` is left as it is: the sum goes to a tensor of its own, kept from step to step since
    fresh memory costs more than the arithmetic (VGG-16 on CPU: 7 ms a step without the penalty, 17
    with it, 50 to 80 with fresh memory). It is no state: state_dict does not hold it.

    Args:
        params: parameters, named parameters or groups of them; see :func:`penalise_weights`.
        lr: learning rate.
        l1: weight of the penalty; can be set by parameter group.
        momentum: as in :class:`torch.optim.SGD`.
        nesterov: as in :class:`torch.optim.SGD`.
        weight_decay: as in :class:`torch.optim.SGD`.
        fused: as in :class:`torch.optim.SGD`.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 0.1,
        *,
        l1: float = 1e-3,
        momentum: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
        fused: bool | None = None,
    ) -> None:
        super().__init__(
            params,
            lr=lr,
            momentum=momentum,
            nesterov=nesterov,
            weight_decay=weight_decay,
            fused=fused,
        )
        self.defaults["l1"] = l1
        for group in self.param_groups:
            if not 0 <= group.setdefault("l1", l1) < math.inf:
                raise ValueError(f"l1 must be >= 0 and finite, got {group['l1']!r}")
        self._sums: dict[Tensor, Tensor] = {}
        # A scaler must not leave the unscaling to the fused step, where it would reach the penalty.
        self._step_supports_amp_scaling = False

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._sums = {}  # another process, or loaded: weights may lie elsewhere now

    def _init_group(
        self,
        group: dict[str, Any],
        params: list[Tensor],
        grads: list[Tensor],
        momentum_buffer_list: list[Tensor | None],
    ) -> bool:
        # SGD.step asks here what to work on. Wrapping step() instead would run hooks twice.
        has_sparse_grad: bool = super()._init_group(  # type: ignore[no-untyped-call]
            group, params, grads, momentum_buffer_list
        )
        if group["l1"] != 0:
            grads[:] = [
                self._penalised(W, grad, group["l1"]) for W, grad in zip(params, grads, strict=True)
            ]
        return has_sparse_grad

    def _penalised(self, W: Tensor, grad: Tensor, l1: float) -> Tensor:
        """The gradient plus ``l1 * sign(W)``."""
        total = self._sums.get(W)
        if total is None or (total.dtype, total.device) != (W.dtype, W.device):
            total = self._sums[W] = torch.empty_like(W, requires_grad=False)
        torch.sign(W, out=total)
        return torch.add(grad, total, alpha=l1, out=total)


def penalise_weights(model: nn.Module, l1: float) -> list[dict[str, Any]]:
    """Parameter groups for :class:`SGDL1`: the weights with the penalty, the rest without.

    The paper penalises "the weights". Here these are the tensors with two or more dimensions:
    filters and matrices, the ones to which DessiLBI gives a twin. Biases and the scales and shifts
    of normalisation stay free, since shrinking them makes nothing sparse.
    """
    named = list(model.named_parameters())
    weights = [(name, p) for name, p in named if p.ndim >= 2]
    others = [(name, p) for name, p in named if p.ndim < 2]
    groups: list[dict[str, Any]] = [
        {"name": "weights", "params": weights, "l1": l1},
        {"name": "others", "params": others, "l1": 0.0},
    ]
    return [group for group in groups if group["params"]]

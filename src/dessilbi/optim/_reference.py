"""The iteration of the paper, spelled out: the truth that every fast path is tested against.

One tensor, one equation a line, Gamma stored, no in-place arithmetic, nothing shared with the
optimizer. Meant for float64; it runs in any dtype (the benchmark times it in float32 as 'the
literal per-tensor loop').
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass
class Reference:
    """DessiLBI on a single tensor W, symbols as in the paper, options as in :class:`DessiLBI`.

    ``penalty`` is ``"lasso"``, ``"group_lasso"`` or ``None`` (plain SGD, no twin).
    """

    W: Tensor
    lr: float = 0.1
    kappa: float = 1.0
    nu: float = 100.0
    lambd: float | Tensor = 1.0
    penalty: str | None = "lasso"
    group_dim: int = 0
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    decoupled_weight_decay: bool = False
    coupling: str = "direct"
    maximize: bool = False
    V: Tensor = field(init=False)
    Gamma: Tensor = field(init=False)
    buffer: Tensor | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.V = torch.zeros_like(self.W)
        self.Gamma = torch.zeros_like(self.W)

    def step(self, grad: Tensor, update_mask: Tensor | None = None) -> None:
        """One iteration, Eq. (SLBI-iterate1) to (SLBI-iterate3) with the stochastic variants.

        Where ``update_mask`` is False, W feels the coupling only and the momentum buffer rests.
        """
        W, V, Gamma = self.W, self.V, self.Gamma
        before = torch.zeros_like(W) if self.buffer is None else self.buffer
        alpha = self.lr / self.kappa

        gradient = -grad if self.maximize else grad
        if not self.decoupled_weight_decay:
            gradient = gradient + self.weight_decay * W

        # C is the gradient of 1/(2 nu) ||W - Gamma||^2 in W, and minus its gradient in Gamma.
        C = torch.zeros_like(W) if self.penalty is None else (W - Gamma) / self.nu
        if self.coupling == "momentum":
            gradient = gradient + C

        direction = gradient
        if self.momentum != 0:
            if self.buffer is None:
                self.buffer = gradient
            else:
                self.buffer = self.momentum * self.buffer + gradient
            direction = gradient + self.momentum * self.buffer if self.nesterov else self.buffer
        if self.coupling == "direct":
            direction = direction + C

        self.W = W - self.lr * direction
        if self.decoupled_weight_decay:
            self.W = self.W - self.weight_decay * W
        if update_mask is not None:
            self.W = torch.where(update_mask, self.W, W - self.lr * C)
            if self.buffer is not None:
                self.buffer = torch.where(update_mask, self.buffer, before)
        self.V = V + alpha * C
        self.Gamma = self.kappa * self.prox(self.V)

    def prox(self, V: Tensor) -> Tensor:
        """Prox of lambd * Omega_1."""
        if self.penalty is None:
            return V
        if self.penalty == "lasso":
            return torch.sign(V) * torch.clamp(V.abs() - self.lambd, min=0)
        dims = [d for d in range(V.ndim) if d != self.group_dim % V.ndim]
        norm = V.abs() if not dims else (V * V).sum(dim=dims, keepdim=True).sqrt()
        safe = torch.where(norm > 0, norm, torch.ones_like(norm))
        return torch.clamp(1 - self.lambd / safe, min=0) * V * (norm > 0)

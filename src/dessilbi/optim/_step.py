"""One iteration for a list of tensors, in plain torch: a loop, and its multi-tensor twin.

    C     = (W - Gamma) / nu,   Gamma = kappa * prox(V)
    W    <- W - lr * (direction + C)
    V    <- V + (lr / kappa) * C

``direction`` is the gradient, with L2 decay and momentum as in torch.optim.SGD. All right-hand
sides use the old W and V. Gradients are never changed. :mod:`._reference` spells it out literally.

A tensor with an update mask (see DessiLBI.restrict) takes ``direction`` only where it is true, and
the coupling everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, cast

import torch

from .prox import Lasso, gap

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from .prox import Penalty

    TensorList = list[Tensor] | tuple[Tensor, ...]

PART = 1 << 17
"""Elements of a large matrix that the coupling takes at a time."""


class Twin(NamedTuple):
    """A dual variable V and the penalty that turns it into Gamma."""

    V: Tensor
    penalty: Penalty
    known_gap: Tensor | None = None
    """``W - Gamma``, where it had to be taken before."""

    def gap(self, W: Tensor, kappa: float) -> Tensor:
        """``W - Gamma``, which is nu * C."""
        return gap(self.penalty, W, self.V, kappa) if self.known_gap is None else self.known_gap


class Item(NamedTuple):
    """All that one tensor's step needs."""

    W: Tensor
    grad: Tensor | None
    """``None`` where another optimizer takes it: the coupling alone moves W."""
    twin: Twin | None = None
    buffer: Tensor | None = None
    """Momentum buffer; ``None`` without momentum."""
    update_mask: Tensor | None = None
    """Where the loss moves W (boolean, shaped as W); ``None``: everywhere."""


@dataclass(frozen=True)
class Options:
    """The numbers of one parameter group; ``lr`` is a tensor only where torch.compile traces."""

    lr: float | Tensor
    kappa: float
    nu: float
    momentum: float
    nesterov: bool
    weight_decay: float
    decoupled_weight_decay: bool
    coupling: str
    maximize: bool

    @property
    def l2(self) -> float:
        """Weight decay inside the gradient."""
        return 0.0 if self.decoupled_weight_decay else self.weight_decay

    @property
    def decay(self) -> float | Tensor:
        """Weight decay of the paper's form, beside the gradient; a group with lr 0 is at rest."""
        if not self.decoupled_weight_decay:
            return 0.0
        if isinstance(self.lr, torch.Tensor):  # a bool tensor times a float would be float32
            return self.weight_decay * (self.lr != 0).to(self.lr.dtype)
        return self.weight_decay if self.lr != 0 else 0.0


def single_tensor(items: Sequence[Item], o: Options) -> None:
    """The loop: one tensor after the other."""
    inside = o.coupling == "momentum"
    for item in items:
        if item.update_mask is not None:
            _restricted(item, item.update_mask, o)
            continue
        W, grad, twin, buffer, _ = item
        if grad is None:
            _couple(item, o)
            continue
        direction = -grad if o.maximize else grad
        # Plain momentum: the decay goes straight into the buffer, which spares a temporary.
        decay_later = buffer is not None and not o.nesterov
        if o.l2 != 0 and not decay_later:
            direction = direction.add(W, alpha=o.l2)

        gap = None if twin is None else twin.gap(W, o.kappa)
        if gap is not None and inside:
            direction = direction.add(gap, alpha=1 / o.nu)

        if buffer is not None:
            torch.add(direction, buffer, alpha=o.momentum, out=buffer)
            if o.l2 != 0 and decay_later:
                buffer.add_(W, alpha=o.l2)
            direction = direction.add(buffer, alpha=o.momentum) if o.nesterov else buffer

        if o.decoupled_weight_decay:
            W.mul_(1 - o.decay)
        _add_scaled(W, direction, -o.lr)
        if gap is not None and twin is not None:
            if not inside:
                _add_scaled(W, gap, -o.lr / o.nu)
            _add_scaled(twin.V, gap, o.lr / (o.kappa * o.nu))


def _couple(item: Item, o: Options) -> None:
    """The coupling alone."""
    W, _, twin, _, _ = item
    if twin is None:
        return
    if _in_parts(W, twin):
        rows = max(1, PART * len(W) // W.numel())
        penalty = Lasso(float(cast("Lasso", twin.penalty).lambd))  # to clamp by a tensor is slower
        for w, v in zip(torch.split(W, rows), torch.split(twin.V, rows), strict=True):
            _couple(item._replace(W=w, twin=Twin(v, penalty)), o)
        return
    if torch.finfo(twin.V.dtype).bits < torch.finfo(W.dtype).bits:
        V = twin.V.to(W.dtype)
        gap = Twin(V, twin.penalty, twin.known_gap).gap(W, o.kappa)
        _add_scaled(V, gap, o.lr / (o.kappa * o.nu))
        twin.V.copy_(stochastically_rounded(V, twin.V.dtype))
    else:
        gap = twin.gap(W, o.kappa)
        _add_scaled(twin.V, gap, o.lr / (o.kappa * o.nu))
    _add_scaled(W, gap, -o.lr / o.nu)


def _in_parts(W: Tensor, twin: Twin) -> bool:
    """Whether a large matrix is gone through in parts, so that what is made between stays in cache.

    A temporary of its size would be new memory from the system in every step.
    """
    return (
        W.device.type == "cpu"
        and W.ndim > 1
        and W.numel() > 2 * PART
        and len(W) > 1
        and type(twin.penalty) is Lasso
        and torch.as_tensor(twin.penalty.lambd).numel() == 1
        and twin.known_gap is None
        and not torch.compiler.is_compiling()
    )


def stochastically_rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    """float32 as bfloat16, up or down with the probability that is right on average.

    A sum of many small steps would stand still where each is less than half of the last digit.
    """
    if x.dtype is not torch.float32 or dtype is not torch.bfloat16:
        return x.to(dtype)
    noise = torch.randint_like(x, 1 << 16, dtype=torch.int32)
    return ((x.view(torch.int32) + noise) & -(1 << 16)).view(torch.float32).to(dtype)


def _restricted(item: Item, update_mask: Tensor, o: Options) -> None:
    """One tensor that the loss moves in part: elsewhere only the coupling acts, momentum rests."""
    W, grad, twin, buffer, _ = item
    assert grad is not None
    step = torch.add(-grad if o.maximize else grad, W, alpha=o.l2)
    C = torch.zeros_like(W) if twin is None else twin.gap(W, o.kappa) / o.nu
    if o.coupling == "momentum":
        step = step + C
    if buffer is not None:
        carried = torch.add(step, buffer, alpha=o.momentum)
        step = step.add(carried, alpha=o.momentum) if o.nesterov else carried
        buffer.copy_(torch.where(update_mask, carried, buffer))
    if o.coupling == "direct":
        step = step + C
    step = o.lr * torch.where(update_mask, step, C)
    if o.decoupled_weight_decay:
        step = step + o.decay * torch.where(update_mask, W, 0)
    W.sub_(step)
    if twin is not None:
        twin.V.add_((o.lr / o.kappa) * C)


def multi_tensor(items: Sequence[Item], o: Options) -> None:
    """The same with torch's foreach kernels: few launches for many tensors."""
    single_tensor([item for item in items if item.update_mask is not None], o)
    items = [item for item in items if item.update_mask is None]
    if not items:
        return
    inside = o.coupling == "momentum"
    weights = [item.W for item in items]
    twinned = [i for i, item in enumerate(items) if item.twin is not None]
    duals = [item.twin.V for item in items if item.twin is not None]
    gaps = [t.gap(W, o.kappa) for W, _, t, _, _ in items if t is not None]

    direction: TensorList = [cast("Tensor", item.grad) for item in items]
    if o.maximize:
        direction = torch._foreach_neg(direction)
    if o.l2 != 0:
        direction = torch._foreach_add(direction, weights, alpha=o.l2)
    if inside and twinned:
        direction = list(direction)
        coupled = torch._foreach_add([direction[i] for i in twinned], gaps, alpha=1 / o.nu)
        for i, tensor in zip(twinned, coupled, strict=True):
            direction[i] = tensor

    buffers = [item.buffer for item in items if item.buffer is not None]
    if buffers:
        torch._foreach_mul_(buffers, o.momentum)
        torch._foreach_add_(buffers, direction)
        if o.nesterov:
            direction = torch._foreach_add(direction, buffers, alpha=o.momentum)
        else:
            direction = buffers

    if o.decoupled_weight_decay:
        torch._foreach_mul_(weights, 1 - o.decay)
    _foreach_add_scaled(weights, direction, -o.lr)
    if twinned:
        if not inside:
            _foreach_add_scaled([weights[i] for i in twinned], gaps, -o.lr / o.nu)
        _foreach_add_scaled(duals, gaps, o.lr / (o.kappa * o.nu))


def _add_scaled(y: Tensor, x: Tensor, a: float | Tensor) -> None:
    """``y += a * x``; a tensor ``a`` must not be read back to Python while tracing."""
    if isinstance(a, torch.Tensor):
        y.add_(x * a)
    else:
        y.add_(x, alpha=a)


def _foreach_add_scaled(ys: list[Tensor], xs: TensorList, a: float | Tensor) -> None:
    if isinstance(a, torch.Tensor):
        torch._foreach_add_(ys, torch._foreach_mul(xs, a))
    else:
        torch._foreach_add_(ys, xs, alpha=a)

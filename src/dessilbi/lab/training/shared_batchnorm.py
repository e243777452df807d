"""BatchNorm with the statistics of the global batch when several processes share it."""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


def share_batchnorm(model: nn.Module, device: torch.device) -> nn.Module:
    """Let BatchNorm layers take their statistics over the global batch; parameters stay."""
    if device.type == "cuda":
        convert: Any = nn.SyncBatchNorm.convert_sync_batchnorm
        return cast("nn.Module", convert(model))
    for name, child in model.named_children():
        setattr(model, name, share_batchnorm(child, device))
    if not isinstance(model, _BatchNorm) or isinstance(model, SharedBatchNorm):
        return model
    shared = SharedBatchNorm(
        model.num_features, model.eps, model.momentum, model.affine, model.track_running_stats
    )
    shared.__dict__.update(model.__dict__)
    return shared


class SharedBatchNorm(_BatchNorm):
    """BatchNorm over the batches of all ranks, for the CPU, where torch has none."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - torch's name
        """Normalise with mean and variance of the global batch."""
        # Without gradients nothing is trained: every rank is then given the same images.
        if not (self.training and torch.is_grad_enabled()):
            return super().forward(input)
        dims = [0, *range(2, input.dim())]
        shape = (1, -1, *(1 for _ in dims[1:]))
        exact = input.to(torch.promote_types(input.dtype, torch.float32))  # half under autocast
        count = exact.new_tensor([input.numel() / input.shape[1]])
        sums = _total(torch.cat([exact.sum(dims), count]))
        n, mean = sums[-1], sums[:-1] / sums[-1]
        centred = exact - mean.view(shape)
        var = _total(centred.square().sum(dims)) / n
        if self.running_mean is not None and self.running_var is not None:
            self._remember(mean.detach(), (var * n / (n - 1)).detach())
        out = centred * torch.rsqrt(var + self.eps).view(shape)
        if self.affine:
            out = out * self.weight.view(shape) + self.bias.view(shape)
        return out.to(input.dtype)

    @torch.no_grad()
    def _remember(self, mean: Tensor, var: Tensor) -> None:
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        weight = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean, weight)
        self.running_var.lerp_(var, weight)

    def _check_input_dim(self, input: Tensor) -> None:  # noqa: A002 - torch's name
        """The layer that this one took the place of would have checked."""


class _Total(torch.autograd.Function):
    """Sum over ranks, through which gradients flow."""

    @staticmethod
    def forward(ctx: Any, local: Tensor) -> Tensor:
        total = local.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        total = gradients[0].clone()
        dist.all_reduce(total)
        return total


def _total(local: Tensor) -> Tensor:
    apply: Any = _Total.apply
    return cast("Tensor", apply(local))

"""Optimizers that only the paper compares; importing this lets configurations name them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dessilbi.lab.training.fused import torch_fuses
from dessilbi.lab.training.optimizers import register_optimizer
from dessilbi.paper.competitors import COMPETITORS
from dessilbi.paper.optimizers.adabound import AdaBound
from dessilbi.paper.optimizers.sgd_l1 import SGDL1, penalise_weights

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from dessilbi.lab.run.config import OptimizerConfig

__all__ = ["COMPETITORS", "SGDL1", "AdaBound"]


def _adabound(groups: list[dict[str, Any]], model: nn.Module, config: OptimizerConfig) -> Optimizer:
    return AdaBound(groups, lr=config.lr, weight_decay=config.weight_decay)


def _sgd_l1(groups: list[dict[str, Any]], model: nn.Module, config: OptimizerConfig) -> Optimizer:
    return SGDL1(
        penalise_weights(model, config.l1),
        lr=config.lr,
        l1=config.l1,
        momentum=config.momentum,
        nesterov=config.nesterov,
        weight_decay=config.weight_decay,
        fused=True if torch_fuses(model) else None,
    )


register_optimizer("adabound", _adabound, ("lr", "weight_decay"))
register_optimizer(
    "sgd-l1", _sgd_l1, ("lr", "momentum", "nesterov", "weight_decay", "l1"), wraps=False
)

"""The optimizers of the laboratory: DessiLBI and what the paper compares it with."""

from dessilbi.lab.training.optimizers import make_optimizer, twin_groups
from dessilbi.paper.optimizers.adabound import AdaBound
from dessilbi.paper.optimizers.competitors import COMPETITORS
from dessilbi.paper.optimizers.sgd_l1 import SGDL1

__all__ = ["COMPETITORS", "SGDL1", "AdaBound", "make_optimizer", "twin_groups"]

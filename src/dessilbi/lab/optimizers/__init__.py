"""The optimizers of the laboratory: DessiLBI and what the paper compares it with."""

from dessilbi.lab.optimizers.adabound import AdaBound
from dessilbi.lab.optimizers.competitors import COMPETITORS
from dessilbi.lab.optimizers.make import make_optimizer, twin_groups
from dessilbi.lab.optimizers.sgd_l1 import SGDL1

__all__ = ["COMPETITORS", "SGDL1", "AdaBound", "make_optimizer", "twin_groups"]

"""Subnetworks: what a support of Gamma makes of a model."""

from .batchnorm import recalibrate_batchnorm
from .frozen import FrozenSupport
from .gradual import GradualPruning
from .project import HeldMask, project

__all__ = [
    "FrozenSupport",
    "GradualPruning",
    "HeldMask",
    "project",
    "recalibrate_batchnorm",
]

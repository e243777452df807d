"""Subnetworks: what a support of Gamma makes of a model."""

from .batchnorm import recalibrate_batchnorm
from .project import HeldMask, project

__all__ = ["HeldMask", "project", "recalibrate_batchnorm"]

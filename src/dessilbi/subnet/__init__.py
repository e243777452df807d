"""Subnetworks: what a support of Gamma makes of a model."""

from .batchnorm import recalibrate_batchnorm

__all__ = ["recalibrate_batchnorm"]

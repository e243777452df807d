"""The optimizer: penalties, parameter groups, DessiLBI."""

from .groups import split_parameters
from .optimizer import DessiLBI
from .prox import GroupLasso, Lasso, Penalty

__all__ = ["DessiLBI", "GroupLasso", "Lasso", "Penalty", "split_parameters"]

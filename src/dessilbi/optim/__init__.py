"""The optimizer: penalties, parameter groups, DessiLBI."""

from .groups import split_parameters
from .optimizer import DessiLBI
from .prox import GroupLasso, Lasso, Penalty
from .split_lbi import SplitLBI

__all__ = ["DessiLBI", "GroupLasso", "Lasso", "Penalty", "SplitLBI", "split_parameters"]

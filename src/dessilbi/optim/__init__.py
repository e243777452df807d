"""The optimizer: penalties, parameter groups, DessiLBI."""

from .groups import split_parameters
from .optimizer import DessiLBI
from .prox import GroupLasso, Lasso, Penalty
from .split_lbi import SplitLBI
from .twin import TwinOptimizer

__all__ = [
    "DessiLBI",
    "GroupLasso",
    "Lasso",
    "Penalty",
    "SplitLBI",
    "TwinOptimizer",
    "split_parameters",
]

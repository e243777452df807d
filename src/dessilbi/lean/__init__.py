"""Forward and backward passes of networks with few weights or few channels, at their own cost."""

from .entries import Dense, Ranked, Sparse
from .mode import LeanPasses, NotSkippedError, available, side_by_side

__all__ = [
    "Dense",
    "LeanPasses",
    "NotSkippedError",
    "Ranked",
    "Sparse",
    "available",
    "side_by_side",
]

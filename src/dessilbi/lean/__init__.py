"""Forward and backward passes of networks with few weights or few channels, at their own cost."""

from .entries import Dense, Ranked, Sparse
from .mode import LeanPasses, available

__all__ = ["Dense", "LeanPasses", "Ranked", "Sparse", "available"]

"""Forward and backward passes of networks with few weights or few channels, at their own cost."""

from .entries import Ranked, Sparse
from .layer import UnsuitedError, examples_last
from .program import Pass, Program, available
from .programs import Programs

__all__ = [
    "Pass",
    "Program",
    "Programs",
    "Ranked",
    "Sparse",
    "UnsuitedError",
    "available",
    "examples_last",
]

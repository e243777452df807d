"""One run, every budget: networks of all sizes trained together."""

from .weights import NestedTraining
from .widths import NestedWidths

__all__ = ["NestedTraining", "NestedWidths"]

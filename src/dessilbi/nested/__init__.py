"""One run, every budget: networks of all sizes trained together."""

from .schedule import NestedSchedule
from .weights import NestedTraining
from .widths import NestedWidths

__all__ = ["NestedSchedule", "NestedTraining", "NestedWidths"]

"""The path of Gamma's support: recording, reading, selecting from it, and knowing when to stop."""

from dessilbi.graph.macs import count_macs_per_weight

from ._file import FormatError
from .layers import Layer
from .macs import macs
from .mask import Mask
from .orders import DEFAULT_ORDER, DEFAULT_SCALE, ORDERS, SCALES
from .recorder import PathRecorder
from .solution_path import SolutionPath
from .stopping import StabilityRule, support_distance

__all__ = [
    "DEFAULT_ORDER",
    "DEFAULT_SCALE",
    "ORDERS",
    "SCALES",
    "FormatError",
    "Layer",
    "Mask",
    "PathRecorder",
    "SolutionPath",
    "StabilityRule",
    "count_macs_per_weight",
    "macs",
    "support_distance",
]

"""Smaller networks that are the same function as the masked ones."""

from ._compact import Compact, compact
from .check import Difference, difference
from .coupling import Coupled, Member, coupled_channels
from .errors import CompactError
from .latency import Timing, side_by_side
from .onnx import export_onnx, run_onnx
from .plan import Plan
from .report import Latency, Report, Size
from .saved import load_compact, save_compact
from .sparse import SparseLinear, SparseReport, sparsify
from .state import cut_optimizer
from .widths import NestedWidths

__all__ = [
    "Compact",
    "CompactError",
    "Coupled",
    "Difference",
    "Latency",
    "Member",
    "NestedWidths",
    "Plan",
    "Report",
    "Size",
    "SparseLinear",
    "SparseReport",
    "Timing",
    "compact",
    "coupled_channels",
    "cut_optimizer",
    "difference",
    "export_onnx",
    "load_compact",
    "run_onnx",
    "save_compact",
    "side_by_side",
    "sparsify",
]

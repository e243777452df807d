"""Smaller networks that are the same function as the masked ones."""

from dessilbi.graph.compare import Difference, difference
from dessilbi.graph.errors import CompactError
from dessilbi.graph.plan import Plan
from dessilbi.graph.ties import Member, Tied, tied_channels

from ._compact import Compact, compact
from .latency import Timing, side_by_side
from .onnx import export_onnx, run_onnx
from .optimizer_state import cut_optimizer
from .report import Latency, Report, Size
from .serialization import load_compact, save_compact
from .sparse import SparseLinear, SparseReport, sparsify

__all__ = [
    "Compact",
    "CompactError",
    "Difference",
    "Latency",
    "Member",
    "Plan",
    "Report",
    "Size",
    "SparseLinear",
    "SparseReport",
    "Tied",
    "Timing",
    "compact",
    "cut_optimizer",
    "difference",
    "export_onnx",
    "load_compact",
    "run_onnx",
    "save_compact",
    "side_by_side",
    "sparsify",
    "tied_channels",
]

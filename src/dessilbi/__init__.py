"""Train a network while a sparse twin of its weights grows beside it.

Names are imported on first use, so that ``dessilbi --help`` does not wait for torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dessilbi.compaction import compact, export_onnx, load_compact
    from dessilbi.errors import DessilbiError
    from dessilbi.nested import NestedSchedule, NestedTraining, NestedWidths
    from dessilbi.optim import DessiLBI, GroupLasso, Lasso, Penalty, SplitLBI, split_parameters
    from dessilbi.path import Mask, PathRecorder, SolutionPath, count_macs_per_weight, macs
    from dessilbi.subnet import GradualPruning, HeldMask, project, recalibrate_batchnorm

    __version__: str

_HOME = {
    "DessiLBI": "dessilbi.optim",
    "DessilbiError": "dessilbi.errors",
    "GradualPruning": "dessilbi.subnet",
    "GroupLasso": "dessilbi.optim",
    "HeldMask": "dessilbi.subnet",
    "Lasso": "dessilbi.optim",
    "Mask": "dessilbi.path",
    "NestedSchedule": "dessilbi.nested",
    "NestedTraining": "dessilbi.nested",
    "NestedWidths": "dessilbi.nested",
    "PathRecorder": "dessilbi.path",
    "Penalty": "dessilbi.optim",
    "SolutionPath": "dessilbi.path",
    "SplitLBI": "dessilbi.optim",
    "compact": "dessilbi.compaction",
    "count_macs_per_weight": "dessilbi.path",
    "export_onnx": "dessilbi.compaction",
    "load_compact": "dessilbi.compaction",
    "macs": "dessilbi.path",
    "project": "dessilbi.subnet",
    "recalibrate_batchnorm": "dessilbi.subnet",
    "split_parameters": "dessilbi.optim",
}

__all__ = [
    "DessiLBI",
    "DessilbiError",
    "GradualPruning",
    "GroupLasso",
    "HeldMask",
    "Lasso",
    "Mask",
    "NestedSchedule",
    "NestedTraining",
    "NestedWidths",
    "PathRecorder",
    "Penalty",
    "SolutionPath",
    "SplitLBI",
    "__version__",
    "compact",
    "count_macs_per_weight",
    "export_onnx",
    "load_compact",
    "macs",
    "project",
    "recalibrate_batchnorm",
    "split_parameters",
]


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import version

        return version("dessilbi")
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'dessilbi' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)

"""Train a network while a sparse twin of its weights grows beside it.

Names are imported on first use, so that ``dessilbi --help`` does not wait for torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dessilbi.optim import DessiLBI, split_parameters
    from dessilbi.subnet import recalibrate_batchnorm

    __version__: str

__all__ = ["DessiLBI", "__version__", "recalibrate_batchnorm", "split_parameters"]

_HOME = {
    "DessiLBI": "dessilbi.optim",
    "recalibrate_batchnorm": "dessilbi.subnet",
    "split_parameters": "dessilbi.optim",
}


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import version

        return version("dessilbi")
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'dessilbi' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)

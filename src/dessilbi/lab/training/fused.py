"""Where a step can be made in one pass over the weights.

Times are compared, so each optimizer takes the fastest step it has for the device. In one pass:
DessiLBI by its own kernel, SGD, Adam, AMSGrad and (on CPU) Adagrad by torch's. RAdam and AdaBound
have no such step; they pass over the weights several times.
"""

from __future__ import annotations

import functools
import importlib.util
from typing import TYPE_CHECKING

import torch

from dessilbi.optim.native import KernelBuildError, library

if TYPE_CHECKING:
    from collections.abc import Collection

    from torch import nn


def torch_fuses(model: nn.Module, devices: Collection[str] = ("cpu", "cuda")) -> bool:
    """Whether torch's fused step takes all parameters of the model.

    Args:
        model: the network, already on its device.
        devices: types of the devices for which torch has the step.
    """
    kind = _device_type(model)
    return kind is not None and kind in devices


def dessilbi_fuses(model: nn.Module) -> bool:
    """Whether DessiLBI's fused step takes all parameters of the model, and can be built here."""
    kind = _device_type(model)
    if kind == "cuda":
        return _has_triton() and kernel_builds()  # Triton needs a compiler as well
    return kind == "cpu" and kernel_builds()


@functools.cache
def kernel_builds() -> bool:
    """Whether there is a working C++ compiler; tried once, two seconds on first use."""
    try:
        library()
    except (KernelBuildError, OSError):
        return False
    return True


def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def _device_type(model: nn.Module) -> str | None:
    """The one type of device that holds the parameters, if all are float32 or float64."""
    kinds = {p.device.type for p in model.parameters()}
    dtypes = {p.dtype for p in model.parameters()}
    if len(kinds) != 1 or not dtypes <= {torch.float32, torch.float64}:
        return None
    return kinds.pop()

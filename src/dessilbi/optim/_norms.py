"""Norms of the slices of a tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch

if TYPE_CHECKING:
    from torch import Tensor


def group_norms(x: Tensor, dim: int) -> Tensor:
    """Euclidean norm of each slice along ``dim``, with x's number of dimensions."""
    if torch.compiler.is_compiling() and x.device.type == "cpu":
        return cast("Tensor", torch.ops.dessilbi.group_norms(x, dim))
    return _group_norms(x, dim)


def _group_norms(x: Tensor, dim: int) -> Tensor:
    if x.ndim == 1:
        return x.abs()
    others = [d for d in range(x.ndim) if d != dim % x.ndim]
    return cast("Tensor", torch.linalg.vector_norm(x, dim=others, keepdim=True))


def _norms_shape(x: Tensor, dim: int) -> Tensor:
    return x.new_empty([n if d == dim % x.ndim else 1 for d, n in enumerate(x.shape)])


# Opaque to Inductor: its C++ backend crashes (KeyError: 'bufN', pytorch#196570) when it fuses a
# reduction over V with the in-place update of V.
torch.library.define("dessilbi::group_norms", "(Tensor x, int dim) -> Tensor")
torch.library.impl("dessilbi::group_norms", "cpu", _group_norms)
torch.library.register_fake("dessilbi::group_norms", _norms_shape)

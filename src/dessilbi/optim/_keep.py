"""The weights up to a level, the others zero: what nested training does twice a step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ._fused import changed_in_place, layout_in_memory
from ._native import library

if TYPE_CHECKING:
    from torch import Tensor


def keep(
    x: Tensor, levels: Tensor, level: int, out: Tensor, inside: Tensor | None, *, native: bool
) -> None:
    """``out = x where levels <= level else 0``; ``inside`` is told where.

    Args:
        x: the weights, or their gradient.
        levels: uint8, shaped as x.
        level: the highest that is kept.
        out: shaped as x; may be x itself.
        inside: boolean, shaped as x; ``None`` if nobody wants to know.
        native: by the C++ kernel if it can take these tensors, at a third of the time.
    """
    alike = [x, out, levels] if inside is None else [x, out, levels, inside]
    if (
        native
        and x.device.type == "cpu"
        and x.dtype in (torch.float32, torch.float64)
        and all(t.stride() == x.stride() for t in alike)
        and layout_in_memory(x.shape, x.stride(), None) is not None
    ):
        lib = library()
        run = lib.dessilbi_keep_f32 if x.dtype is torch.float32 else lib.dessilbi_keep_f64
        told = None if inside is None else inside.data_ptr()
        run(x.data_ptr(), levels.data_ptr(), level, out.data_ptr(), told, x.numel())
        changed_in_place([out] if inside is None else [out, inside])
        return
    chosen = levels <= level
    if inside is not None:
        inside.copy_(chosen)
    torch.mul(x, chosen, out=out)

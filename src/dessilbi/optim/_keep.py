"""The weights up to a level, the others zero: what nested training does twice a step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from ._fused import changed_in_place, layout_in_memory
from .native import library

if TYPE_CHECKING:
    from torch import Tensor


class Keeper:
    """Keeps what lies up to a level of one parameter, as often as a training has steps.

    Args:
        levels: uint8, one number an element.
        native: by the C++ kernel if it can take these tensors, at a third of the time.
    """

    def __init__(self, levels: Tensor, *, native: bool) -> None:
        self.levels = levels
        self.inside = torch.empty_like(levels, dtype=torch.bool)
        """Where the last kept weights are."""
        self._kept: Tensor | None = None
        self.native = (
            native
            and levels.device.type == "cpu"
            and layout_in_memory(levels.shape, levels.stride(), None) is not None
        )
        self._stride, self._numel = levels.stride(), levels.numel()
        self._levels_at, self._inside_at = levels.data_ptr(), self.inside.data_ptr()

    def weights(self, x: Tensor, level: int) -> Tensor:
        """``x where levels <= level else 0``, in memory that the next call uses again."""
        if self._kept is None or self._kept.dtype is not x.dtype:
            self._kept = torch.empty_like(self.levels, dtype=x.dtype)
        if not self._by_kernel(x, level, self._kept, self._inside_at):
            self.mark(level)
            torch.mul(x, self.inside, out=self._kept)
        return self._kept

    def mark(self, level: int) -> None:
        """Say where the weights of a level are, in :attr:`inside`."""
        if self.native:  # five times faster than torch
            np.less_equal(self.levels.numpy(), level, out=self.inside.numpy())
        else:
            torch.le(self.levels, level, out=self.inside)

    def gradient(self, x: Tensor, level: int) -> None:
        """The same in place."""
        if self._by_kernel(x, level, x, None):
            changed_in_place([x])
        else:
            x.mul_(self.levels <= level)

    def _by_kernel(self, x: Tensor, level: int, out: Tensor, inside: int | None) -> bool:
        if not self.native or x.stride() != self._stride or x.device.type != "cpu":
            return False
        if x.dtype is torch.float32:
            run = library().dessilbi_keep_f32
        elif x.dtype is torch.float64:
            run = library().dessilbi_keep_f64
        else:
            return False
        run(x.data_ptr(), self._levels_at, level, out.data_ptr(), inside, self._numel)
        return True

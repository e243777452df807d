"""The program of a network as long as it is one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from .layer import UnsuitedError
from .program import FEW, Program, mode_of

if TYPE_CHECKING:
    from torch import Tensor, nn


class Programs:
    """The program of a network as long as it is one, made when it is first asked for.

    Now and then, and after the network's mode has changed, it is compared with the network; if they
    differ, or the network has none, there is none until the mode changes again.

    Args:
        model: the network.
        every: steps between two comparisons.
    """

    def __init__(self, model: nn.Module, every: int = 500) -> None:
        self.model, self._every = model, every
        self._program: Program | None = None
        self._refused: list[bool] | None = None
        """The mode in which there is none."""
        self._checked = -1

    def get(self, arguments: tuple[Any, ...], step: int) -> Program | None:
        """The program for a batch; ``None`` if torch has to run the network itself."""
        x = arguments[0] if len(arguments) == 1 else None
        if not isinstance(x, torch.Tensor) or not _takes(self.model, x):
            return None
        if self._refused is not None and self._refused == mode_of(self.model.modules()):
            return None
        turn = step // self._every
        if self._program is None or not self._program.fits():
            self._program = _made(self.model)
        elif turn == self._checked:
            return self._program
        self._checked, self._refused = turn, None
        if self._program is None or not self._program.agrees(x):
            self._program, self._refused = None, mode_of(self.model.modules())
        return self._program


def _takes(model: nn.Module, x: Tensor) -> bool:
    first = next(model.parameters(), None)
    plain = x.ndim > 1 and x.layout is torch.strided and not x.requires_grad
    plain = plain and not torch.is_autocast_enabled("cpu")
    fits = first is not None and x.dtype is first.dtype and x.device.type == "cpu"
    return fits and plain and len(x) >= FEW


def _made(model: nn.Module) -> Program | None:
    try:
        return Program(model)
    except UnsuitedError:
        return None

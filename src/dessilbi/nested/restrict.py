"""Any torch optimizer's step, restricted to some of the weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from dessilbi.optim import DessiLBI, SplitLBI
from dessilbi.optim.dtensor import local

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor
    from torch.optim import Optimizer


class Restriction:
    """Lets the next step of an optimizer move only some weights.

    :class:`DessiLBI` does that itself: its coupling acts on all weights. After the step of any
    other optimizer, value and state of the other weights are put back, bit for bit. That of
    :class:`SplitLBI` is the step of its base: the coupling, which comes before, acts on all. State
    that is not shaped as its parameter (a factored second moment) is not restricted.

    Args:
        opt: the optimizer.
    """

    def __init__(self, opt: Optimizer) -> None:
        self._of_twin: tuple[str, ...] = ()
        """Keys of state that no base touches."""
        if isinstance(opt, SplitLBI):
            self._of_twin = opt.twin_keys
            opt = opt.base
        self._opt = opt
        self._moves: dict[Tensor, Tensor] = {}
        self._before: list[tuple[Tensor, Tensor, Tensor, dict[str, Tensor]]] = []
        """Of parameters: where they move, their values, and their state as they were."""
        self._within = False
        self._handles = [
            opt.register_step_pre_hook(lambda *_: self._begin()),
            opt.register_step_post_hook(lambda *_: self._end()),
        ]

    def set(self, moves: Mapping[Tensor, Tensor]) -> None:
        """Restrict the next step, or the one that is being made: this may be within its closure.

        Args:
            moves: by parameter, a boolean tensor shaped as it: True where it moves. Other
                parameters move as ever.
        """
        if isinstance(self._opt, DessiLBI):
            self._opt.restrict(moves)
            return
        self._moves = dict(moves)
        if self._within:
            self._remember()

    def close(self) -> None:
        """Let go of the optimizer: all weights move again."""
        self.set({})
        for handle in self._handles:
            handle.remove()

    def _begin(self) -> None:
        self._within = True
        self._remember()

    @torch.no_grad()
    def _remember(self) -> None:
        self._before = [
            (p, local(where), local(p).clone(), {k: t.clone() for k, t in self._state(p).items()})
            for p, where in self._moves.items()
            if not bool(local(where).all())
        ]

    @torch.no_grad()
    def _end(self) -> None:
        for p, where, value, state in self._before:
            _put_back(local(p), where, value)
            for key, tensor in self._state(p).items():
                # What this step has made began at zero.
                _put_back(tensor, where, state.get(key, torch.zeros_like(tensor)))
        self._before, self._within = [], False
        self.set({})

    def _state(self, p: Tensor) -> dict[str, Tensor]:
        found: dict[str, Any] = self._opt.state.get(p, {})
        return {
            k: local(t)
            for k, t in found.items()
            if isinstance(t, torch.Tensor) and t.shape == p.shape and k not in self._of_twin
        }


def _put_back(tensor: Tensor, where: Tensor, before: Tensor) -> None:
    torch.where(where, tensor, before, out=tensor)

"""Networks of a few widths that have left the shared one: each has weights of its own from then on.

Sharing lets every width grow out of a wide network; in the end it holds all of them back. The rungs
of a ladder are narrow copies of the weights, trained on beside the whole network, which costs
little: half the channels are a quarter of the multiply-adds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from dessilbi.optim import DessiLBI

from .narrow import put, taken

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from dessilbi.path import Mask

    from .narrow import Cut, Narrow

_PREFIX = "own."
_FOLLOWED = (
    "lr", "momentum", "nesterov", "weight_decay", "decoupled_weight_decay", "maximize", "foreach",
    "fused",
)  # fmt: skip
"""What of the whole network's optimizer a rung's step is made with; it has no twin."""


class Ladder:
    """Copies of the narrow networks, and the optimizer that moves them.

    Weights and momentum begin as they are in the whole network. Parameters that the optimizer does
    not train are shared on.

    Args:
        narrow: the networks of fewer channels.
        opt: the optimizer of the whole network, whose options are followed.
        cuts: what stays at each rung, by its level.
    """

    def __init__(self, narrow: Narrow, opt: DessiLBI, cuts: Mapping[int, Cut]) -> None:
        self._narrow, self._whole = narrow, opt
        self.cuts = dict(sorted(cuts.items(), reverse=True))
        """By level, the widest first."""
        held = {p for group in opt.param_groups for p in group["params"]}
        self._params = {n: p for n, p in narrow.params.items() if p in held and p.requires_grad}
        self._own = {
            level: {name: self._copied(p.detach(), cut, name) for name, p in self._params.items()}
            for level, cut in self.cuts.items()
        }
        self._opt = DessiLBI(
            [
                {
                    "params": [own[n] for own in self._own.values() for n in names],
                    "penalty": None,
                    **{option: group[option] for option in _FOLLOWED},
                }
                for group, names in self._groups()
            ]
        )
        for level, name, p in self._each():
            buffer = opt.state.get(self._params[name], {}).get("momentum_buffer")
            if buffer is not None:
                cut = self.cuts[level]
                self._opt.state[p]["momentum_buffer"] = taken(buffer, *cut.places(name)).clone()

    @staticmethod
    def _copied(weights: Tensor, cut: Cut, name: str) -> nn.Parameter:
        return nn.Parameter(taken(weights, *cut.places(name)).clone())

    def _groups(self) -> list[tuple[dict[str, object], list[str]]]:
        """The groups of the whole network's optimizer, with the names of what they hold."""
        name_of = {p: name for name, p in self._params.items()}
        found = [
            (group, [name_of[p] for p in group["params"] if p in name_of])
            for group in self._whole.param_groups
        ]
        return [(group, names) for group, names in found if names]

    def _each(self) -> list[tuple[int, str, nn.Parameter]]:
        return [(level, name, p) for level, own in self._own.items() for name, p in own.items()]

    # ------------------------------------------------------------------ a step

    def own(self, level: int) -> dict[str, nn.Parameter]:
        """The weights of a rung, narrow."""
        return self._own[level]

    def add_gradients(self, level: int, gradients: Mapping[str, Tensor]) -> None:
        """Add to the gradients of a rung."""
        for name, gradient in gradients.items():
            p = self._own[level][name]
            p.grad = gradient if p.grad is None else p.grad + gradient

    def forget_gradients(self) -> None:
        """As ``zero_grad`` does."""
        self._opt.zero_grad()

    def step(self) -> None:
        """Move every rung as the whole network's optimizer moves weights without a twin."""
        for mine, (group, _) in zip(self._opt.param_groups, self._groups(), strict=True):
            mine.update({option: group[option] for option in _FOLLOWED})  # a schedule changes them
        self._opt.step()
        self._opt.zero_grad()

    # ------------------------------------------------------------------ what came of it

    def weights(self, level: int) -> dict[str, Tensor]:
        """The weights of a rung, shaped as the whole network's and zero outside."""
        cut = self.cuts[level]
        return {
            name: put(p.detach(), self._params[name], *cut.places(name))
            for name, p in self._own[level].items()
        }

    def state_dict(self) -> dict[str, Tensor]:
        """Weights and momentum of every rung, and where they belong in the whole network."""
        found: dict[str, Tensor] = {}
        for level, name, p in self._each():
            start = f"{_PREFIX}{level}."
            found[f"{start}weight.{name}"] = p.detach()
            buffer = self._opt.state.get(p, {}).get("momentum_buffer")
            if buffer is not None:
                found[f"{start}momentum.{name}"] = buffer
            rows, columns = self.cuts[level].places(name)
            if rows is not None:
                found[f"{start}rows.{name}"] = rows
            if columns is not None:
                found[f"{start}columns.{name}"] = columns
        return found

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on from :meth:`state_dict`."""
        for level, name, p in self._each():
            saved = state.get(f"{_PREFIX}{level}.weight.{name}")
            if saved is None or saved.shape != p.shape:
                raise ValueError(
                    f"the saved ladder does not fit parameter {name!r}; load it into a run of the "
                    "same network"
                )
            p.copy_(saved)
            buffer = state.get(f"{_PREFIX}{level}.momentum.{name}")
            if buffer is not None:
                self._opt.state[p]["momentum_buffer"] = buffer.to(p.device, p.dtype, copy=True)


def rungs_of(state: Mapping[str, Tensor]) -> list[int]:
    """The levels of the rungs that a state has."""
    return sorted({int(key.split(".")[1]) for key in state if key.startswith(_PREFIX)})


def own_weights(
    state: Mapping[str, Tensor], mask: Mask, whole: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """The weights of a mask's network, if it is one of the widths that have their own.

    Args:
        state: what :meth:`NestedWidths.state_dict` gave.
        mask: a network of the path.
        whole: the weights of the whole network.

    Returns:
        Those that are not the whole network's, shaped as them and zero outside; none if the mask is
        not that of a rung.
    """
    levels = {
        key.removeprefix("levels."): level
        for key, level in state.items()
        if key.startswith("levels.")
    }
    kept = {name: mask[name].flatten(1).any(1).cpu() for name in levels if name in mask.names}
    if len(kept) < len(levels):
        return {}
    for rung in rungs_of(state):
        if all(torch.equal(levels[name] <= rung, filters) for name, filters in kept.items()):
            start = f"{_PREFIX}{rung}.weight."
            return {
                name: put(
                    state[start + name],
                    whole[name],
                    *(state.get(f"{_PREFIX}{rung}.{kind}.{name}") for kind in ("rows", "columns")),
                )
                for name in (key.removeprefix(start) for key in state if key.startswith(start))
            }
    return {}

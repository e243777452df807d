"""Widths that leave the shared network one by one, each with weights of its own from then on.

Sharing lets every width grow out of a wide network; in the end it holds all of them back. A rung of
the ladder is a narrow copy of the weights, trained on beside the whole network, which costs little:
half the channels are a quarter of the multiply-adds.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from dessilbi.optim import DessiLBI

from .levels import FULL, level_of
from .slicing import put, taken

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from dessilbi.path import Mask

    from .slicing import Cut, Narrow

EQUAL = 1e-9
"""Shares that differ by less are the same."""
_PREFIX = "own."
_FOLLOWED = (
    "lr", "momentum", "nesterov", "weight_decay", "decoupled_weight_decay", "maximize", "foreach",
    "fused",
)  # fmt: skip
"""What of the whole network's optimizer a rung's step is made with; it has no twin."""


class Rung:
    """A narrow copy of the weights, and the optimizer that moves it.

    Weights and momentum begin as they are in the whole network. Parameters that the optimizer does
    not train are shared on.

    Args:
        narrow: the networks of fewer channels.
        opt: the optimizer of the whole network, whose options are followed.
        cut: what stays.
    """

    def __init__(self, narrow: Narrow, opt: DessiLBI, cut: Cut) -> None:
        self.cut = cut
        self._leader = opt
        name_of = {p: name for name, p in narrow.params.items()}
        self._whole: dict[str, nn.Parameter] = {}
        self.own: dict[str, Tensor] = {}
        """The weights, narrow. Those of a group lie one behind the other in a single parameter, so
        that a step has few tensors to look after."""
        self._gradients: dict[str, Tensor] = {}
        self._momentum: dict[str, Tensor] = {}
        self._followed: list[int] = []
        """The groups of the whole network's optimizer that this one's follow."""
        self._known: set[str] = set()
        """Whose gradients there are."""
        groups: list[dict[str, Any]] = []
        buffers: list[Tensor] = []
        for number, group in enumerate(opt.param_groups):
            held = {name_of[p]: p for p in group["params"] if p in name_of and p.requires_grad}
            if held:
                self._whole |= held
                flat = nn.Parameter(self._row(held))
                flat.grad = torch.zeros_like(flat)
                momentum = {n: opt.state.get(p, {}).get("momentum_buffer") for n, p in held.items()}
                buffers.append(self._row(momentum))
                self.own |= self._parts(flat.detach(), held)
                self._gradients |= self._parts(flat.grad, held)
                self._momentum |= self._parts(buffers[-1], held)
                self._followed.append(number)
                groups.append({"params": [flat], "penalty": None, **_options(group)})
        self._opt = DessiLBI(groups)
        for group, buffer in zip(self._opt.param_groups, buffers, strict=True):
            if group["momentum"] != 0:
                self._opt.state[group["params"][0]]["momentum_buffer"] = buffer

    def _row(self, tensors: Mapping[str, Tensor | None]) -> Tensor:
        """What stays of some tensors, one behind the other; zeros for what there is not."""
        parts = [
            taken(
                torch.zeros_like(self._whole[name]) if t is None else t.detach(),
                *self.cut.places(name),
            ).flatten()
            for name, t in tensors.items()
        ]
        return torch.cat(parts)

    def _parts(self, row: Tensor, names: Iterable[str]) -> dict[str, Tensor]:
        """The same in their own shapes, in the same memory."""
        shapes = {
            name: taken(self._whole[name].detach(), *self.cut.places(name)).shape for name in names
        }
        parts = torch.split(row, [shape.numel() for shape in shapes.values()])
        return {
            name: part.view(shape)
            for part, (name, shape) in zip(parts, shapes.items(), strict=True)
        }

    # ------------------------------------------------------------------ a step

    @torch.no_grad()
    def add_gradients(self, gradients: Mapping[str, Tensor]) -> None:
        """Add to the gradients."""
        for name, gradient in gradients.items():
            if name in self._known:
                self._gradients[name].add_(gradient)
            else:
                self._gradients[name].copy_(gradient)
                self._known.add(name)

    def forget_gradients(self) -> None:
        """As ``zero_grad`` does."""
        self._known.clear()

    def step(self) -> None:
        """Move as the whole network's optimizer moves weights without a twin."""
        for name, gradient in self._gradients.items():
            if name not in self._known:
                gradient.zero_()
        for mine, number in zip(self._opt.param_groups, self._followed, strict=True):
            mine.update(_options(self._leader.param_groups[number]))  # a schedule changes them
        self._opt.step()
        self.forget_gradients()

    # ------------------------------------------------------------------ what came of it

    def weights(self) -> dict[str, Tensor]:
        """The weights, shaped as the whole network's and zero outside."""
        return {
            name: put(p.detach(), self._whole[name], *self.cut.places(name))
            for name, p in self.own.items()
        }

    @property
    def _remembers(self) -> bool:
        return any(self._opt.state.values())

    def state_dict(self, level: int) -> dict[str, Tensor]:
        """Weights and momentum, and where they belong in the whole network."""
        found: dict[str, Tensor] = {}
        start = f"{_PREFIX}{level}."
        for name, p in self.own.items():
            found[f"{start}weight.{name}"] = p.detach()
            buffer = self._momentum[name] if self._remembers else None
            rows, columns = self.cut.places(name)
            for kind, tensor in (("momentum", buffer), ("rows", rows), ("columns", columns)):
                if tensor is not None:
                    found[f"{start}{kind}.{name}"] = tensor
        return found

    @torch.no_grad()
    def load_state_dict(self, level: int, state: Mapping[str, Tensor]) -> None:
        """Go on from :meth:`state_dict`."""
        for name, p in self.own.items():
            saved = state.get(f"{_PREFIX}{level}.weight.{name}")
            if saved is None or saved.shape != p.shape:
                raise ValueError(
                    f"the saved ladder does not fit parameter {name!r}; load it into a run of the "
                    "same network"
                )
            p.copy_(saved)
            buffer = state.get(f"{_PREFIX}{level}.momentum.{name}")
            if buffer is not None:
                self._momentum[name].copy_(buffer)


def _options(group: Mapping[str, Any]) -> dict[str, Any]:
    return {option: group[option] for option in _FOLLOWED}


class Ladder:
    """Which widths leave and when, and those that have left.

    Args:
        widths: of the rungs; by default each half of the one before, down to ``lowest``.
        parted: when the narrowest and the widest leave, as fractions of the training; the others
            evenly between. (1, 1) if never.
        lowest: the width of level 0.
    """

    def __init__(self, widths: Sequence[float], parted: tuple[float, float], lowest: float) -> None:
        self.widths = tuple(sorted(set(widths or _halves(lowest))))
        self._levels = [0, *(level_of(width, lowest) for width in self.widths[1:])]
        if not all(lowest <= width < 1 for width in self.widths):
            raise ValueError(f"ladder must lie in [lowest, 1), got {widths!r}")
        if not all(one < other for one, other in pairwise([*self._levels, FULL])):
            raise ValueError(f"ladder must have widths that differ by a hundredth, got {widths!r}")
        self._times = np.linspace(*parted, len(self.widths))
        self.rungs: dict[int, Rung] = {}
        """Those that have left, by level, the narrowest first."""

    @property
    def complete(self) -> bool:
        """Whether all have left."""
        return len(self.rungs) == len(self.widths)

    @property
    def left(self) -> tuple[float, ...]:
        """The widths that still share, the narrowest first."""
        return self.widths[len(self.rungs) :]

    def due(self, progress: float) -> bool:
        """Whether the next one is to leave."""
        return not self.complete and self._times[len(self.rungs)] <= min(progress, 1 - EQUAL)

    def floor(self, width: float) -> float:
        """The width, or that of the next rung if that is wider: others have left."""
        return max(width, self.left[0]) if self.rungs else width

    def relabelled(
        self, levels: list[Tensor], shares: NDArray[np.float64], left: int
    ) -> list[Tensor]:
        """The ranking in which the first rungs have one level each, and none is between.

        Args:
            levels: by layer, the level of each group.
            shares: by level, the width of its network.
            left: how many rungs, at least one.
        """
        # The widest networks of the ranking that are no wider than a rung.
        ends = np.searchsorted(shares, np.array(self.widths[:left]) + EQUAL, side="right")
        table = np.maximum(np.arange(FULL + 1), self._levels[left - 1] + 1).astype(np.uint8)
        if left == len(self.widths):
            table[:] = FULL
        for end, level in zip(ends[::-1], self._levels[:left][::-1], strict=True):
            table[: max(end, 1)] = level
        return [torch.from_numpy(table).to(level.device)[level.long()] for level in levels]

    @property
    def next_level(self) -> int:
        """The level of the rung that leaves next."""
        return self._levels[len(self.rungs)]


def _halves(lowest: float) -> list[float]:
    """1/2, 1/4, ... as far as the lowest width allows."""
    return [0.5**k for k in range(1, int(EQUAL - np.log2(lowest)) + 1)] or [lowest]


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

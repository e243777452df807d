"""A network of a width that has left the shared one: it has weights of its own from then on.

Sharing lets every width grow out of a wide network; in the end it holds all of them back. A rung of
the ladder is a narrow copy of the weights, trained on beside the whole network, which costs little:
half the channels are a quarter of the multiply-adds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from dessilbi.optim import DessiLBI

from .narrow import put, taken

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import Tensor

    from dessilbi.path import Mask

    from .narrow import Cut, Narrow

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
        held = {p for group in opt.param_groups for p in group["params"]}
        self._whole = {n: p for n, p in narrow.params.items() if p in held and p.requires_grad}
        self.own: dict[str, nn.Parameter] = {
            name: nn.Parameter(taken(p.detach(), *cut.places(name)).clone())
            for name, p in self._whole.items()
        }
        """The weights, narrow."""
        self._opt = DessiLBI(
            [
                {"params": [self.own[name] for name in names], "penalty": None, **options}
                for names, options in self._groups()
            ]
        )
        for name, p in self.own.items():
            buffer = opt.state.get(self._whole[name], {}).get("momentum_buffer")
            if buffer is not None:
                self._opt.state[p]["momentum_buffer"] = taken(buffer, *cut.places(name)).clone()

    def _groups(self) -> Iterator[tuple[list[str], dict[str, Any]]]:
        """Names and options of the groups of the whole network's optimizer."""
        name_of = {p: name for name, p in self._whole.items()}
        for group in self._leader.param_groups:
            names = [name_of[p] for p in group["params"] if p in name_of]
            if names:
                yield names, {option: group[option] for option in _FOLLOWED}

    # ------------------------------------------------------------------ a step

    def add_gradients(self, gradients: Mapping[str, Tensor]) -> None:
        """Add to the gradients."""
        for name, gradient in gradients.items():
            p = self.own[name]
            p.grad = gradient if p.grad is None else p.grad + gradient

    def forget_gradients(self) -> None:
        """As ``zero_grad`` does."""
        self._opt.zero_grad()

    def step(self) -> None:
        """Move as the whole network's optimizer moves weights without a twin."""
        for mine, (_, options) in zip(self._opt.param_groups, self._groups(), strict=True):
            mine.update(options)  # a schedule changes them
        self._opt.step()
        self._opt.zero_grad()

    # ------------------------------------------------------------------ what came of it

    def weights(self) -> dict[str, Tensor]:
        """The weights, shaped as the whole network's and zero outside."""
        return {
            name: put(p.detach(), self._whole[name], *self.cut.places(name))
            for name, p in self.own.items()
        }

    def state_dict(self, level: int) -> dict[str, Tensor]:
        """Weights and momentum, and where they belong in the whole network."""
        found: dict[str, Tensor] = {}
        start = f"{_PREFIX}{level}."
        for name, p in self.own.items():
            found[f"{start}weight.{name}"] = p.detach()
            buffer = self._opt.state.get(p, {}).get("momentum_buffer")
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

"""Widths that leave the shared network one by one, each a network of its own from then on.

Sharing lets every width grow out of a wide network; in the end it holds all of them back. A branch
is trained on beside the whole network, which costs little: half the channels are a quarter of the
multiply-adds.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from dessilbi.optim import SplitLBI, TwinOptimizer

from .ranking import WHOLE, rank_of
from .slicing import narrow_copy, sliced

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray
    from torch import Tensor, nn
    from torch.optim import Optimizer

    from .slicing import Cut

EQUAL = 1e-9
"""Shares that differ by less are the same."""
_NOT_FOLLOWED = ("params", "param_names", "penalty", "tied", "lambd_scale")


class Branch:
    """A narrow network and its optimizer, which both begin as they are in the whole network.

    The network is one of the same class. The optimizer is one of the same class, too, with the same
    parameter groups and options, whose later changes (a schedule of the rate) it follows; only it
    has no twin: that leaves SGD of :class:`DessiLBI`, and of :class:`SplitLBI` its base.

    Args:
        model: the whole network.
        opt: its optimizer.
        cut: what stays.
    """

    def __init__(self, model: nn.Module, opt: Optimizer, cut: Cut) -> None:
        self.cut, self._leader = cut, opt
        self.model = narrow_copy(model, cut)
        mine = dict(self.model.named_parameters())
        name_of = {id(p): name for name, p in model.named_parameters()}
        self._names = [
            [name_of[id(p)] for p in group["params"] if id(p) in name_of]
            for group in opt.param_groups
        ]
        groups = [
            {"params": [(name, mine[name]) for name in names], **options}
            for names, options in zip(self._names, self._options(), strict=True)
        ]
        kind: Any = type(opt.base if isinstance(opt, SplitLBI) else opt)
        self.opt: Optimizer = kind(groups)
        for p, state in opt.state.items():
            name = name_of.get(id(p))
            if name is not None:
                self.opt.state[mine[name]] = {
                    key: self._narrow(name, p, value)
                    for key, value in state.items()
                    if not (isinstance(opt, TwinOptimizer) and key in TwinOptimizer.twin_keys)
                }

    def _options(self) -> list[dict[str, Any]]:
        twinless = {"penalty": None} if isinstance(self._leader, TwinOptimizer) else {}
        return [
            {key: value for key, value in group.items() if key not in _NOT_FOLLOWED} | twinless
            for group in self._leader.param_groups
        ]

    def _narrow(self, name: str, p: Tensor, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return sliced(value, self.cut.params.get(name) if value.shape == p.shape else None).clone()

    def tensors(self) -> dict[str, Tensor]:
        """Its parameters and buffers, for a pass by the whole network's forward."""
        return dict(self.model.named_parameters()) | dict(self.model.named_buffers())

    def step(self) -> None:
        """Move, if there are gradients, and forget them."""
        for group, options in zip(self.opt.param_groups, self._options(), strict=True):
            group.update(options)
        if any(p.grad is not None for p in self.model.parameters()):
            self.opt.step()
        self.opt.zero_grad(set_to_none=True)

    # ------------------------------------------------------------------ checkpoints

    def state_dict(self) -> dict[str, Tensor]:
        """Parameters and buffers by name, ``optimizer/<parameter>/<key>`` for the state."""
        found = self._tensors()
        for name, p in self.model.named_parameters():
            for key, value in self.opt.state.get(p, {}).items():
                found[f"optimizer/{name}/{key}"] = torch.as_tensor(value)
        return found

    def _tensors(self) -> dict[str, Tensor]:
        kept = self.model.state_dict().items()
        return {name: tensor for name, tensor in kept if isinstance(tensor, torch.Tensor)}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on from :meth:`state_dict`."""
        for name, tensor in self._tensors().items():
            saved = state.get(name)
            if saved is None or saved.shape != tensor.shape:
                found = "nothing" if saved is None else f"shape {tuple(saved.shape)}"
                raise ValueError(
                    f"the saved branch does not fit {name!r} of shape {tuple(tensor.shape)}: there "
                    f"is {found}; load it into a run of the same network"
                )
            tensor.copy_(saved)
        self.opt.state.clear()
        for name, p in self.model.named_parameters():
            start = f"optimizer/{name}/"
            for key, value in state.items():
                if key.startswith(start):
                    # Counts of steps stay where they were kept, as torch's optimizers want them.
                    device = p.device if value.ndim else value.device
                    moved = value.to(device=device, copy=True)
                    self.opt.state[p][key.removeprefix(start)] = moved


class Branches:
    """Which widths leave and when, and those that have left.

    Args:
        widths: of the branches; by default each half of the one before, down to the smallest width.
        times: when the narrowest and the widest leave, as fractions of the training; the others
            evenly between. (1, 1) if never.
        min_density: the width of rank 0.
    """

    def __init__(
        self, widths: Sequence[float], times: tuple[float, float], min_density: float
    ) -> None:
        self.widths = tuple(sorted(set(widths or _halves(min_density))))
        self._ranks = [0, *(rank_of(width, min_density) for width in self.widths[1:])]
        if not all(min_density <= width < 1 for width in self.widths):
            raise ValueError(f"widths must lie in [min_density, 1), got {widths!r}")
        if not all(one < other for one, other in pairwise([*self._ranks, WHOLE])):
            raise ValueError(f"widths must differ by a hundredth, got {widths!r}")
        self._times = np.linspace(*times, len(self.widths))
        self.by_rank: dict[int, Branch] = {}
        """Those that have left, the narrowest first."""

    @property
    def complete(self) -> bool:
        """Whether all have left."""
        return len(self.by_rank) == len(self.widths)

    @property
    def shared(self) -> tuple[float, ...]:
        """The widths that have not left, the narrowest first."""
        return self.widths[len(self.by_rank) :]

    @property
    def next_rank(self) -> int:
        """The rank of the branch that leaves next."""
        return self._ranks[len(self.by_rank)]

    def due(self, progress: float) -> bool:
        """Whether the next one is to leave."""
        return not self.complete and self._times[len(self.by_rank)] <= min(progress, 1 - EQUAL)

    def relabelled(
        self, ranks: list[Tensor], shares: NDArray[np.float64], left: int
    ) -> list[Tensor]:
        """The ranking in which the first branches have one rank each, and none is between.

        Args:
            ranks: by layer, the rank of each group.
            shares: by rank, the width of its network.
            left: how many branches, at least one.
        """
        # The widest networks of the ranking that are no wider than a branch.
        ends = np.searchsorted(shares, np.array(self.widths[:left]) + EQUAL, side="right")
        table = np.maximum(np.arange(WHOLE + 1), self._ranks[left - 1] + 1).astype(np.uint8)
        if left == len(self.widths):
            table[:] = WHOLE
        for end, rank in zip(ends[::-1], self._ranks[:left][::-1], strict=True):
            table[: max(end, 1)] = rank
        return [torch.from_numpy(table).to(one.device)[one.long()] for one in ranks]

    # ------------------------------------------------------------------ checkpoints

    def state_dict(self) -> dict[str, Tensor]:
        """``branches/<number>/<name>``, the narrowest is number 0."""
        return {
            f"branches/{number}/{name}": tensor
            for number, branch in enumerate(self.by_rank.values())
            for name, tensor in branch.state_dict().items()
        }

    def saved(self, state: Mapping[str, Tensor]) -> Iterator[tuple[int, dict[str, Tensor]]]:
        """Rank and state of each branch that a state has."""
        for number, rank in enumerate(self._ranks):
            start = f"branches/{number}/"
            found = {k.removeprefix(start): t for k, t in state.items() if k.startswith(start)}
            if found:
                yield rank, found


def _halves(min_density: float) -> list[float]:
    """1/2, 1/4, ... as far as the smallest width allows."""
    return [0.5**k for k in range(1, int(EQUAL - np.log2(min_density)) + 1)] or [min_density]

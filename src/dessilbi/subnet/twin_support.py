"""The support of Gamma, made to be what a budget allows."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, cast

import torch

from dessilbi.optim.prox import dim_of, resolve_penalty, scale_shape, size_scale

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from torch import Tensor

    from dessilbi.optim.twin import TwinOptimizer


class TwinSupport:
    """Sets V and the thresholds of an optimizer such that Gamma has a support that was chosen.

    A penalty of the user's own keeps its thresholds.

    Args:
        opt: the optimizer.
        params: its parameters with a twin, by name.
    """

    def __init__(self, opt: TwinOptimizer, params: Mapping[str, Tensor]) -> None:
        self._opt, self._params = opt, params
        self._factors: dict[str, Tensor] = {}
        """By parameter, what its thresholds have been multiplied by."""

    def rest(self) -> None:
        """End the coupling: V stays as it is, and W is the loss's alone."""
        for group in self._opt.param_groups:
            group["nu"], group["tau"] = math.inf, None

    @torch.no_grad()
    def show(self, mask: Mapping[str, Tensor]) -> None:
        """Let Gamma be W where a mask is, and zero elsewhere."""
        for name, p, group in self._members():
            if "v" not in self._opt.state.get(p, {}):
                continue  # no gradient has reached it
            V = cast("Tensor", self._opt.state[p]["v"])
            V.copy_(p / group["kappa"] * mask[name].to(p.device))
            group["lambd"] = 0.0

    @torch.no_grad()
    def strengths(self) -> list[Tensor]:
        """By parameter, how far each group is on its way: the norm of V by the threshold it had."""
        found = []
        penalties = self._opt.penalties()
        for name, p, group in self._members():
            V, penalty = self._opt.dual(p), penalties[p]
            if not isinstance(group["penalty"], str):
                found.append(V.abs().flatten())
                continue
            norms = penalty.norms(V) if hasattr(penalty, "norms") else V.abs()
            lambd: Any = penalty.lambd  # type: ignore[attr-defined]
            factor = self._factors.get(name, torch.ones(()))
            found.append((norms / torch.as_tensor(lambd) * factor.to(V.device)).flatten())
        return found

    @torch.no_grad()
    def follow(self, strengths: Sequence[Tensor], kept: Sequence[Tensor]) -> None:
        """Move the thresholds between the weakest that is to be in and the strongest that is not.

        Args:
            strengths: by parameter, one number a group; what is kept has the largest.
            kept: by parameter, which groups are to be in the support.
        """
        for (name, p, group), numbers, inside in zip(self._members(), strengths, kept, strict=True):
            state = self._opt.state.get(p, {})
            if "v" not in state or not isinstance(group["penalty"], str):
                continue
            within = inside.to(numbers.device)
            weakest = numbers[within].amin() if within.any() else numbers.amax() * 2
            strongest = numbers[~within].amax() if not within.all() else weakest / 2
            factor = ((weakest + strongest) / 2).cpu()
            if factor > 0:  # else V is still zero
                self._own_thresholds(group)
                state["lambd_scale"].mul_(factor / self._factors.get(name, 1.0))
                self._factors[name] = factor

    def _own_thresholds(self, group: dict[str, Any]) -> None:
        """Keep the thresholds of a parameter group with each parameter, as ``"init"`` does."""
        if group["lambd_scale"] == "init":
            return
        for p in group["params"]:
            kind = resolve_penalty(group["penalty"], p.ndim)
            if not isinstance(kind, str):
                continue
            dim = dim_of(p, group)
            scale = size_scale(kind, p.shape, dim) if group["lambd_scale"] == "size" else 1.0
            V = self._opt.dual(p)
            self._opt.state[p]["lambd_scale"] = V.new_full(scale_shape(kind, p.shape, dim), scale)
        group["lambd_scale"] = "init"

    def _members(self) -> Iterator[tuple[str, Tensor, dict[str, Any]]]:
        """Name, parameter and group: anew each time, as loading a state replaces the groups."""
        groups = {p: group for group in self._opt.param_groups for p in group["params"]}
        for name, p in self._params.items():
            yield name, p, groups[p]

    def state_dict(self) -> dict[str, Tensor]:
        """What a checkpoint must keep; thresholds are in the optimizer's."""
        return dict(self._factors)

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on from :meth:`state_dict`."""
        self._factors = dict(state)

"""Muon for the matrices of hidden layers, AdamW for everything else, as one optimizer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

import torch
from torch import nn
from torch.optim import AdamW, Optimizer

if TYPE_CHECKING:
    from collections.abc import Callable


def muon_groups(
    groups: list[dict[str, Any]], model: nn.Module, classifier: str | None
) -> list[dict[str, Any]]:
    """Parameter groups split into those for Muon and those for AdamW.

    Muon is made for matrices that map features to features: not for embeddings, and not for the
    classifier.

    Args:
        groups: of named parameters.
        model: whose.
        classifier: name of the last linear layer, if there is one.
    """
    others = {p for m in model.modules() if isinstance(m, nn.Embedding) for p in m.parameters()}
    if classifier is not None:
        others |= set(model.get_submodule(classifier).parameters())
    found = []
    for group in groups:
        matrices = {name for name, p in group["params"] if p.ndim == 2 and p not in others}
        if group.get("tied") and len(matrices) < len(group["params"]):
            matrices = set()  # what enters together stays in one group
        for muon in (True, False):
            params = [(name, p) for name, p in group["params"] if (name in matrices) == muon]
            if params:
                found.append({**group, "params": params, "muon": muon})
    return found


class MuonAdamW(Optimizer):
    """Muon where a group says ``muon=True``, AdamW elsewhere, both at the rate of AdamW.

    Args:
        groups: of parameters, each with ``muon``.
        lr: of AdamW; Muon's step is scaled to the size of AdamW's.
        momentum: of Muon.
        nesterov: of Muon.
        weight_decay: decoupled, of both.
        fused: whether AdamW's step is.
    """

    def __init__(
        self,
        groups: list[dict[str, Any]],
        lr: float = 1e-3,
        *,
        momentum: float = 0.95,
        nesterov: bool = True,
        weight_decay: float = 0.0,
        fused: bool | None = None,
    ) -> None:
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "nesterov": nesterov,
            "weight_decay": weight_decay,
            "fused": fused,
        }
        super().__init__(groups, defaults)
        self._parts: dict[bool, Optimizer] = {}
        for muon in (True, False):
            self._part(muon)  # completes the groups

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._parts = {}

    def _part(self, muon: bool) -> Optimizer | None:
        """The one of the two optimizers, on the groups and the state of now."""
        groups = [group for group in self.param_groups if group["muon"] is muon]
        if not groups:
            return None
        if muon not in self._parts:
            # The options that we have stand in the groups.
            self._parts[muon] = (
                _muon()(groups, adjust_lr_fn="match_rms_adamw") if muon else AdamW(groups)
            )
        part = self._parts[muon]
        part.param_groups, part.state = groups, self.state
        return part

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Perform one iteration.

        Args:
            closure: reevaluates the model and returns the loss.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for muon in (True, False):
            part = self._part(muon)
            if part is not None:
                part.step()
        return loss


def _muon() -> Callable[..., Optimizer]:
    found: Callable[..., Optimizer] | None = getattr(torch.optim, "Muon", None)
    if found is None:
        raise ValueError(f"muon needs torch 2.9 or newer, this is {torch.__version__}")
    return found

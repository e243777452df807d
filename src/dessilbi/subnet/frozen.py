"""From some moment on nothing enters Gamma any more, and what is outside fades away."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch

from dessilbi.graph.wrappers import bare_optimizer
from dessilbi.optim.hooks import Attached
from dessilbi.path.twins import twins_by_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor, nn

    from dessilbi.optim import TwinOptimizer


class FrozenSupport(Attached):
    """Freezes the support of Gamma and pulls the weights outside of it to zero.

    Made where the learning rate drops for the first time, it lets the rest of the training adapt
    the weights inside to the loss of the others, so that projecting on the support costs little.
    Groups outside can no longer enter: their V is zero. Groups inside may still leave.

    Args:
        model: the network.
        opt: its optimizer.
        nu: how hard the weights outside are pulled: by ``lr / nu`` of themselves a step, beside
            the coupling's own pull.
    """

    def __init__(self, model: nn.Module, opt: TwinOptimizer, nu: float = 1.0) -> None:
        if not nu > 0:
            raise ValueError(f"nu must be > 0, got {nu!r}")
        self.nu = nu
        opt = cast("TwinOptimizer", bare_optimizer(opt))
        self._opt = opt
        self._params = twins_by_name(model, opt)
        self._outside = {name: ~opt.support(p) for name, p in self._params.items()}
        self._handles = (opt.register_step_post_hook(lambda *_: self._pull()),)

    @torch.no_grad()
    def _pull(self) -> None:
        # Anew at every step: loading a state replaces the optimizer's groups.
        rates = {p: float(g["lr"]) for g in self._opt.param_groups for p in g["params"]}
        for name, p in self._params.items():
            outside = self._outside[name]
            keep = max(0.0, 1 - rates[p] / self.nu)
            p.copy_(torch.where(outside, p * keep, p))
            V = self._opt.state[p].get("v")
            if V is not None:
                V.masked_fill_(outside, 0)
        torch.clear_autocast_cache()

    def state_dict(self) -> dict[str, Tensor]:
        """What a checkpoint must keep: which weights are outside."""
        return dict(self._outside)

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on from :meth:`state_dict`."""
        self._outside = {name: state[name].to(p.device) for name, p in self._params.items()}

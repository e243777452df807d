"""What a snapshot keeps of one layer, measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from dessilbi.optim import GroupLasso, Lasso
from dessilbi.optim.dtensor import full

from ._ranking import Ranking
from .sharded import active_groups

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from dessilbi.optim.twin import TwinOptimizer

    from ._ranking import NestedRun
    from .layers import Layer

_LARGEST = float(np.finfo(np.float16).max)


class Measured(NamedTuple):
    """One layer at one moment."""

    active: NDArray[np.bool_]
    """Support, by group."""
    kept: int
    """Weights in the support."""
    gap: float
    """``||W - Gamma||^2``."""
    coupling: float
    """``||W - Gamma||^2 / (2 nu)``."""
    norms: NDArray[np.float32]
    """Of W, Gamma and V: 3 x rows."""
    kappa: float
    thresholds: NDArray[np.float32]
    W: NDArray[np.float16] | None
    """|W| by element; ``None`` for group layers, whose norms say it."""
    V: NDArray[np.float16] | None


@torch.no_grad()
def measure(opt: TwinOptimizer, p: Tensor, layer: Layer) -> Measured:
    """Measure the layer of parameter p, gathered from all ranks if it is sharded."""
    group = next(g for g in opt.param_groups if any(p is q for q in g["params"]))
    kappa, nu = float(group["kappa"]), float(group["nu"])
    penalty = opt.penalty(p)
    V = opt.dual(p)
    W, Gamma = full(p.detach().to(V.dtype)), kappa * full(penalty.prox(V))
    inside, V = active_groups(penalty, V).flatten(), full(V)
    gap = float((W - Gamma).double().square().sum())
    norms = torch.stack([layer.norms(x) for x in (W, Gamma, V)])
    lambd = penalty.lambd if isinstance(penalty, Lasso | GroupLasso) else 0.0
    thresholds = full(lambd) if isinstance(lambd, torch.Tensor) else torch.tensor(lambd)
    return Measured(
        active=inside.cpu().numpy(),
        kept=int(inside.sum()) * layer.group_size,
        gap=gap,
        coupling=gap / (2 * nu),
        norms=norms.float().cpu().numpy(),
        kappa=kappa,
        thresholds=thresholds.float().flatten().cpu().numpy().copy(),
        W=None if layer.exact else _half(W),
        V=None if layer.exact else _half(V),
    )


def make_ranking(
    layers: Sequence[Layer], measured: Sequence[Measured], nested: NestedRun | None
) -> Ranking:
    """What ranks the groups, from the measures of all layers."""
    pairs = [(layer.name, m) for layer, m in zip(layers, measured, strict=True)]
    ranks = None if nested is None else nested.budget_ranks
    dependents = None if nested is None else nested.dependents
    return Ranking(
        W={name: m.W for name, m in pairs if m.W is not None},
        V={name: m.V for name, m in pairs if m.V is not None},
        thresholds={name: m.thresholds for name, m in pairs},
        kappa={name: m.kappa for name, m in pairs},
        budget_ranks=None if ranks is None else {one.name: ranks[one.name] for one in layers},
        dependents=None if dependents is None else dict(dependents),
    )


def _half(x: Tensor) -> NDArray[np.float16]:
    half: NDArray[np.float16] = x.abs().clamp(max=_LARGEST).half().flatten().cpu().numpy()
    return half

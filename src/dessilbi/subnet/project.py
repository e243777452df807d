"""A subnetwork inside its network: the weights off a mask are zero, for a while or for good."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from dessilbi.graph.names import named_weights
from dessilbi.graph.wrappers import bare_optimizer
from dessilbi.optim.dtensor import is_dtensor, local
from dessilbi.optim.hooks import Attached
from dessilbi.path.mask import Mask
from dessilbi.path.sharded import placed, resharded

from .batchnorm import copy_statistics, restore_statistics

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import Tensor, nn
    from torch.optim import Optimizer


@contextmanager
def project(
    model: nn.Module, mask: Mapping[str, Tensor], *, allow_empty: bool = False
) -> Iterator[nn.Module]:
    """Within the context every weight off the mask is zero; afterwards the dense weights are back.

    They come back bit for bit, also when the body raises, and the running statistics of BatchNorm
    with them. So what the body itself writes to masked parameters is lost, and so are statistics
    that it took anew for the subnetwork (:func:`recalibrate_batchnorm`): whatever needs them
    belongs into the context.

    Args:
        model: the network.
        mask: which weights stay, a :class:`Mask` or ``opt.mask()``; parameters that it does
            not name stay as they are.
        allow_empty: whether the mask may keep nothing, as that of an optimizer does whose Gamma is
            still zero. What is left then gives the same output for every input.

    Example:
        >>> model, x = nn.Linear(8, 2), torch.ones(3, 8)
        >>> mask = Mask.magnitude(model, density=0.25)
        >>> with project(model, mask):
        ...     output, left = model(x), int(model.weight.count_nonzero())
        >>> left, int(model.weight.count_nonzero())
        (4, 16)
    """
    mask = Mask.of(mask)
    kept = masked_weights(model, mask)
    if kept and not allow_empty and not mask.kept:
        raise ValueError(
            f"the mask keeps none of {mask.total} weights: nothing has "
            "entered Gamma yet, or no group fits the budget. Train on, with a smaller nu or lambd "
            "if need be, or take a larger budget; allow_empty=True evaluates what is left"
        )
    dense = [p.detach().clone() for p, _ in kept]
    statistics = copy_statistics(model)
    try:
        zero_outside(kept)
        yield model
    finally:
        with torch.no_grad():
            for (p, _), weights in zip(kept, dense, strict=True):
                p.copy_(weights)
        resharded(model)
        torch.clear_autocast_cache()
        restore_statistics(statistics)


class HeldMask(Attached):
    """A mask that training cannot leave: after every step of the optimizer it is applied again.

    The weights off the mask are exactly zero in every forward pass, whatever momentum, weight decay
    or a loaded checkpoint would make of them.

    Args:
        model: the network; its masked weights become zero at once.
        mask: which weights stay.
        optimizer: the optimizer that trains the model.
    """

    def __init__(self, model: nn.Module, mask: Mapping[str, Tensor], optimizer: Optimizer) -> None:
        self._kept = masked_weights(model, mask)
        self._handles = (
            bare_optimizer(optimizer).register_step_post_hook(lambda *_: self.apply()),
        )
        self.apply()

    def apply(self) -> None:
        """Set the weights off the mask to zero; needed by hand only after loading weights."""
        zero_outside(self._kept)


def masked_weights(model: nn.Module, mask: Mapping[str, Tensor]) -> list[tuple[Tensor, Tensor]]:
    """The masked parameters of a model, each with its mask; of sharded ones this rank's parts."""
    mask = Mask.of(mask)
    resharded(model)
    mask.check(model)
    params = named_weights(model)  # as mask.check does: torch's pruning renames parameters
    pairs = [(params[name], mask[name].to(params[name].device)) for name in mask.names]
    return [(local(p.detach()), local(placed(m, p))) if is_dtensor(p) else (p, m) for p, m in pairs]


@torch.no_grad()
def zero_outside(kept: list[tuple[Tensor, Tensor]]) -> None:
    """Set what :func:`masked_weights` does not keep to zero."""
    # masked_fill, not multiplication: 0 * inf is not 0.
    for p, keep in kept:
        p.masked_fill_(~keep, 0)
    torch.clear_autocast_cache()  # it knows weights by their identity, not by what is in them

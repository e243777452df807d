"""Parameters by the names that masks use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .wrappers import bare_model

if TYPE_CHECKING:
    from torch import Tensor, nn


def named_weights(model: nn.Module) -> dict[str, Tensor]:
    """Parameters by name; one under torch.nn.utils.prune by the name it had before.

    Wrappers, as DistributedDataParallel, add nothing to a name. Under torch.nn.utils.prune
    ``fc.weight`` is computed from the parameter ``fc.weight_orig`` and the buffer
    ``fc.weight_mask``.
    """
    model = bare_model(model)
    buffers = {name for name, _ in model.named_buffers()}
    found: dict[str, Tensor] = {}
    for name, p in model.named_parameters():
        plain = name.removesuffix("_orig")
        found[plain if f"{plain}_mask" in buffers else name] = p
    return found

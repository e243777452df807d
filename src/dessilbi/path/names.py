"""Parameters that get a twin by default."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dessilbi.graph.names import named_weights
from dessilbi.optim.groups import penalized_by_default

if TYPE_CHECKING:
    from torch import Tensor, nn


def weights_with_twin(model: nn.Module) -> dict[str, Tensor]:
    """The weights that get a twin by default: of convolutions, linear and recurrent layers."""
    chosen = penalized_by_default(model)
    return {name: p for name, p in named_weights(model).items() if id(p) in chosen}

"""Network Slimming: an l1 penalty on BatchNorm's scales, and the smallest channels go.

Liu, Li, Shen, Huang, Yan, Zhang: Learning Efficient Convolutional Networks through Network
Slimming. ICCV 2017.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from dessilbi.path import Mask
from dessilbi.path.names import weights_with_twin

if TYPE_CHECKING:
    from torch.optim import Optimizer


def penalise_scales(model: nn.Module, optimizer: Optimizer, strength: float) -> None:
    r"""Train with :math:`L(W) + s \sum |\gamma|` over the scales of all BatchNorm layers.

    Before every step the subgradient :math:`s \operatorname{sign}(\gamma)` is added to the
    gradients of the scales, whatever the optimizer.

    Args:
        model: the network.
        optimizer: its optimizer, on every step of which this acts from now on.
        strength: s, 1e-4 in that paper.
    """
    if not strength >= 0:
        raise ValueError(f"strength must be >= 0, got {strength!r}")
    scales = [
        m.weight for m in model.modules() if isinstance(m, _BatchNorm) and m.weight is not None
    ]
    if not scales:
        raise ValueError("Network Slimming needs BatchNorm layers with scales; there are none")

    def penalise(*_: object) -> None:
        for gamma in scales:
            if gamma.grad is not None:
                gamma.grad.add_(gamma.detach().sign(), alpha=strength)

    optimizer.register_step_pre_hook(penalise)


def normalised_convolutions(model: nn.Module) -> list[tuple[str, str]]:
    """Names of the convolutions that a BatchNorm layer follows, each with its BatchNorm.

    They are found by the order in which modules are registered, which is that of the data in all
    networks here.
    """
    pairs = []
    before: tuple[str, nn.Module] | None = None
    for name, module in model.named_modules():
        if (
            isinstance(module, _BatchNorm)
            and before is not None
            and isinstance(before[1], _ConvNd)
            and before[1].out_channels == module.num_features
        ):
            pairs.append((before[0], name))
        if not list(module.children()):
            before = (name, module)
    return pairs


@torch.no_grad()
def slimmed(model: nn.Module, density: float) -> Mask:
    """What is left when the channels with the smallest scales, over all layers, are taken out.

    Filter, scale and shift of a channel go together, so that it is exactly zero. Each layer keeps
    its strongest channel.

    Args:
        model: a network trained with :func:`penalise_scales`.
        density: fraction of the weights to keep at most, of those that may have a twin.
    """
    pairs = normalised_convolutions(model)
    if not pairs:
        raise ValueError("Network Slimming needs convolutions with BatchNorm; there are none")
    params = dict(model.named_parameters())
    gammas = [params[f"{norm}.weight"].abs().cpu() for _, norm in pairs]
    filters = [params[f"{conv}.weight"] for conv, _ in pairs]
    kept = [torch.ones(len(g), dtype=torch.bool) for g in gammas]
    last = {(i, int(g.argmax())) for i, g in enumerate(gammas)}

    channels = [(i, j) for i, g in enumerate(gammas) for j in range(len(g))]
    order = torch.argsort(torch.cat(gammas), stable=True).tolist()
    total = sum(w.numel() for w in weights_with_twin(model).values())
    excess = total - density * total
    for index in order:
        i, j = channels[index]
        if excess <= 0:
            break
        if (i, j) not in last:
            kept[i][j] = False
            excess -= filters[i][j].numel()
    tensors = {}
    for (conv, norm), keep, weight in zip(pairs, kept, filters, strict=True):
        shape = (-1, *[1] * (weight.ndim - 1))
        tensors[f"{conv}.weight"] = keep.reshape(shape).expand(weight.shape)
        tensors[f"{norm}.weight"] = keep
        tensors[f"{norm}.bias"] = keep
    return Mask(tensors)

"""Looking into a network: guided backpropagation and activation maximisation."""

from __future__ import annotations

import copy
import math
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor


def guided_gradients(model: nn.Module, layer: str, image: Tensor) -> Tensor:
    """For every filter of a layer, the guided gradient of its map's sum by the image.

    Springenberg, Dosovitskiy, Brox, Riedmiller: Striving for Simplicity. 2014. Backwards through a
    ReLU, only positive gradients pass, beside the ReLU's own rule that its input was positive.

    Of one image, channels x height x width; returns filters x channels x height x width.
    """

    def clip(module: nn.Module, inputs: Any, outputs: Any) -> tuple[Tensor, ...]:
        return (inputs[0].clamp_min(0),)

    model, maps_of = _watched(model, layer)
    for module in model.modules():
        if isinstance(module, nn.ReLU):
            module.inplace = False
            module.register_full_backward_hook(clip)
    x = image.detach().clone().unsqueeze(0).requires_grad_()
    maps = maps_of(x)[0]
    found = [torch.autograd.grad(one.sum(), x, retain_graph=True)[0][0] for one in maps]
    return torch.stack(found)


def min_max(images: Tensor) -> Tensor:
    """Each image stretched to [0, 1]; one that is constant becomes 0."""
    low, high = images.amin((1, 2, 3), keepdim=True), images.amax((1, 2, 3), keepdim=True)
    return (images - low) / (high - low).clamp_min(torch.finfo(images.dtype).tiny)


def by_norm(weight: Tensor) -> Tensor:
    """Filters from the largest l2 norm to the smallest."""
    return torch.argsort(weight.detach().flatten(1).norm(dim=1), descending=True, stable=True)


def maximised(
    model: nn.Module,
    layer: str,
    filters: list[int],
    shape: tuple[int, int, int],
    *,
    steps: int = 100,
    lr: float = 0.1,
    rms: float = 1 / 3,
    seed: int = 0,
) -> Tensor:
    """For each filter, the image of a given size that excites it most, found by gradient ascent.

    Erhan, Bengio, Courville, Vincent: Visualizing Higher-Layer Features of a Deep Network. 2009.

    Args:
        model: the network.
        layer: name of one of its modules.
        filters: which of its filters.
        shape: of an image, channels x height x width.
        steps: of the ascent.
        lr: length of a step, relative to the image's norm.
        rms: root mean square of an image's pixels, as that of the images the network was trained on
            (a third for digits between 0 and 1): in much smaller ones biases decide, no ReLU may be
            active, and there is nothing to ascend.
        seed: of the images that the ascent begins with.

    Returns:
        An image a filter; zero for a filter that none was found to excite.
    """
    model, maps_of = _watched(model, layer)
    generator = torch.Generator().manual_seed(seed)
    like = next(model.parameters())
    x = torch.randn(len(filters), *shape, generator=generator).to(like)
    radius, gradient = rms * math.prod(shape) ** 0.5, x
    for _ in range(steps):
        x = (radius * _unit(x)).requires_grad_()
        chosen = maps_of(x)[range(len(filters)), filters]
        (gradient,) = torch.autograd.grad(chosen.sum(), x)
        # A step in the direction of the gradient, whatever its length.
        x = x.detach() + lr * radius * _unit(gradient)
    found = gradient.flatten(1).any(1).reshape(-1, 1, 1, 1)
    image: Tensor = radius * _unit(x) * found
    return image.cpu()


def _unit(x: Tensor) -> Tensor:
    norms = x.detach().flatten(1).norm(dim=1).clamp_min(1e-12)
    unit: Tensor = x.detach() / norms.reshape(-1, 1, 1, 1)
    return unit


def _watched(model: nn.Module, layer: str) -> tuple[nn.Module, Callable[[Tensor], Tensor]]:
    """A copy of a network in evaluation mode, and what one of its layers makes of an image."""
    model = copy.deepcopy(model).eval()
    seen: dict[str, Tensor] = {}
    watched = model.get_submodule(layer)
    watched.register_forward_hook(lambda m, inputs, output: seen.update(maps=output))

    def maps_of(x: Tensor) -> Tensor:
        with torch.enable_grad():
            model(x)
        return seen["maps"]

    return model, maps_of

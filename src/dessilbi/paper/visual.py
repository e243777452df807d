"""Looking into a network: guided backpropagation and activation maximisation."""

from __future__ import annotations

import math
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor


def guided_gradients(model: nn.Module, layer: str, image: Tensor) -> Tensor:
    """For every filter of a layer, the guided gradient of its map's sum by the image.

    Springenberg, Dosovitskiy, Brox, Riedmiller: Striving for Simplicity. 2014. Backwards through a
    ReLU, only positive gradients pass, beside the ReLU's own rule that its input was positive.

    Args:
        model: the network; its mode is restored.
        layer: name of a convolution.
        image: one image, channels x height x width.

    Returns:
        Filters x channels x height x width.
    """
    module = _layer(model, layer)
    with _evaluating(model), _caught(module) as seen, _guided(model):
        x = image.detach().clone().unsqueeze(0).requires_grad_()
        with torch.enable_grad():
            model(x)
            maps = seen[0]
            found = [
                torch.autograd.grad(maps[0, i].sum(), x, retain_graph=True)[0][0]
                for i in range(maps.shape[1])
            ]
    return torch.stack(found)


def min_max(images: Tensor) -> Tensor:
    """Each image stretched to [0, 1]; one that is constant becomes 0."""
    flat = images.flatten(1)
    low, high = flat.amin(1, keepdim=True), flat.amax(1, keepdim=True)
    span = (high - low).clamp_min(torch.finfo(images.dtype).tiny)
    return ((flat - low) / span).reshape(images.shape)


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
        model: the network; its mode is restored.
        layer: name of a convolution.
        filters: which of its filters.
        shape: of an image, channels x height x width.
        steps: of the ascent.
        lr: length of a step, relative to the image's norm.
        rms: root mean square of an image's pixels. It should be that of the images the network was
            trained on (a third for digits between 0 and 1): in much smaller ones biases decide, no
            ReLU may be active, and there is nothing to ascend.
        seed: of the images that the ascent begins with.

    Returns:
        Filters x channels x height x width; zero for a filter that no image was found to excite.
    """
    module = _layer(model, layer)
    generator = torch.Generator().manual_seed(seed)
    like = next(model.parameters())
    x = torch.randn(len(filters), *shape, generator=generator).to(like)
    index = torch.tensor(filters, device=x.device)
    radius, gradient = rms * math.prod(shape) ** 0.5, x
    with _evaluating(model):
        for _ in range(steps):
            x = (radius * _unit(x)).requires_grad_()
            with _caught(module) as seen, torch.enable_grad():
                model(x)
                maps = seen[0]
                chosen = maps[torch.arange(len(filters), device=x.device), index]
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


def _layer(model: nn.Module, name: str) -> nn.Module:
    modules = dict(model.named_modules())
    if name not in modules:
        known = [n for n, m in modules.items() if isinstance(m, nn.Conv2d)]
        raise ValueError(f"layer {name!r} does not exist; convolutions: {', '.join(known)}")
    found: nn.Module = modules[name]
    return found


@contextmanager
def _caught(module: nn.Module) -> Iterator[list[Tensor]]:
    """The outputs of a module while the context lasts."""
    seen: list[Tensor] = []
    handle = module.register_forward_hook(lambda m, inputs, output: seen.append(output))
    try:
        yield seen
    finally:
        handle.remove()


@contextmanager
def _guided(model: nn.Module) -> Iterator[None]:
    """Let only positive gradients pass back through ReLUs; in-options ones are set aside."""
    relus = [m for m in model.modules() if isinstance(m, nn.ReLU)]
    inplace = [m.inplace for m in relus]

    def clip(module: nn.Module, inputs: Any, outputs: Any) -> tuple[Tensor, ...]:
        return (inputs[0].clamp_min(0),)

    handles = [m.register_full_backward_hook(clip) for m in relus]
    try:
        for m in relus:
            m.inplace = False
        yield
    finally:
        for m, before in zip(relus, inplace, strict=True):
            m.inplace = before
        for handle in handles:
            handle.remove()


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    modes = {m: m.training for m in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode

"""The Hessian of a training loss as a linear map: products with vectors, never the matrix."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    Batch = tuple[Any, Tensor]
    LossFn = Callable[[Any, Tensor], Tensor]


class Hessian:
    """``v -> H v`` with H the Hessian of ``L(W) = mean loss over the batches + l2/2 ||W||^2``.

    The model is used in the mode it is in and is left as it was: in training mode BatchNorm takes
    the statistics of each batch, into copies of its buffers; dropout draws the same mask every
    time, and the random state is put back.

    Args:
        model: the network.
        loss_fn: ``loss_fn(model(x), y)``, averaged over the batch.
        batches: pairs ``(x, y)``; they weigh by their number of targets.
        weights: parameters and buffers by name to evaluate at; by default the model's own.
        l2: weight decay as part of the loss.
        seed: of dropout masks.
    """

    def __init__(
        self,
        model: nn.Module,
        loss_fn: LossFn,
        batches: Sequence[Batch],
        *,
        weights: Mapping[str, Tensor] | None = None,
        l2: float = 0.0,
        seed: int = 0,
    ) -> None:
        self._model, self._loss_fn, self._batches = model, loss_fn, batches
        self._l2, self._seed = l2, seed
        own = dict(model.named_parameters())
        given = _fitting(own, weights)
        self._weights = {
            name: given.get(name, p).detach().to(p).requires_grad_(p.requires_grad)
            for name, p in own.items()
        }
        self._buffers = {
            name: (weights or {}).get(name, b).to(b) for name, b in model.named_buffers()
        }
        self._params = [p for p in self._weights.values() if p.requires_grad]
        if not self._params:
            raise ValueError("model has no parameter that requires a gradient; nothing to estimate")
        self.size = sum(p.numel() for p in self._params)
        dtypes = {p.dtype for p in self._params}
        self.dtype = next(iter(dtypes)) if len(dtypes) == 1 else torch.float64
        self.device = self._params[0].device
        counts = [max(len(y) if y.ndim else 1, 1) for _, y in batches]
        self.images = sum(counts)
        self._shares = [count / self.images for count in counts]
        # A single batch keeps its graph: the products then cost one backward pass each.
        self._kept: list[Tensor] | None = None

    def loss(self, index: int = 0) -> Tensor:
        """Mean loss on one batch, without the l2 term, with its graph."""
        x, y = self._batches[index]
        buffers = {name: b.clone() for name, b in self._buffers.items()}
        with torch.enable_grad(), _same_random_numbers(self._seed, self.device):
            out = functional_call(self._model, self._weights | buffers, (x,))
            loss = self._loss_fn(out, y)
        if loss.numel() != 1:
            raise ValueError(
                f"loss_fn must return one number, got shape {tuple(loss.shape)}; "
                "use reduction='mean'"
            )
        if not loss.requires_grad:
            raise ValueError("the loss does not depend on any parameter that requires a gradient")
        return loss

    def __call__(self, v: Tensor) -> Tensor:
        """The product H v, for a flat vector v."""
        parts, first = [], 0
        for p in self._params:
            parts.append(v[first : first + p.numel()].view_as(p).to(p.dtype))
            first += p.numel()
        total = self._l2 * v
        with _twice_differentiable(self._model):
            for index, share in enumerate(self._shares):
                total = total + share * self._product(index, parts)
        return total

    def _product(self, index: int, parts: list[Tensor]) -> Tensor:
        kept = self._kept or self._gradient(index)
        if len(self._batches) == 1:
            self._kept = kept
        curved = [(g, part) for g, part in zip(kept, parts, strict=True) if g.requires_grad]
        if not curved:  # the loss is linear
            return torch.zeros(self.size, dtype=self.dtype, device=self.device)
        try:
            products = torch.autograd.grad(
                [g for g, _ in curved],
                self._params,
                grad_outputs=[part for _, part in curved],
                retain_graph=self._kept is not None,
                allow_unused=True,
                materialize_grads=True,
            )
        except (NotImplementedError, RuntimeError) as error:
            raise RuntimeError(
                f"this loss cannot be differentiated twice, which H v needs: {error}"
            ) from error
        return torch.cat([h.detach().reshape(-1).to(self.dtype) for h in products])

    def _gradient(self, index: int) -> list[Tensor]:
        return list(
            torch.autograd.grad(
                self.loss(index),
                self._params,
                create_graph=True,
                allow_unused=True,
                materialize_grads=True,
            )
        )


def _fitting(
    own: Mapping[str, Tensor], weights: Mapping[str, Tensor] | None
) -> Mapping[str, Tensor]:
    """Weights to evaluate at, refused if they are another network's."""
    for name, p in own.items() if weights is not None else ():
        assert weights is not None
        if name not in weights:
            raise ValueError(f"the weights lack parameter {name!r} of the model")
        if weights[name].shape != p.shape:
            raise ValueError(
                f"parameter {name!r} has shape {tuple(p.shape)} in the model and "
                f"{tuple(weights[name].shape)} in the weights"
            )
    return weights or {}


@contextmanager
def _same_random_numbers(seed: int, device: torch.device) -> Iterator[None]:
    """Dropout draws the same mask each time, and nobody else sees that it drew."""
    gpus = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=gpus):
        torch.default_generator.manual_seed(seed)
        for gpu in gpus:
            with torch.cuda.device(gpu):
                torch.cuda.manual_seed(seed)
        yield


@contextmanager
def _twice_differentiable(model: nn.Module) -> Iterator[None]:
    """Kernels that have a second derivative, in place of fused ones that have not."""
    with ExitStack() as stack:
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        if any(isinstance(module, nn.RNNBase) for module in model.modules()):
            stack.enter_context(torch.backends.cudnn.flags(enabled=False))
        yield

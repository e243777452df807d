"""How curved a training loss is: the largest Hessian eigenvalue, at one point or along a run."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ._hessian import Hessian
from ._lanczos import Ends, lanczos, upper_bound

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torch import Tensor, nn

    from ._hessian import Batch, LossFn


# Operations whose derivative jumps, as autograd calls them (without 'Backward0'), in lower case.
# ELU, CELU, Huber and smooth L1 have a continuous derivative and are not among them.
_KINKED = re.compile(
    r"(leaky)?relu\w*|selu|prelu\w*|rrelu\w*|hardtanh|hardswish|hardsigmoid|hardshrink|softshrink"
    r"|threshold|abs|sgn|sign|round|floor|ceil|clamp\w*|maximum|minimum|max|min|amax|amin|aminmax"
    r"|\w*max_?pool\w*|median|kthvalue|topk|sort|l1loss|l1_loss|hingeembedding\w*|marginranking\w*"
    r"|multimargin\w*|multi_margin\w*"
)


@dataclass(frozen=True, kw_only=True)
class Curvature(Ends):
    """Both ends of the Hessian's spectrum at one point: its eigenvalues reach at least there."""

    label: str
    upper: float
    """No eigenvalue is larger in absolute value, at the estimate's confidence."""


@dataclass(frozen=True)
class LipschitzEstimate:
    """Curvature along a run, and what the figure means.

    ``value`` is the largest absolute eigenvalue found. It is a lower bound: of the curvature at
    these points, on these images. With probability ``confidence``, over the random starts of the
    iteration, no eigenvalue at any of the points exceeds ``upper``. Nothing is said of points in
    between or of other images.
    """

    points: tuple[Curvature, ...]
    confidence: float
    parameters: int
    images: int
    weight_decay: float
    nonsmooth: tuple[str, ...]
    """Operations whose derivative jumps: across a kink no Lipschitz constant holds."""
    notes: tuple[str, ...]
    """How layers that behave differently in training were treated."""

    @property
    def value(self) -> float:
        """Largest absolute Hessian eigenvalue found at any point."""
        return max(point.lip for point in self.points)

    @property
    def upper(self) -> float:
        """What no eigenvalue at any of the points exceeds, with probability ``confidence``."""
        return max(point.upper for point in self.points)

    def __str__(self) -> str:
        where = f" over {len(self.points)} points" if len(self.points) > 1 else ""
        lines = [
            f"Lip = {self.value:.4g}{where}, at most {self.upper:.4g} with probability "
            f"{self.confidence:g} ({self.parameters:,} parameters, {self.images:,} images)"
        ]
        if self.nonsmooth:
            lines.append(
                f"not smooth: {', '.join(self.nonsmooth)}; this is the curvature between the kinks"
            )
        return "\n".join((*lines, *self.notes))


class LipschitzTrack:
    """Estimates along a run: call it now and then, it keeps every point.

    Neither the model nor any random state is changed by a call. In training mode BatchNorm takes
    the statistics of each batch (running ones stay as they are) and dropout draws one fixed mask.

    Args:
        model: any network that can be differentiated twice.
        loss_fn: ``loss_fn(model(x), y)``, the mean over a batch.
        batches: pairs ``(x, y)``; L is their mean, weighted by size. They are kept.
        weight_decay: L2 decay, which is part of L.
        max_iter: most products H v a point. Each costs about two gradients, and holds one vector
            of the size of the weights.
        tol: go on until the relative residual is this small,
        margin: and ``upper`` at most this fraction above the value.
        confidence: probability with which ``upper`` holds at all points together.
        seed: of the random starts and of dropout masks.

    Example:
        >>> net = torch.nn.Linear(2, 1)
        >>> x, y = torch.eye(2), torch.zeros(2, 1)
        >>> track = LipschitzTrack(net, torch.nn.functional.mse_loss, [(x, y)])
        >>> round(track("start").lip, 3)
        3.0
    """

    def __init__(
        self,
        model: nn.Module,
        loss_fn: LossFn,
        batches: Iterable[Batch],
        *,
        weight_decay: float = 0.0,
        max_iter: int = 60,
        tol: float = 1e-3,
        margin: float = 0.05,
        confidence: float = 0.99,
        seed: int = 0,
    ) -> None:
        if max_iter < 1:
            raise ValueError(f"max_iter must be >= 1, got {max_iter}")
        if not 0 < confidence < 1:
            raise ValueError(f"confidence must be in (0, 1), got {confidence!r}")
        if not 0 <= weight_decay < math.inf:
            raise ValueError(f"weight_decay must be >= 0 and finite, got {weight_decay!r}")
        self._model, self._loss_fn, self._batches = model, loss_fn, list(batches)
        if not self._batches:
            raise ValueError("batches must hold at least one (x, y) pair, got none")
        self._weight_decay, self._max_iter, self._tol = weight_decay, max_iter, tol
        self._margin, self._confidence, self._seed = margin, confidence, seed
        self._points: list[Curvature] = []
        self._nonsmooth: tuple[str, ...] = ()
        self._size = self._images = 0

    def __call__(
        self, label: str | None = None, weights: Mapping[str, Tensor] | None = None
    ) -> Curvature:
        """Estimate at the model's present weights, or at ``weights`` (parameters by name)."""
        hessian = Hessian(
            self._model,
            self._loss_fn,
            self._batches,
            weights=weights,
            l2=self._weight_decay,
            seed=self._seed,
        )
        count = len(self._points) + 1
        if count == 1:
            self._nonsmooth = nonsmooth_parts(hessian.loss())
            self._size, self._images = hessian.size, hessian.images
        # A start of its own for each point: one unlucky draw must not spoil all of them.
        generator = torch.Generator().manual_seed(self._seed * 1_000_003 + count)
        start = torch.randn(hessian.size, dtype=torch.float64, generator=generator)
        # Shares of the failure probability that sum to one however many points follow.
        failure = (1 - self._confidence) * 6 / (math.pi * count) ** 2

        def enough(ends: Ends) -> bool:
            near = upper_bound(ends, hessian.size, failure) <= (1 + self._margin) * ends.lip
            return ends.residual <= self._tol * ends.lip and near

        ends = lanczos(
            hessian,
            start.to(hessian.device, hessian.dtype),
            max_iter=self._max_iter,
            enough=enough,
        )
        point = Curvature(
            **vars(ends),
            label=f"point {count - 1}" if label is None else label,
            upper=upper_bound(ends, hessian.size, failure),
        )
        self._points.append(point)
        return point

    @property
    def estimate(self) -> LipschitzEstimate:
        """All points so far."""
        if not self._points:
            raise ValueError("no point has been estimated yet; call the track first")
        return LipschitzEstimate(
            points=tuple(self._points),
            confidence=self._confidence,
            parameters=self._size,
            images=self._images,
            weight_decay=self._weight_decay,
            nonsmooth=self._nonsmooth,
            notes=_notes(self._model),
        )


def lipschitz(
    model: nn.Module,
    loss_fn: LossFn,
    batches: Iterable[Batch],
    *,
    trajectory: Iterable[Mapping[str, Tensor]] | None = None,
    **options: Any,
) -> LipschitzEstimate:
    """Largest absolute Hessian eigenvalue of a training loss, without forming the Hessian.

    By Lanczos iteration with full re-orthogonalisation on products H v from a random start. The
    largest value over the points of a run is the constant that :func:`max_lr` asks for.

    Args:
        model: any network that can be differentiated twice; it is left as it was.
        loss_fn: ``loss_fn(model(x), y)``, the mean over a batch.
        batches: pairs ``(x, y)``; L is their mean, weighted by size.
        trajectory: ``state_dict`` after ``state_dict`` to estimate at; by default the model's
            present weights. :class:`LipschitzTrack` does the same while a run goes on.
        options: of :class:`LipschitzTrack`.
    """
    track = LipschitzTrack(model, loss_fn, batches, **options)
    for weights in [None] if trajectory is None else trajectory:
        track(weights=weights)
    return track.estimate


def _notes(model: nn.Module) -> tuple[str, ...]:
    kinds = {
        kind
        for module in model.modules()
        for kind in ("BatchNorm", "InstanceNorm", "Dropout")
        if kind in type(module).__name__ and module.training
    }
    said = {
        "BatchNorm": "BatchNorm: with the statistics of each batch, as in training",
        "InstanceNorm": "InstanceNorm: with the statistics of each image, as in training",
        "Dropout": "Dropout: one mask, drawn once",
    }
    return tuple(text for kind, text in said.items() if kind in kinds)


def nonsmooth_parts(loss: Tensor) -> tuple[str, ...]:
    """The kinked operations that a loss was computed with, as autograd names them.

    A kink inside a custom ``autograd.Function`` or compiled code is not seen.
    """
    waiting: list[Any] = [loss.grad_fn]
    seen: set[Any] = set()
    found = set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        operation = re.sub(r"Backward\d*$", "", node.name()).lower()
        if operation == "elu" and node._saved_alpha * node._saved_input_scale != 1:
            operation = "selu"  # recorded alike; with slope 1 from the left the derivative is whole
        if _KINKED.fullmatch(operation):
            found.add(operation.removesuffix("withindices"))
        waiting += [following for following, _ in node.next_functions]
    return tuple(sorted(found))

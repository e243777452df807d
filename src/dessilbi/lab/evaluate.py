"""How good a network is: as trained, projected on the support of Gamma, and recalibrated."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.nn.functional import cross_entropy

from dessilbi.lab.data import batches
from dessilbi.subnet.batchnorm import has_batchnorm, recalibrate_batchnorm

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor, nn

    from dessilbi.lab.data import Split
    from dessilbi.optim import DessiLBI

BATCH = 500
RECALIBRATION_IMAGES = 5000


class Score(NamedTuple):
    """Sums over a split, so that shares of several processes can be added."""

    loss: float
    correct: int
    images: int

    @property
    def accuracy(self) -> float:
        """In percent."""
        return 100 * self.correct / self.images

    @property
    def mean_loss(self) -> float:
        """Cross entropy, averaged over images."""
        return self.loss / self.images


@torch.inference_mode()
def evaluate(model: nn.Module, split: Split) -> Score:
    """Cross entropy and accuracy in evaluation mode; the model's mode is restored."""
    mode = model.training
    model.eval()
    try:
        loss, correct = 0.0, 0
        for x, y in batches(split, BATCH, seed=0, epoch=0, shuffle=False):
            logits = model(x)
            loss += float(cross_entropy(logits, y, reduction="sum"))
            correct += int((logits.argmax(1) == y).sum())
    finally:
        model.train(mode)
    return Score(loss, correct, len(split))


@contextmanager
def projected(optimizer: DessiLBI) -> Iterator[None]:
    """Within the context every weight outside the support of Gamma is zero."""
    kept: list[tuple[Tensor, Tensor]] = []
    try:
        with torch.no_grad():
            for _, p in optimizer.twins():
                kept.append((p, p.detach().clone()))
                p.mul_(optimizer.support(p))
        yield
    finally:
        with torch.no_grad():
            for p, dense in kept:
                p.copy_(dense)


def evaluate_sparse(
    model: nn.Module, optimizer: DessiLBI, split: Split, train: Split
) -> tuple[Score, Score]:
    """Score of W projected on the support of Gamma, without and with BatchNorm recalibration.

    Statistics are recalibrated on the first training images and given back afterwards.
    """
    with projected(optimizer):
        plain = evaluate(model, split)
        if not has_batchnorm(model):
            return plain, plain
        buffers = {name: b.detach().clone() for name, b in model.named_buffers()}
        try:
            recalibrate_batchnorm(model, _first_inputs(train))
            return plain, evaluate(model, split)
        finally:
            with torch.no_grad():
                for name, b in model.named_buffers():
                    b.copy_(buffers[name])


def _first_inputs(train: Split) -> Iterator[Tensor]:
    seen = 0
    # Batches weigh the same in the average, and of one image there is no variance.
    whole = len(train) > BATCH
    for x, _ in batches(train, BATCH, seed=0, epoch=0, shuffle=True, drop_last=whole):
        yield x
        seen += len(x)
        if seen >= RECALIBRATION_IMAGES:
            return

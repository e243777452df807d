"""How good a network is: as trained, projected on the support of Gamma, and recalibrated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch.nn.functional import cross_entropy

from dessilbi.lab.data import batches
from dessilbi.optim import TwinOptimizer
from dessilbi.subnet import project, recalibrate_batchnorm
from dessilbi.subnet.batchnorm import has_batchnorm

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor, nn
    from torch.optim import Optimizer

    from dessilbi.lab.data import Split
    from dessilbi.lab.run.files import EpochRecord
    from dessilbi.lab.training.state import Training
    from dessilbi.path import Mask

BATCH = 500
RECALIBRATION_IMAGES = 5000


class Score(NamedTuple):
    """Sums over a split, so that shares of several processes can be added."""

    loss: float
    correct: int
    labels: int
    """One an image; of a text one a character."""

    @property
    def accuracy(self) -> float:
        """In percent."""
        return 100 * self.correct / self.labels

    @property
    def mean_loss(self) -> float:
        """Cross entropy, averaged over labels."""
        return self.loss / self.labels


def prediction_loss(
    logits: Tensor, labels: Tensor, *, reduction: str = "mean", label_smoothing: float = 0.0
) -> Tensor:
    """Cross entropy of logits (..., classes) and labels (...): of images, or of each character."""
    return cross_entropy(
        logits.flatten(0, -2),
        labels.flatten(),
        reduction=reduction,
        label_smoothing=label_smoothing,
    )


@torch.inference_mode()
def evaluate(model: nn.Module, split: Split, *, flips: bool = False) -> Score:
    """Cross entropy and accuracy in evaluation mode; the model's mode is restored.

    Args:
        model: the network.
        split: what it is judged on.
        flips: judge the mean of an image's logits and its mirror image's.
    """
    mode = model.training
    model.eval()
    try:
        loss, correct, labels = 0.0, 0, 0
        for x, y in batches(split, BATCH, seed=0, epoch=0, shuffle=False):
            logits = model(x)
            if flips:
                exact = torch.promote_types(logits.dtype, torch.float32)
                logits = (logits.to(exact) + model(x.flip(-1)).to(exact)) / 2
            loss += float(prediction_loss(logits, y, reduction="sum"))
            correct += int((logits.argmax(-1) == y).sum())
            labels += y.numel()
    finally:
        model.train(mode)
    return Score(loss, correct, labels)


def evaluate_sparse(
    model: nn.Module, optimizer: TwinOptimizer, split: Split, train: Split
) -> tuple[Score, Score]:
    """Score of W projected on the support of Gamma, without and with BatchNorm recalibration.

    Statistics are recalibrated on the first training images and given back afterwards.
    """
    with project(model, optimizer.mask(model), allow_empty=True):
        sparse = evaluate(model, split)
        if not has_batchnorm(model):
            return sparse, sparse
        return sparse, evaluate_recalibrated(model, split, train)


def evaluate_recalibrated(model: nn.Module, split: Split, train: Split) -> Score:
    """Score with BatchNorm statistics of the weights as they are; the old ones are given back."""
    if not has_batchnorm(model):
        return evaluate(model, split)
    buffers = {name: b.detach().clone() for name, b in model.named_buffers()}
    try:
        recalibrate_batchnorm(model, recalibration_inputs(train))
        return evaluate(model, split)
    finally:
        with torch.no_grad():
            for name, b in model.named_buffers():
                b.copy_(buffers[name])


def evaluate_epoch(
    model: nn.Module, optimizer: Optimizer, split: Split, train: Split, mask: Mask | None = None
) -> dict[str, Any]:
    """What an epoch's record says of a network.

    With a mask, that of a subnetwork before training: how it does as it is (one-shot). With
    a twin also how the weights on the support of Gamma do.
    """
    dense = evaluate(model, split)
    found: dict[str, Any] = {"loss": dense.mean_loss, "accuracy": dense.accuracy}
    if mask is not None:
        recalibrated = evaluate_recalibrated(model, split, train)
        found |= {
            "recalibrated_accuracy": recalibrated.accuracy,
            "density": mask.density,
            "densities": mask.layer_densities(),
        }
    elif isinstance(optimizer, TwinOptimizer):
        sparse, recalibrated = evaluate_sparse(model, optimizer, split, train)
        found |= {
            "sparse_loss": sparse.mean_loss,
            "sparse_accuracy": sparse.accuracy,
            "recalibrated_accuracy": recalibrated.accuracy,
            "density": optimizer.density(),
            "densities": {name: optimizer.density(p) for name, p in optimizer.twins()},
        }
    return found


def recalibration_inputs(train: Split) -> Iterator[Tensor]:
    """Batches of training images that BatchNorm statistics are measured on, everywhere the same."""
    seen = 0
    # Batches weigh the same in the average, and of one image there is no variance.
    whole = len(train) > BATCH
    for x, _ in batches(train, BATCH, seed=0, epoch=0, shuffle=True, drop_last=whole):
        yield x
        seen += len(x)
        if seen >= RECALIBRATION_IMAGES:
            return


def measure(t: Training) -> EpochRecord:
    """What is recorded of the epoch that was just trained."""
    loss, correct, labels = t.world.sum(
        [t.progress.loss, t.progress.correct, t.progress.labels], t.device
    )
    trained = Score(loss, int(correct), int(labels))
    with t.precision.autocast():
        evaluated = evaluate_epoch(t.model, t.optimizer, t.evaluated, t.data.train)
        if t.config.test_flips and t.progress.epoch + 1 == t.config.epochs:
            flipped = evaluate(t.model, t.evaluated, flips=True)
            evaluated["flipped_accuracy"] = flipped.accuracy
    found = {
        "epoch": t.progress.epoch + 1,
        "judged_on": t.evaluated_on,
        **evaluated,
        "lr": t.optimizer.param_groups[0]["lr"],
        "train_loss": trained.mean_loss,
        "train_accuracy": trained.accuracy,
    }
    record = cast("EpochRecord", found)
    if isinstance(t.optimizer, TwinOptimizer):
        record["nu"] = t.optimizer.param_groups[0]["nu"]
    for callback in t.callbacks:
        callback.measure(t, record)
    return record

"""Check of the learning rate against the safe step, while a run goes on."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import torch

from dessilbi.lab.data import batches
from dessilbi.lab.training.callbacks.base import Callback
from dessilbi.lab.training.evaluate import prediction_loss
from dessilbi.theory import LipschitzTrack, judge_step
from dessilbi.theory.scope import numbers, outside, steps_along_gradient

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from dessilbi.lab.training.state import Training
    from dessilbi.theory import StepVerdict

LIVE_ITERATIONS = 12
"""Products H v of a live estimate: enough for the largest eigenvalue to a few percent."""


class Iteration(NamedTuple):
    """An optimizer as the theorem sees it."""

    lr: float
    nu: float
    l2: float
    outside: tuple[str, ...]


def iteration_of(optimizer: Optimizer) -> Iteration | None:
    """The numbers that the bounds need; ``None`` for an optimizer that they are not about."""
    if steps_along_gradient(optimizer):
        found = numbers(optimizer)
        return Iteration(found.lr, found.nu, found.l2, outside(optimizer))
    if type(optimizer) is torch.optim.SGD:  # DessiLBI without a twin
        group = optimizer.param_groups[0]
        momentum = group["momentum"]
        reasons = (f"momentum {momentum:g} (the theorem has none)",) if momentum else ()
        return Iteration(float(group["lr"]), math.inf, float(group["weight_decay"]), reasons)
    return None


class StepCheckCallback(Callback):
    """Estimates the curvature on a batch before each epoch and warns when lr is too large for it.

    Nothing of the run changes: batches come from their own generators, the random state is put
    back, and BatchNorm's statistics are copies.
    """

    def __init__(self, t: Training) -> None:
        self._warn = t.display.warn
        self._above = False
        self._can = True
        if t.world.size > 1:  # shared BatchNorm would wait for the others
            self._refuse(f"--check-step works in one process, not in {t.world.size}; not checked")
        elif iteration_of(t.optimizer) is None:
            self._refuse(
                f"--check-step is about dessilbi and sgd; {t.config.optimizer.label} is not checked"
            )

    def _refuse(self, reason: str) -> None:
        self._can = False
        self._warn(reason)

    def on_epoch_start(self, t: Training) -> None:
        """Check the learning rate of the next step."""
        if self._can:
            t.set_lr(t.step)
            self.check(t)

    def check(self, t: Training) -> StepVerdict | None:
        """Check the learning rate that the optimizer has now, and say what changed."""
        found = iteration_of(t.optimizer)
        assert found is not None
        epoch = t.progress.epoch
        drawn = batches(t.data.train, t.config.batch_size, seed=t.config.seed, epoch=epoch)
        batch = next(iter(drawn))
        track = LipschitzTrack(
            t.model,
            prediction_loss,
            [batch],
            weight_decay=found.l2,
            max_iter=LIVE_ITERATIONS,
            tol=0.02,
            margin=math.inf,
        )
        try:
            track()
        except (RuntimeError, ValueError) as error:  # no reason to end the run
            self._refuse(f"epoch {epoch + 1}: the step cannot be checked: {error}")
            return None
        verdict = judge_step(found.lr, found.nu, track.estimate, found.outside)
        self._report(epoch, verdict, track.estimate.value, len(batch[1]))
        return verdict

    def _report(self, epoch: int, verdict: StepVerdict, lip: float, images: int) -> None:
        above = verdict.lr >= verdict.bounds.safe
        if above == self._above:
            return
        self._above = above
        found = f"Lip {lip:.3g} on {images} images, nu {verdict.nu:g}"
        if not above:
            self._warn(
                f"epoch {epoch + 1}: lr {verdict.lr:.3g} is below the safe step "
                f"{verdict.bounds.safe:.3g} again ({found})"
            )
            return
        reasons = "; ".join(verdict.outside)
        self._warn(
            f"epoch {epoch + 1}: lr {verdict.lr:.3g} is above the safe step "
            f"{verdict.bounds.safe:.3g} (the paper's: {verdict.bounds.paper:.3g}; {found}): full "
            "gradient steps of this size need not descend"
            + (f". Outside the theorem: {reasons}" if reasons else "")
        )

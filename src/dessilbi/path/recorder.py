"""The recorder of a path: a hook after every step of the optimizer, a snapshot every epoch."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch

from dessilbi.graph.wrappers import bare_optimizer
from dessilbi.optim.dtensor import is_dtensor
from dessilbi.optim.hooks import Attached
from dessilbi.optim.twin import TwinOptimizer

from ._entry import warn_if_late
from ._measure import make_ranking, measure
from ._snapshots import Snapshot
from .sharded import OwnGroups, gather_changes
from .solution_path import SolutionPath
from .twins import grouped_weights, twins_by_name

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import nn
    from torch.optim import Optimizer

    from ._measure import Measured
    from ._ranking import NestedRun
    from .layers import Layer
    from .sharded import Change


class PathRecorder(Attached):
    """Records when groups enter and leave the support of Gamma.

    After each step of the optimizer the norms of V's groups are compared with their thresholds, and
    what changed is noted: exact to the step, with one transfer of a byte a group from the device.
    Elements of Lasso layers are too many for that; they are seen when :meth:`record` keeps an
    epoch. Training is not changed. Of sharded parameters (FSDP2) each rank watches its own groups;
    all ranks record, and then each has the whole path.

    A step in which the learning rate of every group is 0 moves nothing and is not counted; such is
    the step by which torch.distributed.checkpoint creates the optimizer's state.

    Args:
        model: gives the parameters their names.
        opt: the optimizer to watch, a :class:`DessiLBI` or :class:`SplitLBI`, perhaps wrapped.
        path: an earlier path to go on with, which is copied; cut it to the checkpoint with
            :meth:`SolutionPath.truncated`, and load the checkpoint into ``opt`` first.
        step: steps done so far, if ``path`` is to be cut there.
        nested: :class:`dessilbi.NestedTraining` or :class:`dessilbi.NestedWidths`, if one trains
            the budgets: its ranking of the groups is kept, and ``path.mask`` fills budgets by it.

    Example:
        >>> net = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3))
        >>> opt = DessiLBI(net.parameters(), lr=0.1)
        >>> with PathRecorder(net, opt) as recorder:
        ...     recorder.record(epoch=0)
        >>> recorder.path.density(epoch=0)
        0.0
    """

    def __init__(
        self,
        model: nn.Module,
        opt: Optimizer,
        path: SolutionPath | None = None,
        step: int | None = None,
        nested: NestedRun | None = None,
    ) -> None:
        opt = bare_optimizer(opt)
        if not isinstance(opt, TwinOptimizer):
            raise TypeError(
                f"opt must be a DessiLBI or SplitLBI optimizer, got {type(opt).__name__}"
            )
        self._opt, self._nested = opt, nested
        self._params = twins_by_name(model, opt, sharded=True)
        self._sharded = any(is_dtensor(p) for p in self._params.values())
        self._own_changes: list[Change] = []
        _, layers = grouped_weights(model, opt.param_groups, sharded=True)
        if path is None:
            if step:
                raise ValueError(f"step={step} needs the path up to it; give path= as well")
            self.path = SolutionPath(layers)
        else:
            self.path = path.truncated(step=step)
            _check_same_layers(self.path.layers, layers)
        self._exact = {
            layer.name: OwnGroups(layer, self._params[layer.name])
            for layer in self.path.layers
            if layer.exact
        }
        # Numbers of the watched groups among all, and whether they were inside after the last step.
        self._watched = np.concatenate(
            [np.arange(0), *(groups.numbers for groups in self._exact.values())]
        )
        self._inside: NDArray[np.bool_] = self.path.event_log.activity(self.path.groups)[
            self._watched
        ]
        if path is not None and not np.array_equal(self._inside, self._activity()):
            raise ValueError(
                f"the path up to step {self.path.step} and the optimizer's state disagree on the "
                "support; load the checkpoint of that step into the optimizer first, or cut the "
                "path to the checkpoint's step with path.truncated(step=..., epoch=...)"
            )
        if path is None:
            # An optimizer that goes on, as a rewound one: what is inside was so from the beginning.
            self._note(self._activity())
        self._looked = False
        self._handles = (opt.register_step_post_hook(self._after_step),)

    @property
    def step(self) -> int:
        """Steps recorded so far: what a checkpoint must remember to resume."""
        return self.path.step

    # ------------------------------------------------------------------ every step

    def _after_step(self, opt: object, args: object, kwargs: object) -> None:
        if all(float(group["lr"]) == 0 for group in self._opt.param_groups):
            return
        self.path.step += 1
        self._note(self._activity())

    def _note(self, now: NDArray[np.bool_]) -> None:
        """Log which groups entered or left."""
        changed = np.flatnonzero(now != self._inside)
        if len(changed):
            step, groups, entered = self.path.step, self._watched[changed], now[changed]
            if self._sharded:
                each = zip(groups.tolist(), entered.tolist(), strict=True)
                self._own_changes += [(step, group, inside) for group, inside in each]
            else:
                self.path.event_log.append(step, groups, entered)
            self._inside = now

    def gather(self) -> None:
        """Bring together what the ranks of sharded parameters have seen; :meth:`record` does.

        All of them must call it, as a checkpoint between two records must. Without sharded
        parameters it does nothing.
        """
        if self._sharded:
            gather_changes(self._own_changes, self.path.event_log)
            self._own_changes = []

    @torch.no_grad()
    def _activity(self) -> NDArray[np.bool_]:
        """Which watched groups are in the support now."""
        parts, penalties = [], self._opt.penalties()
        for name, groups in self._exact.items():
            p = self._params[name]
            parts.append(groups.active(penalties[p], self._opt.dual(p)))
        if len({part.device for part in parts}) > 1:
            parts = [part.cpu() for part in parts]
        inside = torch.cat(parts) if parts else torch.zeros(0, dtype=torch.bool)
        numbers: NDArray[np.bool_] = inside.cpu().numpy()
        return numbers

    # ------------------------------------------------------------------ every epoch

    @torch.no_grad()
    def record(self, epoch: int, loss: float | None = None) -> None:
        """Keep an epoch: support, norms, densities, coupling gap and loss as they are now.

        Args:
            epoch: larger than the last one recorded; 0 is before training.
            loss: the training loss L(W), for :meth:`SolutionPath.augmented_loss`.
        """
        path = self.path
        if isinstance(epoch, bool) or not isinstance(epoch, int) or epoch < 0:
            raise ValueError(f"epoch must be an integer >= 0, got {epoch!r}")
        if path.snapshots and epoch <= path.snapshots[-1].epoch:
            raise ValueError(
                f"epoch must be larger than the last one recorded, {path.snapshots[-1].epoch}, got "
                f"{epoch}; to go on from a checkpoint, cut the path with truncated(epoch=...)"
            )
        late = {id(p) for _, p in self._opt.twins()} - {id(p) for p in self._params.values()}
        if late:
            raise RuntimeError(
                "the optimizer was given parameters with a twin after the recorder was made; make "
                "the recorder after the last add_param_group"
            )
        self.gather()
        measured = [measure(self._opt, self._params[one.name], one) for one in path.layers]
        path.supports.append(np.concatenate([m.active for m in measured]))
        path.snapshots.append(
            Snapshot(
                epoch=epoch,
                step=path.step,
                loss=math.nan if loss is None else float(loss),
                counts=np.array([m.kept for m in measured], dtype=np.int64),
                gap=np.array([m.gap for m in measured]),
                coupling=np.array([m.coupling for m in measured]),
                norms=np.concatenate([m.norms for m in measured], axis=1),
            )
        )
        path.ranking = make_ranking(path.layers, measured, self._nested)
        self._look_ahead(dict(zip(path.layers, measured, strict=True)))

    def _look_ahead(self, measured: dict[Layer, Measured]) -> None:
        """Say once, and early, if the settings let nothing enter."""
        path = self.path
        if self._looked or path.step == 0:
            return
        self._looked = True
        begun = len(path.event_log.all().steps) > 0 or any(s.counts.any() for s in path.snapshots)
        if begun or self._nested is not None:  # which ranks without the twin
            return
        now, before = path.snapshots[-1], path.snapshots[-2:-1]
        steps, epochs = path.step, now.epoch
        if before:
            steps, epochs = now.step - before[0].step, now.epoch - before[0].epoch
        if steps > 0:
            warn_if_late(self._opt, self._params, measured, path.step, steps / max(epochs, 1))


def _check_same_layers(recorded: tuple[Layer, ...], present: tuple[Layer, ...]) -> None:
    if recorded == present:
        return
    for old, new in zip(recorded, present, strict=False):
        if old != new:
            raise ValueError(f"the path was recorded for another network: it has {old}, not {new}")
    raise ValueError(
        f"the path was recorded for another network: it has {len(recorded)} layers with a twin, "
        f"this one {len(present)}"
    )

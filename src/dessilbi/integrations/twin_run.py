"""What the callbacks of all frameworks do, in plain calls."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from dessilbi.graph.wrappers import bare_model, bare_optimizer
from dessilbi.nested import NestedTraining
from dessilbi.optim.twin import TwinOptimizer
from dessilbi.path import PathRecorder, SolutionPath

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler

_PATH, _NESTED = "path", "nested/"
_UNKNOWN_LENGTH = (
    "the framework cannot tell how many steps the training has; give it a limit (max_steps), or "
    "the optimizer steps= or nu="
)


class TwinRun:
    """A training under way whose path is recorded, and perhaps its budgets trained.

    Args:
        stop_when_stable: whether :meth:`record` says that training may stop once the support has
            settled; see :meth:`SolutionPath.stable_epoch` for ``window`` and ``tolerance``.
        window: how many earlier supports must be near.
        tolerance: largest distance that counts as near.
        nested: options of :class:`dessilbi.NestedTraining` beside model, optimizer and steps, if it
            trains the budgets.
    """

    def __init__(
        self,
        *,
        stop_when_stable: bool = False,
        window: int = 5,
        tolerance: float = 0.1,
        nested: Mapping[str, Any] | None = None,
    ) -> None:
        self.stop_when_stable, self.window, self.tolerance = stop_when_stable, window, tolerance
        self.nested_options = nested
        self.nested: NestedTraining | None = None
        self.recorder: PathRecorder | None = None
        self._opt: TwinOptimizer | None = None

    def begin(
        self,
        model: nn.Module,
        opt: Optimizer,
        steps: int | None,
        *,
        scheduler: LRScheduler | None = None,
        every: int = 1,
        saved: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Follow an optimizer, from the start or, with ``saved``, from a checkpoint.

        An optimizer that was not told how long the training is learns it here, and with it ``nu``.

        Args:
            model: the network.
            opt: its optimizer; its state is in place.
            steps: optimizer steps of the whole training; ``None`` if nobody knows.
            scheduler: of the learning rate.
            every: optimizer steps between two steps of the scheduler.
            saved: what :meth:`state_dict` gave.
        """
        self.close()
        model, opt = bare_model(model), bare_optimizer(opt)
        if self.nested_options is not None:
            if steps is None:
                raise ValueError(_UNKNOWN_LENGTH)
            self.nested = NestedTraining(model, opt, steps, **self.nested_options)
            if saved is not None:
                self.nested.load_state_dict(_part(saved, _NESTED))
        if not isinstance(opt, TwinOptimizer) and self.nested is not None:
            return
        path = None if saved is None else _unpacked(saved)
        if isinstance(opt, TwinOptimizer):
            _refuse_embeddings(model, opt)
            self._opt = opt
            if path is None and not _knows_its_length(opt):
                if steps is None:
                    raise ValueError(_UNKNOWN_LENGTH)
                opt.set_coupling_time(steps=steps, scheduler=scheduler, every=every)
        self.recorder = PathRecorder(model, opt, path=path, nested=self.nested)

    def close(self) -> None:
        """Let go of the optimizer; what was recorded stays until the next :meth:`begin`."""
        if self.recorder is not None:
            self.recorder.close()
        if self.nested is not None:
            self.nested.close()

    @property
    def path(self) -> SolutionPath:
        """What was recorded so far."""
        if self.recorder is None:
            raise RuntimeError("there is no path: training has not begun, or no weight has a twin")
        return self.recorder.path

    @property
    def density(self) -> float | None:
        """The fraction of weights in Gamma now; ``None`` without a twin."""
        return None if self._opt is None else self._opt.density()

    def record(self, epoch: int, loss: float | None = None) -> bool:
        """Keep an epoch, unless it is kept; says whether training may stop."""
        if self.recorder is None or epoch in self.path.epochs:
            return False
        self.recorder.record(epoch, loss)
        return self.stop_when_stable and (
            self.path.stable_epoch(self.window, self.tolerance) is not None
        )

    def state_dict(self) -> dict[str, Tensor]:
        """What a checkpoint must keep; every rank asks for it where weights are sharded."""
        if self.recorder is not None:
            self.recorder.gather()
        found = {} if self.recorder is None else {_PATH: _packed(self.path)}
        if self.nested is not None:
            found |= {_NESTED + name: t for name, t in self.nested.state_dict().items()}
        return found


def _knows_its_length(opt: TwinOptimizer) -> bool:
    return all(g["tau"] is None or g["nu"] != opt.defaults["nu"] for g in opt.param_groups)


def _refuse_embeddings(model: nn.Module, opt: TwinOptimizer) -> None:
    """A framework that groups parameters itself knows nothing of twins; names, of its groups."""
    unnamed = [group for group in opt.param_groups if "param_names" not in group]
    mine = {id(p) for group in unnamed for p in group["params"]}
    twins = {id(p) for _, p in opt.twins()} & mine
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and id(module.weight) in twins:
            raise ValueError(
                f"the embedding {name + '.weight'!r} has a twin: the framework made the parameter "
                "groups, by shape alone. Let split_parameters(model) make them, which leaves "
                "embeddings out and names every parameter"
            )


def _packed(path: SolutionPath) -> Tensor:
    """The path's file, as a tensor of its bytes."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "path"
        path.save(file)
        return torch.frombuffer(bytearray(file.read_bytes()), dtype=torch.uint8)


def _unpacked(saved: Mapping[str, Tensor]) -> SolutionPath:
    if _PATH not in saved:
        raise ValueError("the checkpoint has no path; it was made without a twin")
    with TemporaryDirectory() as folder:
        file = Path(folder) / "path"
        file.write_bytes(saved[_PATH].numpy().tobytes())
        return SolutionPath.load(file)


def _part(saved: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): t for k, t in saved.items() if k.startswith(prefix)}

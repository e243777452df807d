"""Hugging Face Trainer: a callback that records the path, nested training, twins for any optimizer.

Example:
    ``opt = SplitLBI(torch.optim.AdamW(split_parameters(model), lr=1e-3))``,
    ``Trainer(model, args, optimizers=(opt, None), callbacks=[DessilbiCallback()])``; see
    ``examples/hf_trainer.py``.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file, save_file
from transformers import Trainer, TrainerCallback

from dessilbi.optim import DessiLBI, SplitLBI, split_parameters

from .twin_run import TwinRun

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torch import Tensor, nn
    from transformers import TrainerControl, TrainerState, TrainingArguments

    from dessilbi.nested import NestedTraining
    from dessilbi.optim import TwinOptimizer
    from dessilbi.path import SolutionPath

FILE = "dessilbi-path.safetensors"
"""What a checkpoint folder gets beside the Trainer's files."""


class DessilbiCallback(TrainerCallback):
    """Records the path of Gamma while a Trainer trains, and keeps it with its checkpoints.

    An optimizer that was made without ``steps=`` learns from the Trainer how long the training is.
    Logs get a ``density``. A resumed training goes on with the path of its checkpoint.

    Args:
        every_steps: optimizer steps from one record to the next, by which the path counts then; by
            default it records, and counts, epochs.
        stop_when_stable: whether to end the training once the support has settled.
        window: how many earlier supports must be near; see :meth:`SolutionPath.stable_epoch`.
        tolerance: largest distance that counts as near.
        resume_from: the checkpoint's folder, where it is not one of the Trainer's output folder.
    """

    def __init__(
        self,
        every_steps: int | None = None,
        *,
        stop_when_stable: bool = False,
        window: int = 5,
        tolerance: float = 0.1,
        resume_from: str | Path | None = None,
    ) -> None:
        if every_steps is not None and every_steps < 1:
            raise ValueError(f"every_steps must be >= 1, got {every_steps!r}")
        self.every_steps, self.resume_from = every_steps, resume_from
        self.run = TwinRun(stop_when_stable=stop_when_stable, window=window, tolerance=tolerance)

    @property
    def path(self) -> SolutionPath:
        """What was recorded so far."""
        return self.run.path

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Follow the optimizer, whose state is in place."""
        scheduler = kwargs.get("lr_scheduler")
        self.run.begin(
            kwargs["model"],
            kwargs["optimizer"],
            state.max_steps,
            scheduler=getattr(scheduler, "scheduler", scheduler),
            saved=self._saved(args, state.global_step) if state.global_step else None,
        )

    def _saved(self, args: TrainingArguments, step: int) -> dict[str, Tensor]:
        folders = [
            Path(folder)
            for folder in (self.resume_from, args.resume_from_checkpoint)
            if isinstance(folder, str | Path)
        ]
        folders.append(Path(args.output_dir) / f"checkpoint-{step}")
        for folder in folders:
            if (folder / FILE).exists():
                return load_file(folder / FILE)
        raise FileNotFoundError(
            f"{folders[-1]} has no {FILE}: the checkpoint of step {step} was made without "
            "DessilbiCallback, or lies elsewhere; give resume_from=, or train without the callback"
        )

    def on_step_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Record, every so many steps."""
        if self.every_steps is not None and state.global_step % self.every_steps == 0:
            self._record(state.global_step, control)

    def on_epoch_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Record the epoch."""
        if self.every_steps is None:
            self._record(round(state.epoch or 0), control)

    def _record(self, epoch: int, control: TrainerControl) -> None:
        if self.run.record(epoch):
            control.should_training_stop = True

    def on_save(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Write beside the Trainer's files."""
        found = self.run.state_dict()
        if state.is_world_process_zero and found:
            folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            folder.mkdir(parents=True, exist_ok=True)
            save_file(found, folder / FILE)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Add the density, to the history as well."""
        density = self.run.density
        if density is None:
            return
        for record in (logs, state.log_history[-1] if state.log_history else None):
            if record is not None:
                record["density"] = density

    def on_train_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Let go of the optimizer."""
        self.run.close()


class NestedTrainerMixin:
    """Trains several budgets a step; backward, clipping and accumulation stay the Trainer's.

    Each budget is a ``training_step`` of the Trainer with the weights of its subnetwork in place.
    ``trainer.nested`` gives the networks afterwards; the optimizer may be any.

    Args:
        *args: of the Trainer.
        nested: options of :class:`dessilbi.NestedTraining`, as ``schedule`` or ``groups``.
        **kwargs: of the Trainer.
    """

    def __init__(self, *args: Any, nested: Mapping[str, Any] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        callbacks = self.callback_handler.callbacks  # type: ignore[attr-defined]
        found = [one for one in callbacks if isinstance(one, DessilbiCallback)]
        if not found:
            found = [DessilbiCallback()]
            self.add_callback(found[0])  # type: ignore[attr-defined]
        self._dessilbi = found[0].run
        self._dessilbi.nested_options = dict(nested or {})

    @property
    def nested(self) -> NestedTraining:
        """The nested training, once it has begun."""
        if self._dessilbi.nested is None:
            raise RuntimeError("there is nothing nested before train()")
        return self._dessilbi.nested

    def training_step(self, model: nn.Module, inputs: dict[str, Any], *args: Any) -> Tensor:
        """The Trainer's, once for each budget; the loss of the largest."""
        loss = torch.zeros(())
        for _ in self.nested.passes():
            loss = super().training_step(model, dict(inputs), *args)  # type: ignore[misc]
        return loss


class NestedTrainer(NestedTrainerMixin, Trainer):
    """A Trainer that trains several budgets a step; see :class:`NestedTrainerMixin`."""


class TwinFactory:
    """Makes an optimizer with a twin, for ``Trainer(optimizer_cls_and_kwargs=...)``.

    Parameters keep their names, and embeddings have no twin, as :func:`split_parameters` says; the
    weights are decayed, biases and norms are not.

    Example:
        ``Trainer(..., optimizer_cls_and_kwargs=(TwinFactory, {"lr": 1e-3, "c": 1.0}))``
    """

    def __call__(
        self,
        model: nn.Module,
        *,
        base: type[torch.optim.Optimizer] = torch.optim.AdamW,
        weight_decay: float = 0.0,
        patterns: Mapping[str, Mapping[str, Any]] | None = None,
        exclude: Iterable[str] = (),
        twin: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> TwinOptimizer:
        """The optimizer of a model.

        Args:
            model: the network.
            base: takes the gradient: any optimizer, or :class:`DessiLBI`.
            weight_decay: of the weights.
            patterns: as in :func:`split_parameters`.
            exclude: as in :func:`split_parameters`.
            twin: options of the twin, as ``c`` and ``tau``.
            **options: of the base, as ``lr``.
        """
        groups = []
        for group in split_parameters(model, patterns, exclude=exclude):
            for decayed in (True, False):
                members = [(n, p) for n, p in group["params"] if (p.ndim > 1) is decayed]
                if members:
                    own = {"params": members, "weight_decay": weight_decay if decayed else 0.0}
                    groups.append(group | own)
        if issubclass(base, DessiLBI):
            return base(groups, **options, **(twin or {}))
        return SplitLBI(base(groups, **options), **(twin or {}))

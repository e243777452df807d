"""Everything a run needs to go on exactly where it stopped, as tensors and plain values."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch

from dessilbi.lab.run.directory import Checkpoint

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor, nn
    from torch.optim import Optimizer

OPTIMIZER = "optimizer/"
"""Where a file of tensors keeps the optimizer's."""


@dataclass
class Position:
    """Where in the run we are, with the sums of the epoch under way."""

    epoch: int = 0
    """Epochs completed."""
    batch: int = 0
    """Batches done of the next one."""
    loss: float = 0.0
    correct: int = 0
    images: int = 0
    best: float = -1.0
    """Best accuracy so far."""
    path_step: int = 0
    """Steps that the path has recorded."""
    settled: bool = False
    """Whether the run ended early because the support had settled."""

    def next_epoch(self) -> None:
        """Start counting anew."""
        self.epoch, self.batch = self.epoch + 1, 0
        self.loss, self.correct, self.images = 0.0, 0, 0


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Weights and buffers; of tensors that share memory the first name stands for all."""
    found: dict[str, Tensor] = {}
    seen: set[tuple[int, torch.Size]] = set()
    for name, tensor in model.state_dict().items():
        place = (tensor.data_ptr(), tensor.shape)
        if tensor.numel() and place in seen:
            continue
        seen.add(place)
        found[name] = tensor.detach().cpu().contiguous()
    return found


def load_model(model: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Put back what :func:`model_tensors` took."""
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    left = set(missing) & set(model_tensors(model))
    if left or unexpected:
        raise ValueError(
            f"the tensors do not fit the model: missing {sorted(left)}, "
            f"unexpected {sorted(unexpected)}"
        )


def take(model: nn.Module, optimizer: Optimizer, position: Position) -> Checkpoint:
    """A checkpoint of the whole state: weights, optimizer, random numbers, position."""
    tensors = {f"model/{name}": t for name, t in model_tensors(model).items()}
    values: dict[str, dict[str, Any]] = {}
    for index, entries in optimizer.state_dict()["state"].items():
        for key, value in entries.items():
            if isinstance(value, torch.Tensor):
                tensors[f"{OPTIMIZER}{index}/{key}"] = value.detach().cpu().contiguous()
            else:
                values.setdefault(str(index), {})[key] = value
    tensors["random/cpu"] = torch.get_rng_state()
    if torch.cuda.is_available():
        tensors["random/cuda"] = torch.cuda.get_rng_state()
    return Checkpoint(tensors, {**asdict(position), "optimizer": values})


def load_optimizer(
    optimizer: Optimizer,
    tensors: Mapping[str, Tensor],
    values: Mapping[str, Mapping[str, Any]] | None = None,
) -> None:
    """Put back the state that :func:`take` took of an optimizer: ``3/v`` is V of its parameter 3.

    Args:
        optimizer: its options stay as they are.
        tensors: by parameter and name.
        values: by parameter, what is no tensor.
    """
    entries: dict[int, dict[str, Any]] = {
        int(index): dict(given) for index, given in (values or {}).items()
    }
    for name, tensor in tensors.items():
        index, key = name.split("/", 1)
        entries.setdefault(int(index), {})[key] = tensor
    optimizer.load_state_dict(optimizer.state_dict() | {"state": entries})


def restore(checkpoint: Checkpoint, model: nn.Module, optimizer: Optimizer) -> Position:
    """Put a checkpoint back; the optimizer's options come from the configuration."""
    load_model(model, checkpoint.part("model"))
    load_optimizer(optimizer, checkpoint.part("optimizer"), checkpoint.state["optimizer"])
    random = checkpoint.part("random")
    torch.set_rng_state(random["cpu"])
    if "cuda" in random and torch.cuda.is_available():
        torch.cuda.set_rng_state(random["cuda"])
    return Position(**{name: checkpoint.state[name] for name in asdict(Position())})

"""Checkpoints: everything a run needs to go on exactly where it stopped, by parameter name."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch

from dessilbi.lab.run.config import FORMAT
from dessilbi.lab.run.directory import Checkpoint

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor, nn
    from torch.optim import Optimizer

OPTIMIZER = "optimizer/"
"""Where a file of tensors keeps the optimizer's."""


@dataclass
class Progress:
    """Where in the run we are, with the sums of the epoch under way."""

    epoch: int = 0
    """Epochs completed."""
    batch: int = 0
    """Batches done of the next one."""
    loss: float = 0.0
    correct: int = 0
    labels: int = 0
    """Trained on: one an image, one a character of a text."""
    best: float = -1.0
    """Best accuracy so far."""
    path_step: int = 0
    """Steps that the path has recorded."""
    settled: bool = False
    """Whether the run ended early because the support had settled."""

    def next_epoch(self) -> None:
        """Start counting anew."""
        self.epoch, self.batch = self.epoch + 1, 0
        self.loss, self.correct, self.labels = 0.0, 0, 0


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Weights and buffers; of tensors that share memory the first name stands for all."""
    found: dict[str, Tensor] = {}
    seen: set[tuple[int, torch.Size]] = set()
    for name, tensor in model.state_dict().items():
        memory = (tensor.data_ptr(), tensor.shape)
        if tensor.numel() and memory in seen:
            continue
        seen.add(memory)
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


def make_checkpoint(model: nn.Module, optimizer: Optimizer, progress: Progress) -> Checkpoint:
    """A checkpoint of weights, optimizer, random numbers and progress.

    The state of the optimizer is kept by the model's names: ``optimizer/conv1.weight/v`` is V of
    that parameter. A parameter with several names is kept under the first.
    """
    tensors = {f"model/{name}": t for name, t in model_tensors(model).items()}
    values: dict[str, dict[str, Any]] = {}
    names = _names(model, optimizer)
    for index, entries in optimizer.state_dict()["state"].items():
        for key, value in entries.items():
            if isinstance(value, torch.Tensor):
                tensors[f"{OPTIMIZER}{names[index]}/{key}"] = value.detach().cpu().contiguous()
            else:
                values.setdefault(names[index], {})[key] = value
    tensors["random/cpu"] = torch.get_rng_state()
    if torch.cuda.is_available():
        tensors["random/cuda"] = torch.cuda.get_rng_state()
    return Checkpoint(tensors, {"format": FORMAT, **asdict(progress), "optimizer": values})


def load_optimizer(
    model: nn.Module,
    optimizer: Optimizer,
    tensors: Mapping[str, Tensor],
    values: Mapping[str, Mapping[str, Any]] | None = None,
) -> None:
    """Put back the state that :func:`make_checkpoint` took of an optimizer.

    Args:
        model: whose parameters it has.
        optimizer: its options stay as they are.
        tensors: by parameter and key: ``conv1.weight/v``.
        values: by parameter, what is no tensor.

    Raises:
        ValueError: a parameter is unknown to the optimizer.
    """
    entries: dict[str, dict[str, Any]] = {
        name: dict(given) for name, given in (values or {}).items()
    }
    for name, tensor in tensors.items():
        parameter, key = name.rsplit("/", 1)
        entries.setdefault(parameter, {})[key] = tensor
    index = {name: i for i, name in enumerate(_names(model, optimizer))}
    if unknown := sorted(entries.keys() - index.keys()):
        raise ValueError(f"the optimizer has no parameters {', '.join(unknown)}")
    state = {index[name]: entry for name, entry in entries.items()}
    optimizer.load_state_dict(optimizer.state_dict() | {"state": state})


def _names(model: nn.Module, optimizer: Optimizer) -> list[str]:
    """The model's names of an optimizer's parameters, in the order in which it numbers them."""
    names = {p: name for name, p in model.named_parameters()}
    return [names[p] for group in optimizer.param_groups for p in group["params"]]


def load_checkpoint(checkpoint: Checkpoint, model: nn.Module, optimizer: Optimizer) -> Progress:
    """Put a checkpoint back; the optimizer's options come from the configuration."""
    found = checkpoint.state.get("format", 1)
    if found != FORMAT:
        raise ValueError(f"its format is {found}, this version of dessilbi knows {FORMAT}")
    load_model(model, checkpoint.part("model"))
    load_optimizer(model, optimizer, checkpoint.part("optimizer"), checkpoint.state["optimizer"])
    random = checkpoint.part("random")
    torch.set_rng_state(random["cpu"])
    if "cuda" in random and torch.cuda.is_available():
        torch.cuda.set_rng_state(random["cuda"])
    return Progress(**{name: checkpoint.state[name] for name in asdict(Progress())})

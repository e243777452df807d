"""The start of a retraining run: weights, optimizer state and the mask that is held."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import torch

from dessilbi.lab.run.checkpoint import OPTIMIZER, load_optimizer
from dessilbi.lab.run.directory import RunDir, RunError
from dessilbi.lab.run.files import MASK, START
from dessilbi.path import FormatError, Mask
from dessilbi.subnet.project import masked_weights, zero_outside

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor, nn
    from torch.optim import Optimizer

    from dessilbi.lab.run.config import Config, StartConfig


class Start(NamedTuple):
    """What a subnetwork's run begins with, as :func:`write_start` left it."""

    weights: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    """State of the optimizer, V above all; empty if it begins anew."""
    mask: Mask


def load_start(run: RunDir, start: StartConfig) -> Start:
    """Read the start of a subnetwork's run, and see that it is the one it was made with."""
    tensors = run.read_tensors(START)
    try:
        mask = Mask.load(run.path / MASK)
    except (OSError, FormatError) as error:
        raise RunError(f"{error}; remove {run.path} and run `dessilbi subnet` again") from error
    if _digest(tensors, mask) != start.digest:
        raise RunError(
            f"{MASK} or {START} in {run.path} is not the one that the run was made with; "
            "remove the folder and run `dessilbi subnet` again"
        )
    weights = {name: t for name, t in tensors.items() if not name.startswith(OPTIMIZER)}
    state = {n.removeprefix(OPTIMIZER): t for n, t in tensors.items() if n.startswith(OPTIMIZER)}
    return Start(weights, state, mask)


def take_up(optimizer: Optimizer, state: dict[str, Tensor], model: nn.Module, mask: Mask) -> None:
    """Let an optimizer go on with the state of a :class:`Start`, zero where the weights are."""
    load_optimizer(model, optimizer, state)
    zero_outside(
        [
            (tensor, keep)
            for p, keep in masked_weights(model, mask)
            for tensor in optimizer.state[p].values()
            if isinstance(tensor, torch.Tensor) and tensor.shape == p.shape
        ]
    )


def write_start(
    config: Config, start: StartConfig, tensors: dict[str, Tensor], mask: Mask, runs: Path
) -> Config:
    """The configuration of a run that begins with given weights under a mask, which it holds.

    Both are left in its run directory, where training finds them. Tensors whose names begin with
    ``optimizer/`` are state of the optimizer, as a checkpoint has it.
    """
    config = replace(config, start=replace(start, digest=_digest(tensors, mask)))
    run = RunDir.of(config, runs)
    if not (run.path / MASK).exists():
        mask.save(run.path / MASK)
    if not (run.path / START).exists():
        run.write_tensors(START, tensors)
    return config


def _digest(tensors: dict[str, Tensor], mask: Mask) -> str:
    found = hashlib.sha256()
    for part in (tensors, dict(mask.tensors)):
        for name in sorted(part):
            found.update(name.encode())
            found.update(part[name].flatten().view(torch.uint8).numpy().data)
    return found.hexdigest()[:16]

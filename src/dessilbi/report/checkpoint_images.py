"""Epochs whose weights a run kept: W and Gamma of every layer as pictures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from dessilbi.lab.run.directory import RunError
from dessilbi.lab.run.files import LAST, STATE, checkpoint_name, kept_epochs
from dessilbi.optim import Lasso
from dessilbi.optim.prox import along
from dessilbi.report.pictures import coloured, draw

if TYPE_CHECKING:
    from torch import Tensor

    from dessilbi.lab.run.directory import Checkpoint, RunDir
    from dessilbi.path import Layer, SolutionPath
    from dessilbi.report.pictures import Pixels

MOST_EPOCHS = 12
"""Kept epochs that are shown; of more every second, third, ... one."""
LARGEST = 4_000_000
"""Weights of all pictures, W and Gamma at those epochs, beyond which layers are left out."""


@dataclass(frozen=True)
class CheckpointImages:
    """One kept epoch."""

    epoch: int
    images: dict[str, dict[str, Pixels]]
    """Pictures of "W" and "Gamma" by layer; a layer that was left out for its size is missing."""


def read_checkpoint_images(
    run: RunDir, path: SolutionPath, notes: list[str]
) -> tuple[CheckpointImages, ...]:
    """Every kept epoch, as many pictures as the limits allow; the first layer is always there."""
    if path.ranking is None:
        return ()
    folders = _folders(run)
    every = max(1, -(-len(folders) // MOST_EPOCHS))
    epochs = sorted(folders)[::-every][::-1]  # the last one always
    shown = _layers_shown(path, len(epochs))
    hidden = [layer.name for layer in path.layers if layer.name not in shown]
    if hidden:
        notes.append(f"filters of {', '.join(hidden)} are not shown: too many for one file")
    found = []
    for epoch in epochs:
        try:
            checkpoint = run.load(folders[epoch])
            if checkpoint is not None:
                found.append(CheckpointImages(epoch, _images(epoch, checkpoint, path, shown)))
        except (RunError, ValueError, KeyError) as error:
            notes.append(f"the weights of epoch {epoch} are left out: {error}")
    return tuple(found)


def _folders(run: RunDir) -> dict[int, str]:
    """Kept epochs and the folders they are in; the last checkpoint counts if an epoch ended."""
    found = {epoch: checkpoint_name(epoch) for epoch in kept_epochs(run)}
    if (run.path / LAST / STATE).is_file():
        try:
            last = run.load(LAST)
        except RunError:
            return found  # the kept ones may be whole
        if last is not None and last.state.get("batch") == 0:
            found.setdefault(int(last.state["epoch"]), LAST)
    return found


def _layers_shown(path: SolutionPath, epochs: int) -> set[str]:
    """The first layer, then the smaller ones, until the limit is reached."""
    layers = [*path.layers[:1], *sorted(path.layers[1:], key=lambda layer: layer.numel)]
    used = np.cumsum([2 * epochs * layer.numel for layer in layers])
    return {layer.name for i, layer in enumerate(layers) if i == 0 or used[i] <= LARGEST}


def _images(
    epoch: int, checkpoint: Checkpoint, path: SolutionPath, shown: set[str]
) -> dict[str, dict[str, Pixels]]:
    model, twins = checkpoint.part("model"), twins_of(checkpoint, path)
    images = {}
    for layer in path.layers:
        if layer.name not in model:
            raise ValueError(f"the checkpoint has no weights {layer.name!r}")
        W, V = model[layer.name].float(), twins[layer.name]
        if tuple(W.shape) != layer.shape:
            raise ValueError(f"{layer.name} has shape {tuple(W.shape)}, the path {layer.shape}")
        if layer.name in shown:
            both = {"W": W, "Gamma": gamma_of(layer, V, path, epoch)}
            images[layer.name] = {k: coloured(draw(t.numpy(), layer)) for k, t in both.items()}
    return images


def twins_of(checkpoint: Checkpoint, path: SolutionPath) -> dict[str, Tensor]:
    """V of each layer; zero before the first step."""
    state = checkpoint.part("optimizer").items()
    V = {name.removesuffix("/v"): t.float() for name, t in state if name.endswith("/v")}
    if not V:
        return {layer.name: torch.zeros(layer.shape) for layer in path.layers}
    if {name: tuple(t.shape) for name, t in V.items()} != {x.name: x.shape for x in path.layers}:
        raise ValueError("its optimizer has other twins than the path")
    return V


def gamma_of(layer: Layer, V: Tensor, path: SolutionPath, epoch: int) -> Tensor:
    """Gamma of a recorded epoch, with the norms or the thresholds that the path recorded.

    ``Gamma_g`` is a multiple of ``V_g``, whatever other layers its group reaches into; for the
    Lasso ``Gamma = kappa * prox(V)``.
    """
    assert path.ranking is not None
    if layer.group_dim is not None:
        norms = path.norms(epoch, layer.name)
        share = torch.where(norms.V > 0, norms.Gamma / norms.V, 0)
        return along(share, V.ndim, layer.group_dim) * V
    lambd = torch.from_numpy(path.ranking.thresholds[layer.name].copy())
    if lambd.numel() > 1:
        lambd = lambd.reshape(V.shape)
    return path.ranking.kappa[layer.name] * Lasso(lambd).prox(V)

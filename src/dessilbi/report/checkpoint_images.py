"""Epochs whose weights a run kept: W and Gamma of every layer, as pictures and as histograms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from dessilbi.lab.run.directory import RunError
from dessilbi.lab.run.files import LAST, STATE, checkpoint_name, kept_epochs
from dessilbi.optim import Lasso
from dessilbi.optim.prox import along
from dessilbi.report.pixels import draw_sheet, sheet_of

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from dessilbi.lab.run.directory import Checkpoint, RunDir
    from dessilbi.path import Layer, SolutionPath

LARGEST = 4_000_000
"""Pixels of a run's pictures, W and Gamma at all kept epochs, beyond which some are left out."""
BINS = 48
HIGHEST = 1.5
"""Histograms of |V| / lambd go from 0 to here; the last bin takes what is above."""


@dataclass(frozen=True)
class Images:
    """The pictures of one layer at one epoch."""

    W: NDArray[np.float32]
    Gamma: NDArray[np.float32]


@dataclass(frozen=True)
class CheckpointImages:
    """One kept epoch."""

    epoch: int
    images: dict[str, Images]
    """By layer; a layer that was left out for its size is missing."""
    histograms: dict[str, NDArray[np.int64]]
    """Of |V| / lambd by element, for Lasso layers."""


def read_checkpoint_images(
    run: RunDir, path: SolutionPath, notes: list[str]
) -> tuple[CheckpointImages, ...]:
    """Every kept epoch, as many pictures as the limit allows; the first layer is always there."""
    if path.ranking is None:
        return ()
    folders = _folders(run)
    epochs, left_out = _within_limit(sorted(folders), path)
    if left_out:
        notes.append(
            "filters are not shown at the kept epochs "
            f"{', '.join(map(str, left_out))}: the file would become too large"
        )
    shown = _layers_shown(path, len(epochs))
    hidden = [layer.name for layer in path.layers if layer.name not in shown]
    if hidden:
        notes.append(f"filters of {', '.join(hidden)} are not shown: too many for one file")
    found = []
    for epoch in epochs:
        try:
            checkpoint = run.load(folders[epoch])
            if checkpoint is not None:
                found.append(_images(epoch, checkpoint, path, shown))
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


def _within_limit(epochs: list[int], path: SolutionPath) -> tuple[list[int], list[int]]:
    """The kept epochs to show, first and last always, and those left out."""
    smallest = 2 * sum(sheet_of(layer).size for layer in path.layers[:1])
    most = max(2, min(24, LARGEST // max(smallest, 1)))
    if len(epochs) <= most:
        return epochs, []
    indices = np.unique(np.linspace(0, len(epochs) - 1, most).round().astype(int))
    chosen = [epochs[i] for i in indices]
    return chosen, [epoch for epoch in epochs if epoch not in chosen]


def _layers_shown(path: SolutionPath, epochs: int) -> set[str]:
    """The first layer, then the smaller ones, until the limit is reached."""
    order = sorted(path.layers[1:], key=lambda layer: sheet_of(layer).size)
    shown: set[str] = set()
    used = 0
    for layer in [*path.layers[:1], *order]:
        used += 2 * epochs * sheet_of(layer).size
        if shown and used > LARGEST:
            break
        shown.add(layer.name)
    return shown


def _images(
    epoch: int, checkpoint: Checkpoint, path: SolutionPath, shown: set[str]
) -> CheckpointImages:
    model, twins = checkpoint.part("model"), twins_of(checkpoint, path)
    images, histograms = {}, {}
    for layer in path.layers:
        if layer.name not in model:
            raise ValueError(f"the checkpoint has no weights {layer.name!r}")
        W, V = model[layer.name].float(), twins[layer.name]
        if tuple(W.shape) != layer.shape:
            raise ValueError(f"{layer.name} has shape {tuple(W.shape)}, the path {layer.shape}")
        if layer.name in shown:
            Gamma = gamma_of(layer, V, path, epoch)
            images[layer.name] = Images(
                draw_sheet(W.numpy(), layer), draw_sheet(Gamma.numpy(), layer)
            )
        if not layer.exact:
            histograms[layer.name] = _histogram(layer, V, path)
    return CheckpointImages(epoch, images, histograms)


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
    """Gamma of a marked epoch, with the norms or the thresholds that the path recorded.

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


def _histogram(layer: Layer, V: Tensor, path: SolutionPath) -> NDArray[np.int64]:
    assert path.ranking is not None
    lambd = path.ranking.thresholds[layer.name]
    ratio = np.abs(V.flatten().numpy()) / np.where(lambd > 0, lambd, np.float32(1e-12))
    counts, _ = np.histogram(np.minimum(ratio, HIGHEST - 1e-6), bins=BINS, range=(0, HIGHEST))
    return counts.astype(np.int64)

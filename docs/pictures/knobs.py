"""Draw ``knobs.png``: what the coupling time and the relative threshold do.

    python docs/pictures/knobs.py [--runs DIR]

The digits recipe, seed 0, a run for each pair of tau and c (twenty runs of a few seconds; finished
ones are found again).
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
import numpy as np
import torch

from dessilbi.lab.run.files import PATH
from dessilbi.lab.run.options import RunOptions
from dessilbi.lab.run.recipes import digits
from dessilbi.lab.training.loop import train
from dessilbi.path import SolutionPath

if TYPE_CHECKING:
    from dessilbi.lab.run.config import Config

TAUS, CS = (2.5, 5.0, 10.0, 20.0, 40.0), (0.5, 1.0, 1.5, 2.0, 4.0)


def configured(tau: float, c: float) -> Config:
    """The digits recipe with these knobs."""
    recipe = digits()
    options = {"nu": None, "lambd": None, "tau": tau, "c": c}
    return replace(recipe, name="knobs", optimizer=replace(recipe.optimizer, **options))


def measured(tau: float, c: float, runs: Path) -> tuple[float, float]:
    """Groups in Gamma at the end, and accuracy on them, in percent."""
    run = train(configured(tau, c), RunOptions(runs=runs))
    path = SolutionPath.load(run.path / PATH)
    support = path.support(path.epochs[-1])
    inside = sum(int(layer.groups_in(support[layer.name]).sum()) for layer in path.layers)
    return 100 * inside / path.groups, run.records()[-1]["recalibrated_accuracy"]


def draw(values: np.ndarray, file: Path) -> None:
    """Two tables of colours, a cell for each pair."""
    titles = "filters and weights in Gamma, %", "test accuracy on the support, %"
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    for ax, title, grid, low, digits_after in zip(
        axes, titles, values, (0.0, 90.0), (0, 1), strict=True
    ):
        ax.imshow(grid, cmap="Blues", vmin=low, vmax=low + 1.5 * (100 - low), aspect="auto")
        for row, column in np.ndindex(*grid.shape):
            ax.text(column, row, f"{grid[row, column]:.{digits_after}f}", ha="center", va="center")
        ax.set_xticks(range(len(TAUS)), [f"{tau:g}" for tau in TAUS])
        ax.set_yticks(range(len(CS)), [f"{c:g}" for c in CS])
        ax.set_xlabel("coupling time tau")
        ax.set_ylabel("relative threshold c")
        ax.set_title(title, fontsize=10)
        ax.tick_params(length=0)
    figure.savefig(file, dpi=150)


def main() -> None:
    """Train what is missing, then draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    runs = parser.parse_args().runs
    torch.set_num_threads(1)
    values = np.array([[measured(tau, c, runs) for tau in TAUS] for c in CS])
    draw(values.transpose(2, 0, 1), Path(__file__).with_suffix(".png"))


if __name__ == "__main__":
    main()

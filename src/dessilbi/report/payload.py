"""What the page's script is given: plain values with references into one block of arrays."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from dessilbi.report.checkpoint_images import BINS, HIGHEST
from dessilbi.report.filters import best_layer, short, unit_word
from dessilbi.report.json_io import finite
from dessilbi.report.overlap import between_runs, settled
from dessilbi.report.pack import Packer
from dessilbi.report.pixels import sheet_of
from dessilbi.report.summary import story

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from dessilbi.path import Layer, SolutionPath
    from dessilbi.report.filters import Units
    from dessilbi.report.run_data import RunData

CURVES = (
    "train_loss", "loss", "train_accuracy", "accuracy", "sparse_accuracy",
    "recalibrated_accuracy", "density", "lr",
)  # fmt: skip


def make_payload(runs: Sequence[RunData]) -> tuple[dict[str, Any], str]:
    """Plain values, and the arrays as text."""
    packer = Packer()
    shown = [_run(run, packer) for run in runs]
    values = {
        "epochs": sorted({epoch for run in runs for epoch in run.epochs}),
        "runs": shown,
        "between": _between(runs, packer),
        "bins": {"count": BINS, "highest": HIGHEST},
    }
    return finite(values), packer.text()


def _run(run: RunData, packer: Packer) -> dict[str, Any]:
    config = run.config
    values: dict[str, Any] = {
        "name": run.name,
        "title": f"{config['model']['name']} on {config['data']['name']}",
        "optimizer": config["optimizer"]["name"],
        "judged_on": run.judged_on,
        "whole": run.whole,
        "mask_density": None if run.held is None else run.held.density,
        "story": story(run),
        "records": {"epoch": [r["epoch"] for r in run.records]}
        | {name: [_number(r.get(name)) for r in run.records] for name in CURVES},
        "budgets": {
            "judged_on": run.budgets.judged_on,
            "points": [asdict(p) for p in run.budgets.points],
        },
        "compacts": [asdict(c) for c in run.budgets.compacts],
        "lyapunov": None,
        "path": None,
    }
    if run.lyapunov is not None:
        values["lyapunov"] = {"step": run.lyapunov.step.tolist(), "F": run.lyapunov.F.tolist()}
    if run.path is not None and run.units is not None:
        values["path"] = _path(run, run.path, run.units, packer)
    else:
        values["densities"] = _recorded_densities(run)
    return values


def _number(value: Any) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _recorded_densities(run: RunData) -> dict[str, list[float | None]]:
    """By layer, of runs that hold or prune to a mask; empty for others."""
    found = [r["densities"] if isinstance(r.get("densities"), dict) else {} for r in run.records]
    names = dict.fromkeys(name for one in found for name in one)
    return {short(name): [_number(one.get(name)) for one in found] for name in names}


def _path(run: RunData, path: SolutionPath, units: Units, packer: Packer) -> dict[str, Any]:
    joint = None if not units.partners else packer.add_scaled(units.joint, units.starts)
    stored = np.repeat(
        [_gamma_stored(layer, units) for layer in path.layers],
        [layer.rows for layer in path.layers],
    )
    overlap = run.overlap
    assert overlap is not None
    densities = [[path.density(e, layer.name) for layer in path.layers] for e in path.epochs]
    return {
        "epochs": list(path.epochs),
        "steps": [mark.step for mark in path.marks],
        "layers": [_layer(layer, units, i, path) for i, layer in enumerate(path.layers)],
        "layer": path.layers.index(path.layer(best_layer(path))),
        "W": packer.add_scaled(units.W, units.starts),
        "V": packer.add_scaled(units.V, units.starts),
        "joint": joint,
        "Gamma": packer.add_scaled(np.where(stored, units.Gamma, np.float32(0)), units.starts),
        "inside": packer.add(units.inside, along=True),
        "entry": packer.add(units.entry),
        "leaves": packer.add(units.leaves),
        "threshold": packer.add(units.threshold),
        "density": [path.density(e) for e in path.epochs],
        "densities": densities,
        "gap": [path.gap(e) for e in path.epochs],
        "augmented": [path.augmented_loss(e) for e in path.epochs],
        "overlap": {
            "epochs": list(overlap.epochs),
            "matrix": packer.add(_sixteen_bits(overlap.shares)),
        },
        "settled": settled(path, run.config["stop"]),
        "kept": [
            {
                "epoch": kept.epoch,
                "images": {
                    str(i): {
                        "W": packer.add_image(kept.images[layer.name].W),
                        "Gamma": packer.add_image(kept.images[layer.name].Gamma),
                    }
                    for i, layer in enumerate(path.layers)
                    if layer.name in kept.images
                },
                "histograms": {
                    str(i): kept.histograms[layer.name].tolist()
                    for i, layer in enumerate(path.layers)
                    if layer.name in kept.histograms
                },
            }
            for kept in run.kept
        ],
    }


def _gamma_stored(layer: Layer, units: Units) -> bool:
    """Of a group ||Gamma_g|| follows from ||V_g||, unless the threshold is for a joint norm."""
    return not layer.exact or layer.name in units.partners


def _layer(layer: Layer, units: Units, at: int, path: SolutionPath) -> dict[str, Any]:
    sheet = sheet_of(layer)
    lambd = None
    kappa = 1.0
    if path.strengths is not None:
        lambd = float(np.mean(path.strengths.thresholds[layer.name]))
        kappa = path.strengths.kappa[layer.name]
    return {
        "name": layer.name,
        "short": short(layer.name),
        "word": unit_word(layer),
        "shape": list(layer.shape),
        "rows": layer.rows,
        "start": units.starts[at],
        "exact": layer.exact,
        "gamma_stored": _gamma_stored(layer, units),
        "partners": [short(name) for name in units.partners.get(layer.name, ())],
        "groups": layer.groups,
        "numel": layer.numel,
        "lambd": lambd,
        "kappa": kappa,
        "sheet": {
            "height": sheet.height,
            "width": sheet.width,
            "mode": sheet.mode,
            "channels": sheet.channels,
            "words": sheet.words,
        },
    }


def _sixteen_bits(shares: NDArray[np.float32]) -> NDArray[np.uint16]:
    return np.rint(np.nan_to_num(shares) * 65535).astype(np.uint16)


def _between(runs: Sequence[RunData], packer: Packer) -> dict[str, Any] | None:
    """Overlap of supports between runs, at the epochs that at least two of them marked."""
    paths = [run.path for run in runs]
    counted: dict[int, int] = {}
    for path in paths:
        for epoch in path.epochs if path is not None else ():
            counted[epoch] = counted.get(epoch, 0) + 1
    epochs = sorted(epoch for epoch, n in counted.items() if n > 1)
    if not epochs:
        return None
    # Large nets of many epochs are compared at some of them.
    largest = max(path.groups for path in paths if path is not None)
    most = max(8, 20_000_000 // max(largest, 1))
    if len(epochs) > most:
        step = math.ceil(len(epochs) / most)
        epochs = sorted({*epochs[::step], epochs[-1]})
    matrix = between_runs(paths, epochs)
    known = ~np.isnan(matrix)
    comparable = [[bool(known[:, i, j].any()) for j in range(len(runs))] for i in range(len(runs))]
    return {
        "epochs": epochs,
        "comparable": comparable,
        "matrix": packer.add(matrix),
    }

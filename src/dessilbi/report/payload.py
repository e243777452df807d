"""What the page's script is given: plain values with references into one block of arrays."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from dessilbi.report.charts import charts_of
from dessilbi.report.checkpoint_images import BINS, HIGHEST
from dessilbi.report.filters import best_layer, short, unit_word
from dessilbi.report.pack import Packer
from dessilbi.report.pixels import sheet_of
from dessilbi.report.run_data import finite
from dessilbi.report.summary import summary

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dessilbi.path import Layer, SolutionPath
    from dessilbi.report.filters import Filters
    from dessilbi.report.run_data import RunData

RECORDED = ("train_loss", "accuracy", "sparse_accuracy", "recalibrated_accuracy", "density")
"""What the page shows in large."""


def make_payload(runs: Sequence[RunData]) -> tuple[dict[str, Any], str]:
    """Plain values, and the arrays as text."""
    packer = Packer()
    values = {
        "epochs": sorted({epoch for run in runs for epoch in run.epochs}),
        "runs": [_run(run, packer) for run in runs],
        "charts": {key: asdict(charts) for key, charts in charts_of(runs).items()},
        "bins": {"count": BINS, "highest": HIGHEST},
    }
    return finite(values), packer.text()


def _run(run: RunData, packer: Packer) -> dict[str, Any]:
    config = run.config
    values: dict[str, Any] = {
        "name": run.name,
        "title": f"{config['model']['name']} on {config['data']['name']}",
        "whole": run.whole,
        "mask_density": None if run.fixed_mask is None else run.fixed_mask.density,
        "summary": summary(run),
        "records": {"epoch": [r["epoch"] for r in run.records]}
        | {name: [_number(r.get(name)) for r in run.records] for name in RECORDED},
        "path": None,
    }
    if run.path is not None and run.filters is not None:
        values["path"] = _path(run, run.path, run.filters, packer)
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


def _path(run: RunData, path: SolutionPath, filters: Filters, packer: Packer) -> dict[str, Any]:
    joint = None if not filters.partners else packer.add_scaled(filters.joint, filters.starts)
    overlap = run.overlap
    rule = {name: run.config["stop"][name] for name in ("window", "tolerance", "distance")}
    assert overlap is not None
    densities = [[path.density(e, layer.name) for layer in path.layers] for e in path.epochs]
    return {
        "epochs": list(path.epochs),
        "steps": [s.step for s in path.snapshots],
        "layers": [_layer(layer, filters, i) for i, layer in enumerate(path.layers)],
        "layer": path.layers.index(path.layer(best_layer(path))),
        "W": packer.add_scaled(filters.W, filters.starts),
        "V": packer.add_scaled(filters.V, filters.starts),
        "joint": joint,
        "Gamma": packer.add_scaled(filters.Gamma, filters.starts),
        "inside": packer.add(filters.inside, along=True),
        "entry": packer.add(filters.entry),
        "leaves": packer.add(filters.leaves),
        "threshold": packer.add(filters.threshold),
        "density": [path.density(e) for e in path.epochs],
        "densities": densities,
        "gap": [path.gap(e) for e in path.epochs],
        "overlap": {
            "epochs": list(overlap.epochs),
            "matrix": packer.add(np.rint(overlap.shares * 65535).astype(np.uint16)),
        },
        "settled": path.stable_epoch(**rule),
        "checkpoints": [
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
            for kept in run.checkpoints
        ],
    }


def _layer(layer: Layer, filters: Filters, at: int) -> dict[str, Any]:
    return {
        "name": layer.name,
        "short": short(layer.name),
        "word": unit_word(layer),
        "rows": layer.rows,
        "start": filters.starts[at],
        "exact": layer.exact,
        "partners": [short(name) for name in filters.partners.get(layer.name, ())],
        "numel": layer.numel,
        "sheet": asdict(sheet_of(layer)),
    }

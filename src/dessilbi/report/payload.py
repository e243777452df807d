"""What the page's script is given: plain values, and references into one block of arrays."""

from __future__ import annotations

import base64
import zlib
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from dessilbi.report.charts import charts_of
from dessilbi.report.filters import best_layer, short, unit_word
from dessilbi.report.pictures import across, entry_picture, mosaic, png, words_of
from dessilbi.report.run_data import finite
from dessilbi.report.summary import summary

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from dessilbi.path import Layer, SolutionPath
    from dessilbi.report.filters import Filters
    from dessilbi.report.pictures import Pixels
    from dessilbi.report.run_data import RunData

RECORDED = ("train_loss", "accuracy", "sparse_accuracy", "recalibrated_accuracy", "density")
"""What the page shows in large."""


class Block:
    """Arrays one after another; the page finds each by kind, place and size."""

    def __init__(self) -> None:
        self._content = bytearray()

    def add(self, array: NDArray[Any]) -> dict[str, Any]:
        """Add an array: of bytes, 32-bit numbers, or 16-bit ones for drawing."""
        kind = f"{array.dtype.name.capitalize()}Array"  # as JavaScript calls it
        entry = {"kind": kind, "at": len(self._content), "size": array.size}
        self._content += array.tobytes()
        self._content += bytes(-len(self._content) % 4)  # where a typed array may begin
        return entry

    def add_rounded(self, array: NDArray[np.float32]) -> dict[str, Any]:
        """Add numbers from 0 on, to the three digits that a drawing can show."""
        largest = float(np.finfo(np.float16).max)
        clean = np.nan_to_num(array, nan=0.0, posinf=largest).clip(0, largest)
        return self.add(clean.astype(np.float16))

    def text(self) -> str:
        """Everything, deflated and in base64."""
        return base64.b64encode(zlib.compress(self._content, 6)).decode()


def make_payload(runs: Sequence[RunData]) -> tuple[dict[str, Any], str]:
    """Plain values, and the arrays as text."""
    block = Block()
    values = {
        "epochs": sorted({epoch for run in runs for epoch in run.epochs}),
        "runs": [_run(run, block) for run in runs],
        "charts": {key: list(map(asdict, charts)) for key, charts in charts_of(runs).items()},
    }
    return finite(values), block.text()


def _run(run: RunData, block: Block) -> dict[str, Any]:
    values: dict[str, Any] = {
        "name": run.name,
        "whole": run.whole,
        "mask_density": (run.fixed_mask or {}).get("density"),
        "summary": summary(run),
        "records": {"epoch": [r["epoch"] for r in run.records]}
        | {name: [_number(r.get(name)) for r in run.records] for name in RECORDED},
        "path": None,
    }
    if run.path is not None and run.filters is not None:
        values["path"] = _path(run, run.path, run.filters, block)
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


def _path(run: RunData, path: SolutionPath, filters: Filters, block: Block) -> dict[str, Any]:
    norms = {name: getattr(filters, name) for name in ("W", "Gamma", "V")}
    if filters.partners:
        norms["joint"] = filters.joint
    exact = ("inside", "entry", "entered", "threshold")
    arrays = {name: block.add_rounded(array) for name, array in norms.items()}
    arrays |= {name: block.add(getattr(filters, name)) for name in exact}
    return {
        "arrays": arrays,
        "epochs": list(path.epochs),
        "steps": [s.step for s in path.snapshots],
        "layers": [_layer(layer, filters, path.epochs[-1]) for layer in path.layers],
        "layer": path.layers.index(path.layer(best_layer(path))),
        "density": [path.density(e) for e in path.epochs],
        "densities": [[path.density(e, one.name) for one in path.layers] for e in path.epochs],
        "gap": [path.gap(e) for e in path.epochs],
        "checkpoints": [
            {
                "epoch": kept.epoch,
                "sheets": {
                    str(i): {what: _sheet(one) for what, one in kept.images[layer.name].items()}
                    for i, layer in enumerate(path.layers)
                    if layer.name in kept.images
                },
            }
            for kept in run.checkpoints
        ],
    }


def _sheet(pictures: Pixels) -> dict[str, Any]:
    """The pictures of a layer as one, by the number of the filter."""
    count = across(pictures)
    height, width = pictures.shape[1:3]
    sheet = png(mosaic(pictures, count))
    return {"png": sheet, "across": count, "height": height, "width": width}


def _layer(layer: Layer, filters: Filters, last: int) -> dict[str, Any]:
    return {
        "name": layer.name,
        "short": short(layer.name),
        "word": unit_word(layer),
        "rows": layer.rows,
        "start": filters.rows(layer.name).start,
        "exact": layer.exact,
        "partners": [short(name) for name in filters.partners.get(layer.name, ())],
        "numel": layer.numel,
        "pixel": words_of(layer),
        "entries": png(entry_picture(filters, layer.name, last)),
    }

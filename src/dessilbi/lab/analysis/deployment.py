"""A point of a run as a compact network in a folder, and as one ONNX file."""

from __future__ import annotations

import json
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dessilbi._disk import write_whole
from dessilbi.compaction import (
    Compact,
    compact,
    difference,
    export_onnx,
    run_onnx,
    side_by_side,
)
from dessilbi.lab.analysis.networks import network_at, trained_network
from dessilbi.lab.analysis.subnetworks import open_path
from dessilbi.lab.data import batches
from dessilbi.lab.run.config import ConfigError
from dessilbi.lab.run.directory import RunDir, clear_errors
from dessilbi.lab.run.files import (
    COMPACT_EXPORT,
    COMPACT_ONNX,
    COMPACT_REPORT,
    MASK,
    compact_folder,
)
from dessilbi.lab.training.build import evaluated_split, load_data, task_of
from dessilbi.lab.training.evaluate import evaluate
from dessilbi.path import Mask
from dessilbi.subnet.batchnorm import has_batchnorm

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Literal

    from torch import Tensor, nn

    from dessilbi.lab.analysis.choice import Choice
    from dessilbi.lab.training.evaluate import Score

REAL_IMAGES = 256
"""Images of the data set that equality is checked on."""


class Deployed(NamedTuple):
    """A compact network, and what it is compared with."""

    small: Compact
    dense: nn.Module
    masked: nn.Module
    chosen: str
    """How, in words."""
    folder: Path
    images: Tensor
    scores: dict[str, Score]
    """Of the masked and of the compact network."""
    judged_on: str


def deploy(
    run: RunDir,
    choice: Choice,
    *,
    folder: Path | None = None,
    recalibrate: bool = True,
    streams: Literal["keep", "scatter", "auto"] = "keep",
    data_dir: Path | None = None,
    download: bool = False,
) -> Deployed:
    """Make a point of a run compact, and leave it in a folder with a report.

    The options are those of ``dessilbi compact``. If nothing is chosen it is the run's own mask, or
    its weights as they are; by default the folder is ``compact-...`` in the run directory.
    """
    data = load_data(run.config(), data_dir, download)
    dense = trained_network(run, data).eval()
    mask, chosen, name = _mask(run, choice, dense)
    split, judged_on = evaluated_split(data)
    images = next(iter(batches(split, REAL_IMAGES, seed=0, epoch=0, shuffle=False)))[0]
    masked = network_at(run, mask, data, recalibrate=recalibrate)
    if recalibrate and has_batchnorm(masked):
        chosen += ", BatchNorm recalibrated"
    small = compact(masked, mask, images[:1], inputs=[images], streams=streams)
    networks = {"masked": masked, "compact": small.model}
    scores = {name: evaluate(net, split) for name, net in networks.items()}
    folder = folder or run.path / compact_folder(name)
    constructor = {
        "name": run.config().model.name,
        **task_of(data.shape, data.num_classes),
    }
    with clear_errors(folder, "--output"):
        small.save(folder, "dessilbi.lab.models:make_model", constructor)
    report = {
        "chosen": chosen,
        "density": mask.density if mask.names else None,
        "accuracy": scores["compact"].accuracy,
        "judged_on": judged_on,
        "recalibrated": recalibrate,
        **small.report.to_json(),
    }
    _write_json(folder / COMPACT_REPORT, report)
    return Deployed(small, dense, masked, chosen, folder, images, scores, judged_on)


def _mask(run: RunDir, choice: Choice, model: nn.Module) -> tuple[Mask, str, str]:
    """The mask, how it was chosen in words, and a name for the folder."""
    if choice.name:
        mask, words = choice.mask(open_path(run), run.config().stop)
        return mask, f"{words}, {mask.density:.2%} of the weights", choice.name
    if (run.path / MASK).is_file():
        mask = Mask.load(run.path / MASK)
        return mask, f"its own mask, {mask.density:.2%} of the weights", "own"
    if not any(bool((p == 0).any()) for p in model.parameters() if p.ndim > 1):
        raise ConfigError(
            "no weight of this run is zero: choose one of --density, --parameters, --epoch and "
            "--stable"
        )
    return Mask({}), "its weights as they are", "own"


def export(made: Deployed) -> tuple[Path, list[dict[str, Any]]]:
    """Write the compact network as an ONNX file, and compare it with the others.

    Returns:
        The file, and a row a network: bytes, latencies and differences to the masked model.
    """
    file, example = made.folder / COMPACT_ONNX, made.images[:2]
    with clear_errors(file, "--output"):
        size = export_onnx(made.small.model, file, example)
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder) / COMPACT_ONNX
        dense_size = export_onnx(made.dense, whole, example)
        rows = _compared(made, file, size, whole, dense_size)
    _write_json(made.folder / COMPACT_EXPORT, rows)
    return file, rows


def _compared(
    made: Deployed, file: Path, size: int, dense_file: Path, dense_size: int
) -> list[dict[str, Any]]:
    """Sizes, latencies and differences to the masked model, one row a network."""
    ours, theirs = run_onnx(file), run_onnx(dense_file)
    report = made.small.report
    calls: dict[str, tuple[int, Callable[..., Any]]] = {
        "dense, torch": (report.dense.bytes, made.dense),
        "compact, torch": (report.compact.bytes, made.small.model),
        "dense, onnxruntime": (dense_size, theirs),
        "compact, onnxruntime": (size, ours),
    }
    rows: list[dict[str, Any]] = [{"network": name, "bytes": n} for name, (n, _) in calls.items()]
    for batch in (1, 128):
        x = made.images[:1].expand(batch, *made.images.shape[1:]).contiguous()
        timings = side_by_side([partial(call, x) for _, call in calls.values()])
        for row, timing in zip(rows, timings, strict=True):
            row[f"milliseconds, batch {batch}"] = timing.median
            row[f"ratio, batch {batch}"] = timings[0].median / timing.median
    inputs = [(made.images,)]
    for row, (_, call) in zip(rows[1::2], list(calls.values())[1::2], strict=True):
        row["difference to masked"] = difference(call, made.masked, inputs, "given").relative
    rows[3]["difference to compact"] = difference(ours, made.small.model, inputs, "given").relative
    return rows


def _write_json(file: Path, values: Any) -> None:
    with clear_errors(file.parent, "--output"):
        write_whole(file, (json.dumps(values, indent=1) + "\n").encode())

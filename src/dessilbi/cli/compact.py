"""``dessilbi compact`` and ``dessilbi export``: a point of a run as a network to deploy."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import torch
import tyro

from dessilbi._disk import write_whole
from dessilbi._text import table
from dessilbi.compaction import (
    Compact,
    compact,
    difference,
    export_onnx,
    run_onnx,
    side_by_side,
    sparsify,
)
from dessilbi.lab.analysis.networks import network_at, trained_network
from dessilbi.lab.analysis.subnetworks import Choice, open_path
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
from dessilbi.lab.training.build import evaluated_split, load_data
from dessilbi.lab.training.evaluate import evaluate
from dessilbi.lab.training.terminal import plain_console
from dessilbi.path import Mask
from dessilbi.subnet.batchnorm import has_batchnorm

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from dessilbi.lab.data import Split

REAL_IMAGES = 256
"""Images of the data set that equality is checked on."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """Which network of which run."""

    run: tyro.conf.Positional[Path]
    """A run directory."""
    choice: Annotated[Choice, tyro.conf.arg(name="")] = field(default_factory=Choice)
    recalibrate: bool = True
    """Measure the BatchNorm statistics of the subnetwork on training images first."""
    streams: Literal["keep", "scatter", "auto"] = "keep"
    """Filters that are off where a residual stream is not: computed, left out, or what is faster
    here. Only keep has the size that `dessilbi frontier` says."""
    output: Annotated[Path | None, tyro.conf.arg(aliases=["-o"])] = None
    """Folder for the files; by default compact-... in the run directory."""
    data_dir: Path | None = None
    """Where the data lies; also $DESSILBI_DATA and the user cache are searched."""
    download: bool = False
    """Fetch the data if it is not found."""
    threads: int | None = None
    """Threads of torch on the CPU; by default all cores."""


@dataclass(frozen=True, kw_only=True)
class CompactCommand:
    """A physically smaller network that is the same function as a run's subnetwork.

    Without a choice the weights of the run are taken as they are: of a subnetwork's run (`dessilbi
    subnet`) under its own mask, of a pruned one without its zeros.
    """

    source: Annotated[Source, tyro.conf.arg(name="")]
    sparse: bool = False
    """Also time what single zero weights of linear layers gain as sparse matrices."""


@dataclass(frozen=True, kw_only=True)
class ExportCommand:
    """The compact network of a run as one file for another runtime."""

    source: Annotated[Source, tyro.conf.arg(name="")]
    onnx: bool = False
    """Write model.onnx, and compare it in onnxruntime with the compact and the masked model."""


@dataclass(frozen=True)
class Made:
    """A compact network, and everything that it is compared with."""

    small: Compact
    dense: nn.Module
    masked: nn.Module
    words: str
    folder: Path
    images: torch.Tensor
    split: Split
    judged_on: str
    accuracy: float
    """Of the compact network, in percent."""


def compact_command(arguments: list[str]) -> None:
    """``dessilbi compact RUN --density 0.2``."""
    command = tyro.cli(CompactCommand, prog="dessilbi compact", args=arguments)
    made = _make(command.source)
    console = plain_console()
    console.print(f"{command.source.run}: {made.words}\n", soft_wrap=True)
    console.print(str(made.small.report), soft_wrap=True)
    masked = evaluate(made.masked, made.split).accuracy
    for name, accuracy in (("masked", masked), ("compact", made.accuracy)):
        console.print(f"{name}: {accuracy:.2f} % on the {made.judged_on} set")
    if command.sparse:
        console.print(f"\n{sparsify(made.small.model)[1]}", soft_wrap=True)
    console.print(f"\nfiles: {made.folder}", soft_wrap=True)


def export_command(arguments: list[str]) -> None:
    """``dessilbi export RUN --onnx``."""
    command = tyro.cli(ExportCommand, prog="dessilbi export", args=arguments)
    if not command.onnx:
        raise ConfigError("say which format: --onnx")
    import onnx  # noqa: F401 - before anything is computed
    import onnxruntime  # noqa: F401

    made = _make(command.source)
    console = plain_console()
    console.print(f"{command.source.run}: {made.words}\n", soft_wrap=True)
    file = made.folder / COMPACT_ONNX
    example = made.images[:2]
    with clear_errors(file, "--output"):
        size = export_onnx(made.small.model, file, example)
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder) / COMPACT_ONNX
        dense_size = export_onnx(made.dense, whole, example)
        rows = _compared(made, file, size, whole, dense_size)
    console.print(_table(rows))
    with clear_errors(made.folder, "--output"):
        write_whole(made.folder / COMPACT_EXPORT, (json.dumps(rows, indent=1) + "\n").encode())
    console.print(f"\nfile: {file}", soft_wrap=True)


# ---------------------------------------------------------------------- making


def _make(source: Source) -> Made:
    if source.threads is not None:
        if source.threads < 1:
            raise ConfigError(f"threads must be >= 1, got {source.threads}")
        torch.set_num_threads(source.threads)
    run = RunDir.open(source.run)
    data = load_data(run.config(), source.data_dir, source.download)
    model = trained_network(run, data)
    mask, words, name = _mask(run, source.choice, model)
    split, judged_on = evaluated_split(data)
    images = next(iter(batches(split, REAL_IMAGES, seed=0, epoch=0, shuffle=False)))[0]
    masked = network_at(run, mask, data, recalibrate=source.recalibrate)
    if source.recalibrate and has_batchnorm(masked):
        words += ", BatchNorm recalibrated"
    small = compact(masked, mask, images[:1], inputs=[images], streams=source.streams)
    accuracy = evaluate(small.model, split).accuracy
    folder = source.output or run.path / compact_folder(name)
    channels, side, _ = data.shape
    constructor = {
        "name": run.config().model.name,
        "num_classes": data.num_classes,
        "in_channels": channels,
        "input_size": side,
    }
    with clear_errors(folder, "--output"):
        small.save(folder, "dessilbi.lab.models:make_model", constructor)
        report = {
            "chosen": words,
            "density": mask.density if mask.names else None,
            "accuracy": accuracy,
            "judged_on": judged_on,
            "recalibrated": source.recalibrate,
            **small.report.to_json(),
        }
        write_whole(folder / COMPACT_REPORT, (json.dumps(report, indent=1) + "\n").encode())
    return Made(small, model.eval(), masked, words, folder, images, split, judged_on, accuracy)


def _mask(run: RunDir, choice: Choice, model: nn.Module) -> tuple[Mask, str, str]:
    """The mask, how it was chosen in words, and a name for the folder."""
    if choice != Choice(order=choice.order):
        mask, words = choice.mask(open_path(run), run.config().stop)
        chosen: list[tuple[str, Any]] = [
            ("", choice.density),
            ("weights-", choice.parameters),
            ("epoch-", choice.epoch),
            ("stable", "" if choice.stable else None),
        ]
        name = next(f"{kind}{value}" for kind, value in chosen if value is not None)
        if choice.order is not None:
            name += f"-{choice.order}"
        return mask, f"{words}, {mask.density:.2%} of the weights", name
    if (run.path / MASK).is_file():
        mask = Mask.load(run.path / MASK)
        return mask, f"its own mask, {mask.density:.2%} of the weights", "own"
    if not any(bool((p == 0).any()) for p in model.parameters() if p.ndim > 1):
        raise ConfigError(
            "no weight of this run is zero: choose one of --density, --parameters, --epoch and "
            "--stable"
        )
    return Mask({}), "its weights as they are", "own"


# ---------------------------------------------------------------------- comparing


def _compared(
    made: Made, file: Path, size: int, dense_file: Path, dense_size: int
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


def _table(rows: list[dict[str, Any]]) -> str:
    cells = [("", "bytes", "batch 1", "", "batch 128", "", "to masked")]
    for row in rows:
        one, many = ((row[f"milliseconds, batch {n}"], row[f"ratio, batch {n}"]) for n in (1, 128))
        gap = row.get("difference to masked")
        cells.append(
            (
                row["network"],
                f"{row['bytes']:,}",
                *(f"{one[0]:.3g} ms", f"{one[1]:.2f}x", f"{many[0]:.3g} ms", f"{many[1]:.2f}x"),
                "" if gap is None else f"{gap:.1e}",
            )
        )
    gap = rows[-1]["difference to compact"]
    return f"{table(cells)}\nonnxruntime to the compact model in torch: {gap:.1e} relative"

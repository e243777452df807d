"""``dessilbi compact`` and ``dessilbi export``: a point of a run as a network to deploy."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro

from dessilbi._text import table
from dessilbi.cli.options import DataOptions, Flat, Output, set_threads
from dessilbi.lab.analysis.choice import Choice
from dessilbi.lab.run.config import ConfigError

if TYPE_CHECKING:
    from dessilbi.lab.analysis.deployment import Deployed


@dataclass(frozen=True, kw_only=True)
class Source:
    """Which network of which run."""

    run: tyro.conf.Positional[Path]
    """A run directory."""
    choice: Flat[Choice]
    recalibrate: bool = True
    """Measure the BatchNorm statistics of the subnetwork on training images first."""
    streams: Literal["keep", "scatter", "auto"] = "keep"
    """Filters that are off where a residual stream is not: computed, left out, or what is faster
    here. Only keep has the size that `dessilbi frontier` says."""
    output: Output = None
    """Folder for the files; by default compact-... in the run directory."""
    data: Flat[DataOptions]


def compact(source: Flat[Source], sparse: bool = False) -> None:
    """A physically smaller network that is the same function as a run's subnetwork.

    Without a choice the weights of the run are taken as they are: of a subnetwork's run (`dessilbi
    subnet`) under its own mask, of a pruned one without its zeros.

    Args:
        source: which network of which run.
        sparse: also time what single zero weights of linear layers gain as sparse matrices.
    """
    made = _deploy(source)
    print(made.small.report)
    for name, score in made.scores.items():
        found = f"{score.accuracy:.2f} % on the {made.judged_on} set, loss {score.mean_loss:.4f}"
        print(f"{name}: {found}")
    if sparse:
        from dessilbi.compaction import sparsify

        print(f"\n{sparsify(made.small.model)[1]}")
    print(f"\nfiles: {made.folder}")


def export(source: Flat[Source], onnx: bool = False) -> None:
    """The compact network of a run as one file for another runtime.

    Args:
        source: which network of which run.
        onnx: write model.onnx, and compare it in onnxruntime with the compact and the masked model.
    """
    if not onnx:
        raise ConfigError("say which format: --onnx")
    for package in ("onnx", "onnxruntime"):  # before anything is computed
        import_module(package)
    from dessilbi.lab.analysis import deployment

    made = _deploy(source)
    file, rows = deployment.export(made)
    print(f"{_table(rows)}\n\nfile: {file}")


def _deploy(source: Source) -> Deployed:
    from dessilbi.lab.analysis.deployment import deploy
    from dessilbi.lab.run.directory import RunDir

    set_threads(source.data.threads)
    made = deploy(
        RunDir.open(source.run),
        source.choice,
        folder=source.output,
        recalibrate=source.recalibrate,
        streams=source.streams,
        data_dir=source.data.data_dir,
        download=source.data.download,
    )
    print(f"{source.run}: {made.chosen}\n")
    return made


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

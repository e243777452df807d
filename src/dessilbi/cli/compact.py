"""``dessilbi compact`` and ``dessilbi export``: a point of a run as a network to deploy."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path  # noqa: TC003 - tyro reads the annotations
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from dessilbi._text import table
from dessilbi.cli.options import DataOptions, set_threads
from dessilbi.lab.analysis.choice import Choice
from dessilbi.lab.run.config import ConfigError

if TYPE_CHECKING:
    from dessilbi.lab.analysis.deployment import Deployed


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
    data: Annotated[DataOptions, tyro.conf.arg(name="")] = field(default_factory=DataOptions)


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


def compact_command(arguments: list[str]) -> None:
    """``dessilbi compact RUN --density 0.2``."""
    command = tyro.cli(CompactCommand, prog="dessilbi compact", args=arguments)
    made = _deploy(command.source)
    print(made.small.report)
    for name, score in made.scores.items():
        found = f"{score.accuracy:.2f} % on the {made.judged_on} set, loss {score.mean_loss:.4f}"
        print(f"{name}: {found}")
    if command.sparse:
        from dessilbi.compaction import sparsify

        print(f"\n{sparsify(made.small.model)[1]}")
    print(f"\nfiles: {made.folder}")


def export_command(arguments: list[str]) -> None:
    """``dessilbi export RUN --onnx``."""
    command = tyro.cli(ExportCommand, prog="dessilbi export", args=arguments)
    if not command.onnx:
        raise ConfigError("say which format: --onnx")
    import onnx  # noqa: F401 - before anything is computed
    import onnxruntime  # noqa: F401

    from dessilbi.lab.analysis.deployment import export

    made = _deploy(command.source)
    file, rows = export(made)
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

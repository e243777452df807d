"""``dessilbi frontier``: what accuracy a run can offer for every budget."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path  # noqa: TC003 - tyro reads the annotations
from statistics import mean
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from dessilbi._text import table
from dessilbi.cli.options import DataOptions, set_threads
from dessilbi.lab.analysis.choice import DENSITIES
from dessilbi.lab.run.config import ConfigError
from dessilbi.lab.run.directory import RunDir, clear_errors
from dessilbi.lab.run.files import FRONTIER, FRONTIER_PICTURE
from dessilbi.lab.run.options import RunOptions
from dessilbi.lab.training.terminal import plain_console

if TYPE_CHECKING:
    from rich.console import Console

    from dessilbi.lab.analysis.frontier import Curve


@dataclass(frozen=True, kw_only=True)
class FrontierCommand:
    """Accuracy against density, parameters and multiply-adds, for every budget of a run.

    Parameters and multiply-adds are those of the network that `dessilbi compact` makes of a budget,
    and so is the accuracy; BatchNorm statistics are measured anew for each.

    Other runs are shown beside it. Runs that differ in nothing else become one curve: those of
    several seeds are averaged, those that were pruned to different densities are its points.
    """

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Run directories; the first is the one looked at."""
    densities: tuple[float, ...] = DENSITIES
    """Budgets, as fractions of the weights."""
    judge_on: Literal["test", "validation"] | None = None
    """Which images; by default those that the run was judged on."""
    picture: Path | None = None
    """Where to draw (.png, .svg or .pdf); by default frontier.png in the first run directory."""
    data: Annotated[DataOptions, tyro.conf.arg(name="")] = field(default_factory=DataOptions)


def frontier_command(arguments: list[str]) -> None:
    """``dessilbi frontier RUN [RUN ...]``."""
    command = tyro.cli(FrontierCommand, prog="dessilbi frontier", args=arguments)
    if not command.runs:
        raise ConfigError("name at least one run directory")
    if not command.densities:
        raise ConfigError("name at least one density, or leave --densities out")
    for density in command.densities:
        if not 0 < density <= 1:
            raise ConfigError(f"densities must lie in (0, 1], got {density}")
    set_threads(command.data.threads)
    from dessilbi.lab.analysis.frontier import curves, frontier

    console = plain_console()
    place = RunOptions(data_dir=command.data.data_dir, download=command.data.download)
    found = []
    for folder in command.runs:
        run = RunDir.open(folder)
        with console.status(f"{run.path.name}: evaluating") as status:
            points, judged_on = frontier(
                run, place, command.densities, command.judge_on, told=status.update
            )
        found.append((run, points, judged_on))
    drawn = curves(found)
    for curve in drawn:
        _print(curve, console)
    _draw(drawn, command.picture or command.runs[0] / FRONTIER_PICTURE, found[0][0], console)
    console.print(f"figures: {FRONTIER} in each run directory", soft_wrap=True)


def _print(curve: Curve, console: Console) -> None:
    many = len(curve.seeds) > 1
    console.print(
        f"\n{curve.name}: {curve.runs} run(s), {curve.epochs} epochs in all, seeds "
        f"{', '.join(map(str, curve.seeds))}; accuracy in % on the {curve.judged_on} set",
        soft_wrap=True,
    )
    ends = ("lowest", "highest") if many else ()
    rows = [("density", "parameters", "MACs", "nonzeros", "accuracy", *ends, "loss")]
    for k, at in enumerate(curve.points):
        sizes = [
            f"{round(mean(getattr(p, name) for p in at)):,}"
            for name in ("parameters", "macs", "nonzeros")
        ]
        accuracies = [f"{value:.2f}" for value in curve.spread(k)[: 3 if many else 1]]
        losses = [p.loss for p in at if p.loss is not None]
        loss = f"{mean(losses):.4f}" if len(losses) == len(at) else "-"
        rows.append((f"{mean(p.density for p in at):.2%}", *sizes, *accuracies, loss))
    console.print(table(rows), soft_wrap=True)
    for reason in {p.refused for at in curve.points for p in at if p.refused}:
        console.print(f"not compacted, sizes are the whole network's: {reason}", soft_wrap=True)


def _draw(drawn: list[Curve], file: Path, first: RunDir, console: Console) -> None:
    try:
        import matplotlib  # noqa: F401 - is it there?
    except ModuleNotFoundError:
        console.print("no picture: it needs matplotlib (pip install 'dessilbi[report]')")
        return
    from dessilbi.lab.analysis.frontier_picture import draw

    if file.suffix not in (".png", ".svg", ".pdf"):
        raise ConfigError(f"picture must end in .png, .svg or .pdf, got {file}")
    config = first.config()
    with clear_errors(file, "--picture"):
        draw(drawn, file, f"{config.model.name} on {config.data.name}: one curve a method")
    console.print(f"\npicture: {file}", soft_wrap=True)

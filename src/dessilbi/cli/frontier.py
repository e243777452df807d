"""``dessilbi frontier``: what accuracy a run can offer for every budget."""

from __future__ import annotations

from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Literal

import tyro

from dessilbi._text import table
from dessilbi.cli.options import DataOptions, Flat, set_threads
from dessilbi.lab.analysis.choice import DENSITIES
from dessilbi.lab.run.config import ConfigError
from dessilbi.lab.run.directory import RunDir, clear_errors
from dessilbi.lab.run.files import FRONTIER, FRONTIER_PICTURE
from dessilbi.lab.run.options import RunOptions
from dessilbi.lab.training.terminal import plain_console

if TYPE_CHECKING:
    from dessilbi.lab.analysis.frontier import Curve


def frontier(
    runs: tyro.conf.Positional[tuple[Path, ...]],
    data: Flat[DataOptions],
    densities: tuple[float, ...] = DENSITIES,
    judge_on: Literal["test", "validation"] | None = None,
    picture: Path | None = None,
) -> None:
    """Accuracy against density, parameters and multiply-adds, for every budget of a run.

    Parameters and multiply-adds are those of the network that `dessilbi compact` makes of a budget,
    and so is the accuracy; BatchNorm statistics are measured anew for each.

    Other runs are shown beside it. Runs that differ in nothing else become one curve: those of
    several seeds are averaged, those that were pruned to different densities are its points.

    Args:
        runs: run directories; the first is the one looked at.
        data: where the data lies.
        densities: budgets, as fractions of the weights.
        judge_on: which images; by default those that the run was judged on.
        picture: where to draw (.png, .svg or .pdf); by default frontier.png in the first run
            directory.
    """
    if not runs:
        raise ConfigError("name at least one run directory")
    if not densities:
        raise ConfigError("name at least one density, or leave --densities out")
    for density in densities:
        if not 0 < density <= 1:
            raise ConfigError(f"densities must lie in (0, 1], got {density}")
    set_threads(data.threads)
    from dessilbi.lab.analysis import frontier as analysis

    place = RunOptions(data_dir=data.data_dir, download=data.download)
    found = []
    for folder in runs:
        run = RunDir.open(folder)
        with plain_console().status(f"{run.path.name}: evaluating") as status:
            points, judged_on = analysis.frontier(
                run, place, densities, judge_on, told=status.update
            )
        found.append((run, points, judged_on))
    drawn = analysis.curves(found)
    for curve in drawn:
        _print(curve)
    _draw(drawn, picture or runs[0] / FRONTIER_PICTURE, found[0][0])
    print(f"figures: {FRONTIER} in each run directory")


def _print(curve: Curve) -> None:
    many = len(curve.seeds) > 1
    print(
        f"\n{curve.name}: {curve.runs} run(s), {curve.epochs} epochs in all, seeds "
        f"{', '.join(map(str, curve.seeds))}; accuracy in % on the {curve.judged_on} set",
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
    print(table(rows))
    for reason in {p.refused for at in curve.points for p in at if p.refused}:
        print(f"not compacted, sizes are the whole network's: {reason}")


def _draw(drawn: list[Curve], file: Path, first: RunDir) -> None:
    try:
        import matplotlib  # noqa: F401 - is it there?
    except ModuleNotFoundError:
        print("no picture: it needs matplotlib (pip install 'dessilbi[report]')")
        return
    from dessilbi.lab.analysis.frontier_picture import draw

    if file.suffix not in (".png", ".svg", ".pdf"):
        raise ConfigError(f"picture must end in .png, .svg or .pdf, got {file}")
    config = first.config()
    with clear_errors(file, "--picture"):
        draw(drawn, file, f"{config.model.name} on {config.data.name}: one curve a method")
    print(f"\npicture: {file}")

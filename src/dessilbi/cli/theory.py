"""``dessilbi theory``: curvature along a run, the steps it allows, and the step in use."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from dessilbi.cli.options import DataOptions, set_threads
from dessilbi.lab.run.config import Config, ConfigError
from dessilbi.lab.run.directory import RunDir, RunError
from dessilbi.lab.run.files import CONFIG
from dessilbi.lab.run.recipes import RECIPES, find_recipe

if TYPE_CHECKING:
    from dessilbi.lab.analysis.theory import Study
    from dessilbi.theory import StepVerdict


@dataclass(frozen=True, kw_only=True)
class TheoryCommand:
    """Lip, the safe step, the paper's bound and the lr in use, with a verdict.

    For a run directory at its initial weights, the kept epochs and the last checkpoint; for a
    recipe or a config.json at the initial weights.
    """

    what: tyro.conf.Positional[str]
    """A run directory (or its name under --runs), a recipe, or a config.json."""
    images: int = 2000
    """Training images that the loss is taken over, chosen at random; not augmented."""
    iterations: int = 60
    """Most products with the Hessian at each point."""
    seed: int | None = None
    """Chooses the images and the start of the iteration; for a recipe also the weights."""
    runs: Path = Path("runs")
    """Folder of the run directories."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1, ..."""
    data: Annotated[DataOptions, tyro.conf.arg(name="")] = field(default_factory=DataOptions)


def theory(arguments: list[str]) -> None:
    """``dessilbi theory RUN|RECIPE [options]``."""
    command = tyro.cli(TheoryCommand, prog="dessilbi theory", args=arguments)
    for name, value in (("images", command.images), ("iterations", command.iterations)):
        if value < 1:
            raise ConfigError(f"{name} must be >= 1, got {value}")
    set_threads(command.data.threads)
    run, config = _find(command)
    import dessilbi.paper.optimizers  # noqa: F401 - lets configurations name them
    from dessilbi.lab.analysis.theory import Study
    from dessilbi.lab.training.distributed import pick_device

    study = Study(
        config,
        run,
        images=command.images,
        iterations=command.iterations,
        seed=command.seed,
        data_dir=command.data.data_dir,
        download=command.data.download,
        device=pick_device(command.device),
    )
    _print(study)


def _print(study: Study) -> None:
    """Print a line for each point, and the verdict."""
    config, found = study.config, study.iteration
    print(
        f"{config.model.name} on {study.data.name}, {study.count:,} of "
        f"{len(study.data.train):,} training images; {config.optimizer.name}, kappa "
        f"{config.optimizer.kappa:g}, nu {found.nu:g}, weight decay {found.l2:g}"
    )
    columns = ("weights", "Lip", "at most", "safe lr", "sharp", "paper", "lr")
    print("".join(f"{name:>10}" for name in columns) + "  verdict")
    verdicts: dict[str, StepVerdict] = {}
    for point in study.points():  # a line as soon as it is known
        at, verdict = study.verdict(point)
        verdicts[point.label] = verdict
        bounds = verdict.bounds
        numbers = (at.lip, at.upper, bounds.safe, bounds.sharp, bounds.paper, point.lr)
        cells = "".join(f"{number:10.4g}" for number in numbers)
        print(f"{point.label:>10}{cells}  {verdict.status}")
    estimate = study.track.estimate
    print(
        f"'at most' holds with probability {estimate.confidence:g} for these weights and "
        "images; between and beyond them nothing is claimed"
    )
    worst = max(verdicts, key=lambda label: verdicts[label].lr / verdicts[label].bounds.safe)
    where = f" ({worst} weights)" if len(verdicts) > 1 else ""
    print(f"verdict{where}: {verdicts[worst]}")
    for note in estimate.notes:
        print(f"note: {note}")


def _find(command: TheoryCommand) -> tuple[RunDir | None, Config]:
    """A run directory with its configuration, or a configuration alone."""
    what = command.what
    for folder in (Path(what), command.runs / what):
        if folder.is_dir() and (what not in RECIPES or (folder / CONFIG).is_file()):
            run = RunDir.open(folder)
            return run, run.config()
    if "/" in what and not what.endswith(".json"):
        raise RunError(f"there is no run directory {what}")
    config = find_recipe(what)
    return None, config if command.seed is None else replace(config, seed=command.seed)

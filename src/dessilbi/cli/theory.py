"""``dessilbi theory``: curvature along a run, the steps it allows, and the step in use."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from dessilbi.cli.options import DataOptions, Flat, set_threads
from dessilbi.lab.run.config import Config, ConfigError
from dessilbi.lab.run.directory import RunDir, RunError
from dessilbi.lab.run.files import CONFIG
from dessilbi.lab.run.recipes import RECIPES, find_recipe

if TYPE_CHECKING:
    from dessilbi.lab.analysis.theory import Study
    from dessilbi.theory import StepVerdict


def theory(
    what: tyro.conf.Positional[str],
    data: Flat[DataOptions],
    images: int = 2000,
    iterations: int = 60,
    seed: int | None = None,
    runs: Path = Path("runs"),
    device: str = "auto",
) -> None:
    """Lip, the safe step, the paper's bound and the lr in use, with a verdict.

    For a run directory at its initial weights, the kept epochs and the last checkpoint; for a
    recipe or a config.json at the initial weights.

    Args:
        what: a run directory (or its name under --runs), a recipe, or a config.json.
        data: where the data lies.
        images: training images that the loss is taken over, chosen at random; not augmented.
        iterations: most products with the Hessian at each point.
        seed: chooses the images and the start of the iteration; for a recipe also the weights.
        runs: folder of the run directories.
        device: auto, cpu, cuda, cuda:1, ...
    """
    for name, value in (("images", images), ("iterations", iterations)):
        if value < 1:
            raise ConfigError(f"{name} must be >= 1, got {value}")
    set_threads(data.threads)
    run, config = _find(what, runs, seed)
    import dessilbi.paper.optimizers  # noqa: F401 - lets configurations name them
    from dessilbi.lab.analysis.theory import Study
    from dessilbi.lab.training.distributed import pick_device

    study = Study(
        config,
        run,
        images=images,
        iterations=iterations,
        seed=seed,
        data_dir=data.data_dir,
        download=data.download,
        device=pick_device(device),
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


def _find(what: str, runs: Path, seed: int | None) -> tuple[RunDir | None, Config]:
    """A run directory with its configuration, or a configuration alone."""
    for folder in (Path(what), runs / what):
        if folder.is_dir() and (what not in RECIPES or (folder / CONFIG).is_file()):
            run = RunDir.open(folder)
            return run, run.config()
    if "/" in what and not what.endswith(".json"):
        raise RunError(f"there is no run directory {what}")
    config = find_recipe(what)
    return None, config if seed is None else replace(config, seed=seed)

"""``dessilbi reproduce``: parse, run, print."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path

import tyro

from dessilbi.cli.options import Flat
from dessilbi.lab.run.config import ConfigError
from dessilbi.lab.run.options import RunOptions
from dessilbi.paper.executors import Executor, Processes
from dessilbi.paper.recipe import SCALES, Scale
from dessilbi.paper.recipes import RECIPES, find
from dessilbi.paper.reproduce import publish, reproduce, results_file, state
from dessilbi.paper.results import Results


@dataclass(frozen=True, kw_only=True)
class ReproduceCommand:
    """What to reproduce, and how."""

    name: tyro.conf.Positional[str] = ""
    """Which one; --list shows all."""
    scale: Scale = "smoke"
    """smoke: a minute; cpu: the protocol, smaller; paper: the paper's setting, for a GPU."""
    seeds: int | None = None
    """Seeds 0 to N-1; by default the scale's own number."""
    jobs: int | None = None
    """Runs at a time, each a process; 0 runs them in this one, as smoke does by default."""
    threads: int | None = None
    """Threads of each run; by default the cores divided among the jobs."""
    reuse: bool = False
    """Train nothing again whose result is in RESULTS, even if its run directory is gone."""
    only: str = ""
    """Run only what has this in its name, and what that needs: a network, a row, seed=1."""
    tables: bool = False
    """Run nothing: only make tables and figures of the results that are there."""
    results: Path | None = None
    """Folder of the results; ./results, and below --runs for the smoke scale."""
    options: Flat[RunOptions] = field(default_factory=RunOptions)
    list: tyro.conf.FlagCreatePairsOff[bool] = False
    """Say what each recipe reproduces, and what it costs."""


def reproduce_command(command: Flat[ReproduceCommand]) -> None:
    """Run a table or figure of the paper; run it again to go on where it was stopped.

    Results are kept in RESULTS/NAME-SCALE.json after every run, tables and figures beside it.
    """
    if command.list:
        print(_listing(), end="")
    else:
        _reproduce(command)


def _reproduce(command: ReproduceCommand) -> None:
    name, scale = command.name, command.scale
    if not name:
        raise ConfigError("name a recipe first; `dessilbi reproduce --list` shows all")
    recipe = find(name)
    folder = command.results
    if folder is None:
        folder = command.options.runs / "results" if scale == "smoke" else Path("results")
    failed: list[str] = []
    if command.tables:
        file = results_file(folder, name, scale)
        if not file.is_file():
            raise ConfigError(f"there are no results in {file}; run without --tables first")
        results = Results.load(file, name, scale)
    else:
        for cut in recipe.cuts.get(scale, ()):
            print(f"cut: {cut}")
        results = reproduce(
            recipe,
            scale,
            executor_of(command),
            command.options,
            folder,
            seeds=command.seeds,
            threads=threads_of(command),
            reuse=command.reuse,
            only=command.only,
            log=lambda line: print(line, flush=True),
            failed=failed.append,
        )
    out = folder / f"{name}-{scale}"
    files = publish(recipe, results, out, command.options)
    for table in recipe.tables(results):
        print(f"\n{table.markdown()}", end="")
    print(f"\n{state(recipe, results)}\n{len(files)} files in {out}")
    if failed:
        print(f"failed or skipped: {', '.join(failed)}", file=sys.stderr)
        raise SystemExit(1)


def _listing() -> str:
    """Name, what it reproduces and what each scale costs."""
    lines = ["Costs are estimates unless docs/reproduction.md says that they were measured.\n"]
    for recipe in RECIPES.values():
        lines.append(f"{recipe.name}\n    {recipe.what}  [{', '.join(recipe.shows)}]")
        for scale in SCALES:
            runs = len(recipe.jobs(scale, None))
            counted = f"{runs:4} {'run, ' if runs == 1 else 'runs,'}"
            lines.append(f"    {scale + ':':7}{counted} {recipe.costs[scale]}")
    return "\n".join(lines) + "\n"


def _jobs(command: ReproduceCommand) -> int:
    """Runs at a time."""
    jobs = command.jobs
    if jobs is None:
        return 0 if command.scale == "smoke" else 1
    if jobs < 0:
        raise ConfigError(f"jobs must be >= 0, got {jobs}")
    return jobs


def threads_of(command: ReproduceCommand) -> int | None:
    """Threads of a run."""
    if command.threads is not None and command.threads < 1:
        raise ConfigError(f"threads must be >= 1, got {command.threads}")
    jobs = _jobs(command)
    if command.threads is not None or jobs == 0:
        return command.threads
    return max((os.cpu_count() or 1) // jobs, 1)


def executor_of(command: ReproduceCommand) -> Executor:
    """Where the runs happen."""
    jobs = _jobs(command)
    return Processes(jobs, command.options.runs / "logs") if jobs else Executor()

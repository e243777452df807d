"""``dessilbi reproduce``: parse, run, print."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import tyro

from dessilbi.lab.run.config import ConfigError
from dessilbi.lab.run.options import RunOptions
from dessilbi.paper.executors import Cluster, Executor, Processes
from dessilbi.paper.recipe import SCALES, Scale
from dessilbi.paper.recipes import RECIPES, find
from dessilbi.paper.reproduce import publish, refresh_docs, reproduce, results_file, state
from dessilbi.paper.results import Results

USAGE = """\
usage: dessilbi reproduce NAME [--scale smoke|cpu|paper] [--seeds N] [--jobs N] [options]
       dessilbi reproduce --list
       dessilbi reproduce --docs FILE [--results DIR]   put all results into a Markdown file

`dessilbi reproduce NAME --help` lists every option.
"""


@dataclass(frozen=True, kw_only=True)
class ReproduceCommand:
    """Run a table or figure of the paper; run it again to go on where it was stopped.

    Results are kept in RESULTS/NAME-SCALE.json after every run, tables and figures beside it.
    """

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
    on: Literal["here", "slurm", "submitit-local"] = "here"
    """Processes of this machine, or jobs of a cluster through submitit."""
    slurm: tuple[str, ...] = ()
    """Settings for submitit, NAME=VALUE: slurm_partition=gpu gpus_per_node=1 timeout_min=600, the
    last of which SLURM needs; slurm_max_num_timeout=20 lets a run go on after so many of them."""
    options: Annotated[RunOptions, tyro.conf.arg(name="")] = field(default_factory=RunOptions)


def reproduce_command(arguments: list[str]) -> None:
    """``dessilbi reproduce NAME [options]``."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE, end="", file=sys.stdout if arguments else sys.stderr)
        if not arguments:
            raise SystemExit(2)
        return
    if "--list" in arguments:
        print(listing(), end="")
        return
    if arguments[0] == "--docs":
        docs = tyro.cli(DocsCommand, prog="dessilbi reproduce", args=arguments)
        count = refresh_docs(docs.docs, docs.results)
        print(f"{docs.docs}: {count} places filled from {docs.results}")
        return
    name, *options = arguments
    if name.startswith("-"):
        raise ConfigError(f"name a recipe first, then its options; got {name!r}\n\n{USAGE}")
    recipe = find(name)
    command = tyro.cli(ReproduceCommand, prog=f"dessilbi reproduce {name}", args=options)
    folder = command.results
    if folder is None:
        folder = command.options.runs / "results" if command.scale == "smoke" else Path("results")
    failed: list[str] = []
    if command.tables:
        file = results_file(folder, name, command.scale)
        if not file.is_file():
            raise ConfigError(f"there are no results in {file}; run without --tables first")
        results = Results.load(file, name, command.scale)
    else:
        for cut in recipe.cuts.get(command.scale, ()):
            print(f"cut: {cut}")
        results = reproduce(
            recipe,
            command.scale,
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
    out = folder / f"{name}-{command.scale}"
    files = publish(recipe, results, out, command.options)
    for table in recipe.tables(results):
        print(f"\n{table.markdown()}", end="")
    print(f"\n{state(recipe, results)}\n{len(files)} files in {out}")
    if failed:
        print(f"failed or skipped: {', '.join(failed)}", file=sys.stderr)
        raise SystemExit(1)


@dataclass(frozen=True, kw_only=True)
class DocsCommand:
    """Put the tables of all results into a Markdown file."""

    docs: Path
    """The file, with its places marked by comments."""
    results: Path = Path("results")
    """Folder of the results."""


def listing() -> str:
    """Name, what it reproduces and what each scale costs."""
    lines = ["Costs are estimates unless docs/reproduction.md says that they were measured.\n"]
    for recipe in RECIPES.values():
        lines.append(f"{recipe.name}\n    {recipe.what}  [{', '.join(recipe.shows)}]")
        for scale in SCALES:
            runs = len(recipe.jobs(scale, None))
            counted = f"{runs:4} {'run, ' if runs == 1 else 'runs,'}"
            lines.append(f"    {scale + ':':7}{counted} {recipe.costs[scale]}")
    return "\n".join(lines) + "\n"


def jobs_of(command: ReproduceCommand) -> int:
    """Runs at a time."""
    if command.jobs is None:
        return 0 if command.scale == "smoke" and command.on == "here" else 1
    if command.jobs < 0:
        raise ConfigError(f"jobs must be >= 0, got {command.jobs}")
    return command.jobs


def threads_of(command: ReproduceCommand) -> int | None:
    """Threads of a run; of a cluster's jobs the cluster decides."""
    if command.threads is not None:
        if command.threads < 1:
            raise ConfigError(f"threads must be >= 1, got {command.threads}")
        return command.threads
    jobs = jobs_of(command)
    if command.on != "here" or jobs == 0:
        return None
    return max((os.cpu_count() or 1) // jobs, 1)


def executor_of(command: ReproduceCommand) -> Executor:
    """Where the runs happen."""
    jobs, runs = jobs_of(command), command.options.runs
    if command.on == "here":
        if command.slurm:
            raise ConfigError("--slurm is for --on slurm; without a cluster leave it out")
        return Executor() if jobs == 0 else Processes(jobs, runs / "logs")
    kind = "slurm" if command.on == "slurm" else "local"
    return Cluster(max(jobs, 1), runs / "submitit", kind, parameters(command.slurm))


def parameters(pairs: tuple[str, ...]) -> dict[str, str | int]:
    """``NAME=VALUE`` as submitit wants them; whole numbers become numbers."""
    found: dict[str, str | int] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise ConfigError(f"--slurm must be NAME=VALUE, got {pair!r}")
        found[name] = int(value) if value.isdigit() else value
    return found


__all__ = ["ReproduceCommand", "listing", "reproduce_command"]

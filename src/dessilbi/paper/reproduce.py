"""Run a recipe, keep its results as they come, and make its tables and figures from them."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from dessilbi.lab.config import Config
from dessilbi.lab.sweep import Sweep
from dessilbi.paper.recipe import SCALES
from dessilbi.paper.recipes import RECIPES
from dessilbi.paper.results import Record, Results

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from dessilbi.lab.rundir import RunDir
    from dessilbi.lab.sweep import Job, Outcome
    from dessilbi.lab.sweep_executors import Executor
    from dessilbi.lab.train import Place
    from dessilbi.paper.recipe import Recipe, Scale

BEGIN, END = "<!-- results: {name} -->", "<!-- end of results -->"


def results_file(folder: Path, recipe: str, scale: str) -> Path:
    """Where the results of a recipe are kept."""
    return folder / f"{recipe}-{scale}.json"


def reproduce(
    recipe: Recipe,
    scale: Scale,
    executor: Executor,
    place: Place,
    folder: Path,
    *,
    seeds: int | None = None,
    threads: int | None = None,
    reuse: bool = False,
    only: str = "",
    tell: Callable[[str], None] = lambda line: None,
) -> Results:
    """Run what has no run directory yet; returns the results, which are saved after every run.

    Args:
        recipe: what to reproduce.
        scale: how large.
        executor: where runs happen.
        place: folders and device of the runs.
        folder: where the results are kept.
        seeds: number of seeds; by default the scale's.
        threads: threads of each run.
        reuse: take what is in the results as done, even where the run directories are gone.
        only: leave out the runs whose key does not contain this.
        tell: is given a line for whatever happens.

    Raises:
        Interrupted: stopped; the same call goes on.
    """
    jobs = recipe.jobs(scale, seeds)
    file = results_file(folder, recipe.name, scale)
    results = Results.load(file, recipe.name, scale)
    results.planned = len(jobs)
    results.cuts = list(recipe.cuts.get(scale, ()))

    def ended(job: Job, outcome: Outcome) -> None:
        record = Record(dict(job.labels), outcome.status, message=_public(outcome.message, place))
        known = results.records.get(job.key)
        if outcome.run is not None:
            record.run = outcome.run.path.name
            measured = known is not None and known.status == "done" and known.run == record.run
            if measured and outcome.seconds is None:
                return  # trained and measured before
            try:
                record.values = recipe.measure(outcome.run, job, place)
                record.message = ""
                results.environment = _environment(outcome.run) or results.environment
            except Exception as error:  # one run that cannot be read must not lose the others
                record.status = "failed"
                record.message = _public(f"{type(error).__name__}: {error}", place)
                tell(f"FAILED {job.key}: trained, but not measured: {record.message}")
        results.records[job.key] = record
        results.save(file)

    jobs = with_needs(jobs, lambda job: only in job.key)
    if not jobs:
        known = ", ".join(job.key for job in recipe.jobs(scale, seeds))
        raise ValueError(f"no run of {recipe.name} contains {only!r}; they are: {known}")
    chosen = len(jobs)
    if reuse:
        jobs = without_results(jobs, results)
        tell(f"{chosen - len(jobs)} of {chosen} runs are in {file.name}")
    Sweep(jobs, executor, place, threads=threads, tell=tell, ended=ended).run()
    results.save(file)
    return results


def without_results(jobs: list[Job], results: Results) -> list[Job]:
    """The jobs that have no result yet, and those that they need."""

    def missing(job: Job) -> bool:
        known = results.records.get(job.key)
        if known is None or known.status != "done":
            return True
        # A run of another name is one of other settings.
        return isinstance(job.config, Config) and known.run != job.config.run_name

    return with_needs(jobs, missing)


def with_needs(jobs: list[Job], wanted: Callable[[Job], bool]) -> list[Job]:
    """The wanted ones and what they need, in their order."""
    left: list[Job] = []
    needed: set[str] = set()
    for job in reversed(jobs):
        if wanted(job) or job.key in needed:
            left.append(job)
            needed.update(job.needs)
    return left[::-1]


def publish(recipe: Recipe, results: Results, out: Path, place: Place) -> list[Path]:
    """Write tables (Markdown, CSV, LaTeX) and figures (PNG, SVG) of what is there so far."""
    files = [file for table in recipe.tables(results) for file in table.write(out)]
    try:
        return files + recipe.draw(results, out, place)
    except ModuleNotFoundError as error:
        raise ValueError(
            f"tables are in {out}; figures need the package {error.name!r}: "
            "pip install 'dessilbi[report]'"
        ) from error


def state(results: Results) -> str:
    """How complete the results are, in a sentence."""
    seeds = sorted({r.labels["seed"] for r in results.where() if "seed" in r.labels})
    failed = sum(r.status != "done" for r in results.records.values())
    more = f", {failed} failed or skipped" if failed else ""
    return (
        f"{results.done} of {max(results.planned, results.done)} runs done{more}; "
        f"seeds {', '.join(map(str, seeds)) or 'none'}"
    )


def markdown(recipe: Recipe, results: Results) -> str:
    """All tables of a recipe with what was cut and on what it ran."""
    head = [f"`dessilbi reproduce {recipe.name} --scale {results.scale}`: {state(results)}."]
    if results.cuts:
        head.append("Cut: " + "; ".join(results.cuts) + ".")
    if results.environment:
        facts = results.environment
        head.append(
            f"Run with torch {facts.get('packages', {}).get('torch', '?')} on "
            f"{facts.get('device', '?')}, {facts.get('cores', '?')} cores, "
            f"{facts.get('threads', '?')} threads a run."
        )
    tables = [table.markdown() for table in recipe.tables(results)]
    return "\n\n".join(["\n".join(head), *tables]).rstrip() + "\n"


def refresh_docs(file: Path, folder: Path) -> int:
    """Put the tables of all results into their places in a Markdown file; returns how many.

    A place is a pair of comments: ``<!-- results: table-mnist-paper -->`` and ``<!-- end of results
    -->``. Where nothing was run the text between them says so.
    """
    text = file.read_text()
    count = 0

    def fill(match: re.Match[str]) -> str:
        nonlocal count
        name, _, scale = match[1].rpartition("-")
        if name not in RECIPES or scale not in SCALES:
            raise ValueError(f"{file} has a place for {match[1]!r}, which is no recipe and scale")
        source = results_file(folder, name, scale)
        body = "Not run yet.\n"
        if source.is_file():
            body = markdown(RECIPES[name], Results.load(source, name, scale))
            count += 1
        return f"{BEGIN.format(name=match[1])}\n{body}{END}"

    pattern = re.compile(r"<!-- results: ([\w.-]+) -->.*?<!-- end of results -->", re.DOTALL)
    file.write_text(pattern.sub(fill, text))
    return count


def _public(message: str, place: Place) -> str:
    """A message without the paths of this machine: results are published."""
    message = re.sub(r" ?\([^()]*log: [^()]*\)", "", message)
    message = message.replace(str(place.runs.resolve()), "runs").replace(str(place.runs), "runs")
    return "" if message == "was finished before" else message


def _environment(run: RunDir) -> dict[str, Any]:
    file = run.path / "environment.json"
    if not file.is_file():
        return {}
    facts = json.loads(file.read_text())
    kept = ("python", "packages", "cores", "threads", "device")
    return {name: facts[name] for name in kept if name in facts}

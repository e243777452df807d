"""Run a recipe, keep its results as they come, and make its tables and figures from them."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from dessilbi.lab.run.config import Config
from dessilbi.lab.run.files import ENVIRONMENT
from dessilbi.paper.results import Record, Results
from dessilbi.paper.sweep import FINISHED, Sweep

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from dessilbi.lab.run.directory import RunDir
    from dessilbi.lab.run.options import RunOptions
    from dessilbi.paper.executors import Executor
    from dessilbi.paper.recipe import Recipe, Scale
    from dessilbi.paper.sweep import Job, Outcome


def results_file(folder: Path, recipe: str, scale: str) -> Path:
    """Where the results of a recipe are kept."""
    return folder / f"{recipe}-{scale}.json"


def reproduce(
    recipe: Recipe,
    scale: Scale,
    executor: Executor,
    options: RunOptions,
    folder: Path,
    *,
    seeds: int | None = None,
    threads: int | None = None,
    reuse: bool = False,
    only: str = "",
    log: Callable[[str], None] = lambda line: None,
    failed: Callable[[str], None] = lambda key: None,
) -> Results:
    """Run what has no run directory yet; returns the results, which are saved after every run.

    A result that is there stays when its run is made again and fails.

    The options are those of the command; ``log`` is given a line for whatever happens, ``failed``
    the key of each run that failed, could not be measured or was skipped.

    Raises:
        Interrupted: stopped; the same call goes on.
        RunError: the results cannot be written.
    """
    planned = recipe.jobs(scale, seeds)
    file = results_file(folder, recipe.name, scale)
    results = Results.load(file, recipe.name, scale)

    def keep(new: dict[str, Record], environment: dict[str, Any]) -> None:
        """Add to the file as it is now: another process may have added to it, too."""
        nonlocal results
        with Results.changed(file, recipe.name, scale) as results:
            results.planned = len(planned)
            results.cuts = list(recipe.cuts.get(scale, ()))
            results.environment = environment or results.environment
            for key, record in new.items():
                if record.status != "done" and _stands(results, key, record.run):
                    log(f"{key}: the result in {file.name} is kept")
                else:
                    results.records[key] = record

    def ended(job: Job, outcome: Outcome) -> None:
        run, environment = outcome.run, dict[str, Any]()
        message = "" if outcome.message == FINISHED else outcome.message
        record = Record(dict(job.labels), outcome.status, run=_run_name(job), message=message)
        if run is not None:
            record.run = run.path.name
            if outcome.seconds is None and _stands(results, job.key, record.run):
                return  # trained and measured before
            try:
                record.values = recipe.measure(run, job, options)
                environment = _environment(run)
            except Exception as error:  # one run that cannot be read must not lose the others
                record.status, record.message = "failed", f"{type(error).__name__}: {error}"
                log(f"FAILED {job.key}: trained, but not measured: {record.message}")
        if record.status != "done":
            failed(job.key)
        record.message = _public(record.message, options)
        keep({job.key: record}, environment)

    jobs = with_needs(planned, lambda job: only in job.key)
    if not jobs:
        known = ", ".join(job.key for job in planned)
        raise ValueError(f"no run of {recipe.name} contains {only!r}; they are: {known}")
    if reuse:
        chosen, jobs = len(jobs), without_results(jobs, results)
        log(f"{chosen - len(jobs)} of {chosen} runs are in {file.name}")
    Sweep(jobs, executor, options, threads=threads, log=log, ended=ended).run()
    keep({}, {})
    return results


def _run_name(job: Job) -> str:
    """Of the run directory; empty where the configuration is yet to be made."""
    return job.config.run_name if isinstance(job.config, Config) else ""


def _stands(results: Results, key: str, run: str) -> bool:
    """Whether there is the result of a run; one of another name is of other settings.

    A run whose name is not known counts as the same.
    """
    known = results.records.get(key)
    return known is not None and known.status == "done" and run in ("", known.run)


def without_results(jobs: list[Job], results: Results) -> list[Job]:
    """The jobs that have no result yet, and those that they need."""
    return with_needs(jobs, lambda job: not _stands(results, job.key, _run_name(job)))


def with_needs(jobs: list[Job], wanted: Callable[[Job], bool]) -> list[Job]:
    """The wanted ones and what they need, in their order."""
    left: list[Job] = []
    needed: set[str] = set()
    for job in reversed(jobs):
        if wanted(job) or job.key in needed:
            left.append(job)
            needed.update(job.needs)
    return left[::-1]


def _public(message: str, options: RunOptions) -> str:
    """A message without the paths of this machine: results are published."""
    message = re.sub(r" ?\([^()]*log: [^()]*\)", "", message)
    return message.replace(str(options.runs.resolve()), "runs").replace(str(options.runs), "runs")


def _environment(run: RunDir) -> dict[str, Any]:
    file = run.path / ENVIRONMENT
    facts = json.loads(file.read_text()) if file.is_file() else {}
    kept = ("python", "packages", "cores", "threads", "device")
    return {name: facts[name] for name in kept if name in facts}


# ---------------------------------------------------------------------- what is shown of them


def publish(recipe: Recipe, results: Results, out: Path, options: RunOptions) -> list[Path]:
    """Write tables (Markdown) and figures (PNG, SVG) of what is there so far."""
    files = [table.write(out) for table in recipe.tables(results)]
    try:
        return files + recipe.draw(results, out, options)
    except ModuleNotFoundError as error:
        raise ValueError(
            f"tables are in {out}; figures need the package {error.name!r}: "
            "pip install 'dessilbi[report]'"
        ) from error


def state(recipe: Recipe, results: Results) -> str:
    """How complete the results are, in a sentence: fewer seeds than the scale's are a part."""
    failed = sum(r.status != "done" for r in results.records.values())
    more = f", {failed} failed or skipped" if failed else ""
    planned = max(len(recipe.jobs(results.scale)), results.planned, results.done)
    return (
        f"{results.done} of {planned} runs done{more}; "
        f"seeds {', '.join(map(str, results.seeds)) or 'none'}"
    )

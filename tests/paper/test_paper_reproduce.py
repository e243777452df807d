"""Running a recipe, stopping it, going on; the command; and the docs."""

from __future__ import annotations

import runpy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dessilbi.cli import main
from dessilbi.cli.reproduce import ReproduceCommand, executor_of, threads_of
from dessilbi.lab.run.config import Config
from dessilbi.lab.run.options import RunOptions
from dessilbi.lab.training.errors import Interrupted
from dessilbi.paper.executors import (
    FAILED,
    INTERRUPTED,
    Ending,
    Executor,
    JobSpec,
    Processes,
)
from dessilbi.paper.recipe import SCALES
from dessilbi.paper.recipes import RECIPES
from dessilbi.paper.reproduce import (
    reproduce,
    results_file,
    state,
    without_results,
)
from dessilbi.paper.results import Record, Results

if TYPE_CHECKING:
    from collections.abc import Callable

    from dessilbi.lab.run.directory import RunDir
    from dessilbi.paper.executors import Poll
    from dessilbi.paper.recipe import Recipe

ROOT = Path(__file__).parents[2]
LAYERS = RECIPES["layers-lenet-3"]


def of_the_docs(name: str) -> Callable[..., Any]:
    """A function of the script that fills the page on the reproduction."""
    script = ROOT / "docs" / "fill_results.py"
    if not script.is_file():
        pytest.skip("docs are not part of this checkout")
    found: Callable[..., Any] = runpy.run_path(str(script))[name]
    return found


@dataclass
class StopsAfter(Executor):
    """Runs that many jobs and then is interrupted."""

    left: int = 1
    width: int = 1

    def start(self, key: str, spec: JobSpec) -> Poll:
        self.left -= 1
        return (lambda: Ending(INTERRUPTED)) if self.left < 0 else super().start(key, spec)


class Fails(Executor):
    """Runs nothing."""

    def start(self, key: str, spec: JobSpec) -> Poll:
        return lambda: Ending(FAILED, "the data is gone")


def measuring(recipe: Recipe, measure: Callable[[RunDir], dict[str, float]]) -> Recipe:
    """The recipe with another way to measure a run."""

    class Measured(type(recipe)):  # type: ignore[misc]
        def measure(self, run: RunDir, job: object, options: RunOptions) -> dict[str, float]:
            return measure(run)

    found: Recipe = Measured(**vars(recipe))
    return found


def smoke(recipe: Recipe, folder: Path, executor: Executor | None = None, **more: Any) -> Results:
    options = RunOptions(runs=folder / more.pop("runs", "runs"))
    executor = executor or Executor()
    return reproduce(recipe, "smoke", executor, options, folder, threads=1, **more)


def test_a_stopped_recipe_goes_on_and_a_partial_table_is_valid(tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        smoke(LAYERS, tmp_path, StopsAfter(left=1), seeds=2)
    file = results_file(tmp_path, "layers-lenet-3", "smoke")
    partial = Results.load(file, "layers-lenet-3", "smoke")
    assert (partial.done, partial.planned) == (1, 2)
    (table,) = LAYERS.tables(partial)
    assert [len(cell.ours) for cell in table.cells] == [1] * 4
    assert "| 1 |" in table.markdown()

    counting = StopsAfter(left=1)
    whole = smoke(LAYERS, tmp_path, counting, seeds=2)
    assert counting.left == 0, "only the second seed was run"
    assert whole.done == 2
    (table,) = LAYERS.tables(whole)
    assert all(cell.spread is not None for cell in table.cells)
    assert whole.environment["packages"]["torch"]
    assert "command" not in whole.environment, "a command holds paths of this machine"


def test_a_run_that_cannot_be_measured_is_reported_and_the_others_stay(tmp_path: Path) -> None:
    def measure(run: RunDir) -> dict[str, float]:
        if run.config().seed == 0:
            raise OSError(f"cannot read {run.path}")
        return {"density": 0.5, "densities": {}}

    found = smoke(measuring(LAYERS, measure), tmp_path, seeds=2)
    first, second = found.records.values()
    assert first.status == "failed"
    assert str(tmp_path) not in first.message
    assert second.status == "done"


def test_results_stand_for_runs_whose_directories_are_gone(tmp_path: Path) -> None:
    tuned = RECIPES["finetune-lenet-3"]
    whole = smoke(tuned, tmp_path, runs="first")
    again = smoke(tuned, tmp_path, StopsAfter(left=0), runs="second", reuse=True)
    assert again.records == whole.records

    jobs = tuned.jobs("smoke", None)
    last = jobs[-1]
    del whole.records[last.key]
    needs = {last.key}
    for job in reversed(jobs):
        if job.key in needs:
            needs.update(job.needs)
    assert {job.key for job in without_results(jobs, whole)} == needs
    assert len(jobs) > len(needs) > 1

    assert without_results(jobs, again) == []
    again.records[jobs[0].key].run = "of-other-settings"
    assert [job.key for job in without_results(jobs, again)] == [jobs[0].key]


def test_a_part_of_a_recipe_can_be_run_alone(tmp_path: Path) -> None:
    found = smoke(LAYERS, tmp_path, seeds=3, only="seed=1")
    assert list(found.records) == ["lenet-3/DessiLBI/seed=1"]
    assert found.planned == 3
    with pytest.raises(
        ValueError, match="no run of layers-lenet-3 contains 'vgg'; they are: lenet-3"
    ):
        smoke(LAYERS, tmp_path, only="vgg")


def test_a_run_that_is_made_again_takes_the_place_of_the_published_one(tmp_path: Path) -> None:
    published = smoke(LAYERS, tmp_path, runs="a")
    (key,) = published.records
    published.records[key].values["density"] = -1.0
    published.save(results_file(tmp_path, LAYERS.name, "smoke"))
    mine = smoke(LAYERS, tmp_path, runs="b")
    assert mine.records[key].values["density"] >= 0


def test_a_run_that_fails_when_it_is_made_again_keeps_its_result(tmp_path: Path) -> None:
    tuned = RECIPES["finetune-lenet-3"]
    file = results_file(tmp_path, tuned.name, "smoke")
    published = Results(tuned.name, "smoke")
    jobs = tuned.jobs("smoke", None)
    for job in jobs:
        name = job.config.run_name if isinstance(job.config, Config) else "made-later"
        published.records[job.key] = Record(dict(job.labels), "done", {"accuracy": 98.0}, name)
    published.save(file)
    failed: list[str] = []
    found = smoke(tuned, tmp_path, Fails(), failed=failed.append)
    assert found.records == published.records
    assert sorted(failed) == sorted(job.key for job in jobs), "failed and skipped"
    assert Results.load(file, tuned.name, "smoke").records == published.records

    published.records[jobs[0].key].run = "of-other-settings"
    published.save(file)
    found = smoke(tuned, tmp_path, Fails())
    assert {k for k, r in found.records.items() if r.status != "done"} == {jobs[0].key}


def test_two_processes_that_run_parts_of_a_recipe_keep_each_others_results(tmp_path: Path) -> None:
    asked: list[int] = []

    def measure(run: RunDir) -> dict[str, float]:
        asked.append(run.config().seed)
        if asked == [0]:  # while the first process is at work, another one runs and ends
            smoke(part, tmp_path, seeds=2, only="seed=1")
        return {"density": 0.5}

    part = measuring(LAYERS, measure)
    found = smoke(part, tmp_path, seeds=2, only="seed=0")
    assert asked == [0, 1]
    assert found.done == 2
    assert Results.load(results_file(tmp_path, part.name, "smoke"), part.name, "smoke") == found


@pytest.mark.parametrize(
    ("name", "scale", "planned", "seeds", "option", "total"),
    [
        ("ablation-kappa", "cpu", 10, 1, " --seeds 1", 20),  # two seeds are the scale's own
        ("ablation-kappa", "cpu", 20, 2, "", 20),
        ("ablation-kappa", "cpu", 30, 3, " --seeds 3", 30),
        ("table-mnist", "paper", 19, 1, "", 19),  # begun, and not asked for with fewer seeds
        ("table-mnist", "paper", 13, 1, " --seeds 1", 19),
    ],
)
def test_results_say_what_was_asked_for_and_count_against_the_whole_recipe(
    name: str, scale: str, planned: int, seeds: int, option: str, total: int
) -> None:
    results = Results(name, scale, planned)
    for seed in range(seeds):
        results.records[str(seed)] = Record({"seed": seed}, "done")
    command = of_the_docs("command")
    assert command(RECIPES[name], results) == f"dessilbi reproduce {name} --scale {scale}{option}"
    assert state(RECIPES[name], results).startswith(f"{seeds} of {total} runs done; seeds 0")


# ---------------------------------------------------------------------- the command


def test_the_command_fails_when_a_run_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("dessilbi.cli.reproduce.executor_of", lambda command: Fails())
    with pytest.raises(SystemExit) as caught:
        main(["reproduce", "layers-lenet-3", "--runs", str(tmp_path)])
    assert caught.value.code == 1
    said = capsys.readouterr()
    assert "0 of 1 runs done, 1 failed or skipped" in said.out
    assert said.err == "failed or skipped: lenet-3/DessiLBI/seed=0\n"


def test_list_names_every_recipe_with_its_costs(capsys: pytest.CaptureFixture[str]) -> None:
    main(["reproduce", "--list"])
    said = capsys.readouterr().out
    for recipe in RECIPES.values():
        assert f"\n{recipe.name}\n" in said
        assert recipe.what in said
        assert all(recipe.costs[scale] in said for scale in SCALES)
    assert "estimates" in said


def test_the_command_runs_and_makes_tables_again_without_running(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--runs", str(tmp_path)]
    main(["reproduce", "layers-lenet-3", *options])
    first = capsys.readouterr().out
    assert "cut: 400 of scikit-learn's digits" in first
    assert "started" in first
    assert "| density | fc1 |" in first
    assert "1 of 1 runs done; seeds 0" in first
    main(["reproduce", "layers-lenet-3", "--tables", *options])
    again = capsys.readouterr().out
    assert "started" not in again
    assert again.split("**")[-1] == first.split("**")[-1]
    assert (tmp_path / "results" / "layers-lenet-3-smoke" / "layers-lenet-3.md").is_file()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["reproduce", "tabel-mnist"], "did you mean 'table-mnist'"),
        (["reproduce", "--scale", "cpu"], "name a recipe first"),
        (["reproduce", "cost", "--tables", "--results", "nowhere"], "there are no results in"),
        (["reproduce", "cost", "--seeds", "0"], "seeds must be >= 1, got 0"),
        (["reproduce", "cost", "--jobs", "-1"], "jobs must be >= 0, got -1"),
        (["reproduce", "cost", "--threads", "0"], "threads must be >= 1, got 0"),
    ],
)
def test_mistakes_are_one_clear_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    if "--scale" not in arguments and len(arguments) > 2:
        arguments = [*arguments, "--runs", str(tmp_path)]
    with pytest.raises(SystemExit):
        main(arguments)
    assert message in capsys.readouterr().err


def test_where_runs_happen(tmp_path: Path) -> None:
    options = RunOptions(runs=tmp_path)
    smoke = ReproduceCommand(options=options)
    assert isinstance(executor_of(smoke), Executor)
    two = ReproduceCommand(scale="cpu", jobs=2, options=options)
    executor = executor_of(two)
    assert isinstance(executor, Processes)
    assert executor.width == 2
    assert threads_of(replace(two, threads=3)) == 3
    assert (threads_of(two) or 0) >= 1


# ---------------------------------------------------------------------- the docs


def test_docs_are_filled_from_results_and_say_what_was_not_run(tmp_path: Path) -> None:
    smoke(LAYERS, tmp_path)
    docs = tmp_path / "docs.md"
    docs.write_text(
        "before\n<!-- results: layers-lenet-3-smoke -->old<!-- end of results -->\nbetween\n"
        "<!-- results: cost-cpu --><!-- end of results -->\nafter\n"
    )
    refresh_docs = of_the_docs("fill")
    assert refresh_docs(docs, tmp_path) == 1
    once = docs.read_text()
    assert "old" not in once
    assert "| density | fc1 |" in once
    assert "<!-- results: cost-cpu -->\nNot run yet.\n<!-- end" in once
    assert once.startswith("before\n")
    assert once.endswith("after\n")
    refresh_docs(docs, tmp_path)
    assert docs.read_text() == once
    docs.write_text("<!-- results: nothing-cpu --><!-- end of results -->")
    with pytest.raises(ValueError, match="no recipe and scale"):
        refresh_docs(docs, tmp_path)


def test_the_page_on_the_reproduction_is_up_to_date(tmp_path: Path) -> None:
    page = ROOT / "docs" / "reproduction.md"
    if not page.is_file():
        pytest.skip("docs are not part of this checkout")
    copy = tmp_path / "page.md"
    copy.write_text(page.read_text())
    of_the_docs("fill")(copy, ROOT / "results")
    assert copy.read_text() == page.read_text(), "run `python docs/fill_results.py`"
    for name in RECIPES:
        assert f"`{name}`" in page.read_text(), f"{name} is not on the page"


@pytest.mark.parametrize("file", sorted((ROOT / "results").glob("*.json")), ids=lambda f: f.stem)
def test_published_results_are_found_by_their_recipes(file: Path) -> None:
    """Otherwise `--reuse` would train again what is there."""
    name, _, scale = file.stem.rpartition("-")
    records = Results.load(file, name, scale).records
    jobs = {job.key: job for job in RECIPES[name].jobs(scale, None)}  # type: ignore[arg-type]
    for key, record in records.items():
        config = jobs[key].config
        assert not isinstance(config, Config) or config.run_name == record.run, key

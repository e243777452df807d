"""Every recipe: its plan at each scale, and the smoke scale from runs to tables and figures."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import torch

from dessilbi.lab.run.config import Config
from dessilbi.lab.run.directory import RunDir
from dessilbi.lab.run.options import RunOptions
from dessilbi.paper.competitors import COMPETITORS
from dessilbi.paper.executors import Executor
from dessilbi.paper.published import FIGURES, TABLES
from dessilbi.paper.recipe import SCALES
from dessilbi.paper.recipes import RECIPES, ablation, cost, lottery
from dessilbi.paper.reproduce import publish, reproduce
from dessilbi.paper.results import Record, Results

if TYPE_CHECKING:
    from pathlib import Path

    from dessilbi.paper.figures import Panel
    from dessilbi.paper.recipe import Scale

# The others repeat these with another network, data set or warm-up.
QUICK = (
    "table-mnist",
    "ablation-kappa",
    "lottery-vgg-16",
    "lottery-vgg-16-lasso",
    "finetune-lenet-3",
    "layers-conv-2",
    "cost",
    "filters-lenet-5",
    "gradients-resnet-18",
)


def configs(name: str, scale: Scale) -> list[Config]:
    jobs = RECIPES[name].jobs(scale)
    return [job.config for job in jobs if isinstance(job.config, Config)]


def test_every_table_and_figure_of_the_paper_has_a_recipe() -> None:
    shown = {label for recipe in RECIPES.values() for label in recipe.shows}
    assert shown == {f"table:{label}" for label in TABLES} | set(FIGURES)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", RECIPES)
def test_a_plan_is_sound(name: str, scale: Scale) -> None:
    recipe = RECIPES[name]
    jobs = recipe.jobs(scale, None)
    keys = [job.key for job in jobs]
    assert len(keys) == len(set(keys)) > 0
    seen: set[str] = set()
    for job in jobs:
        assert set(job.needs) <= seen, "a job comes after what it needs"
        seen.add(job.key)
    names = [c.run_name for c in configs(name, scale)]
    assert len(names) == len(set(names)), "different runs, different directories"
    assert recipe.costs[scale]
    assert scale == "paper" or recipe.cuts[scale], "what is cut is said"
    assert len(recipe.jobs(scale, 2)) >= len(recipe.jobs(scale, 1))


@pytest.mark.parametrize("name", RECIPES)
def test_costs_and_cuts_say_what_is_so_whatever_is_asked_for(name: str) -> None:
    recipe = RECIPES[name]
    assert not any("GPU on" in cost for cost in recipe.costs.values())
    cuts = [cut for scale in SCALES for cut in recipe.cuts.get(scale, ())]
    assert not any("seed" in cut for cut in cuts), "--seeds decides how many there are"


def test_the_big_table_has_the_papers_setting() -> None:
    found = configs("table-mnist", "paper")
    assert {(c.epochs, c.batch_size, c.schedule.kind, c.schedule.step_size) for c in found} == {
        (100, 128, "step", 30)
    }
    assert {c.model.name for c in found} == {"lenet-5"}
    optimizers = [c.optimizer for c in found]
    assert all(COMPETITORS[row] in optimizers for row in TABLES["supervised_imagenet"].rows)
    seeds = [c.seed for c in found if c.optimizer == COMPETITORS["dessilbi-mom-wd"]]
    assert seeds == [0, 1, 2]
    assert {c.schedule.warmup for c in configs("table-mnist-warmup", "paper")} == {1.0}
    imagenet = configs("table-imagenet", "paper")
    assert {c.batch_size for c in imagenet} == {256}
    assert {c.optimizer.nu for c in imagenet if c.optimizer.name == "dessilbi"} == {1000.0}


@pytest.mark.parametrize(("which", "values"), [("kappa", 4), ("nu", 8)])
def test_the_ablations_have_the_papers_setting(which: str, values: int) -> None:
    found = configs(f"ablation-{which}", "paper")
    assert len(found) == 2 * (values + 1) * 5
    assert {(c.epochs, c.schedule.milestones, c.optimizer.lr) for c in found} == {
        (160, (80, 120), 0.1)
    }
    twins = [c.optimizer for c in found if c.optimizer.name == "dessilbi"]
    assert len({getattr(o, which) for o in twins}) == values
    assert (
        {o.nu for o in twins} == {100.0} if which == "kappa" else {o.kappa for o in twins} == {1.0}
    )


def test_the_setting_that_both_ablations_share_is_one_run() -> None:
    both = {c.run_name for c in configs("ablation-kappa", "paper")} & {
        c.run_name for c in configs("ablation-nu", "paper")
    }
    assert len(both) == 2 * 2 * 5, "kappa = 1 with nu = 100, and SGD, of two networks, five seeds"


@pytest.mark.parametrize(
    ("name", "nu", "lambd", "penalty"),
    [
        ("vgg-16", 100.0, 0.1, "auto"),
        ("resnet-56", 100.0, 0.05, "auto"),
        ("vgg-16-lasso", 500.0, 0.05, "lasso"),
        ("resnet-50-lasso", 200.0, 0.03, "lasso"),
    ],
)
def test_the_lottery_has_the_papers_setting(
    name: str, nu: float, lambd: float, penalty: str
) -> None:
    found = configs(f"lottery-{name}", "paper")
    parents = [c for c in found if c.optimizer.name == "dessilbi"]
    assert len(parents) == 5
    for config in parents:
        optimizer = config.optimizer
        assert (optimizer.nu, optimizer.lambd, optimizer.penalty) == (nu, lambd, penalty)
        assert optimizer.nesterov
        assert optimizer.size_scaled == (penalty == "auto"), "else tickets are the whole network"
        assert (optimizer.lr, optimizer.kappa, optimizer.momentum) == (0.1, 1.0, 0.9)
        assert config.epochs == 160
        assert config.model.name == name.removesuffix("-lasso")


def test_fine_tuning_keeps_the_epochs_that_it_rewinds_to() -> None:
    (parent, *_) = configs("finetune-conv-2", "paper")
    assert parent.keep == (0, 30, 60, 90, 100)
    assert parent in configs("layers-conv-2", "paper"), "the table and the figure share their runs"


# ---------------------------------------------------------------------- figures


@pytest.mark.parametrize(
    ("seeds", "title"),
    [
        (1, "ResNet-8 for ResNet-56, ablation-nu, cpu scale; one seed"),
        (2, "ResNet-8 for ResNet-56, ablation-nu, cpu scale; mean and deviation over seeds"),
    ],
)
def test_the_title_of_a_figure_says_what_was_trained(
    seeds: int, title: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    titles: list[str] = []

    def draw(panels: list[Panel], file: Path, title: str, columns: int = 2) -> list[Path]:
        titles.append(title)
        return []

    for module in (ablation, lottery):
        monkeypatch.setattr(module, "draw_panels", draw)
    results = Results("ablation-nu", "cpu")
    for seed in range(seeds):
        labels = {"network": "resnet-56", "setting": "sgd", "seed": seed}
        results.records[str(seed)] = Record(labels, "done", {"curves": {}})
    RECIPES["ablation-nu"].draw(results, tmp_path, RunOptions())
    assert titles[1] == title
    RECIPES["lottery-vgg-16"].draw(Results("", "cpu"), tmp_path, RunOptions())
    RECIPES["lottery-vgg-16-lasso"].draw(Results("", "paper"), tmp_path, RunOptions())
    assert titles[2:] == [
        "vgg-4 for VGG-16, by filter, cpu scale",
        "VGG-16, by weight, paper scale",
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("smoke")


@pytest.mark.parametrize(
    "name",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in RECIPES],
)
def test_the_smoke_scale_runs_to_tables_and_figures(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each takes a new Python; test_memory_is_measured_in_a_process does it once.
    monkeypatch.setattr(cost, "peak", lambda name, config, device: 100.0)
    recipe, options = RECIPES[name], RunOptions(runs=folder / "runs")
    results = reproduce(recipe, "smoke", Executor(), options, folder, threads=1)
    failed = {key: r.message for key, r in results.records.items() if r.status != "done"}
    assert not failed
    assert results.done == len(recipe.jobs("smoke", None))
    out = folder / name
    files = publish(recipe, results, out, options)
    tables = recipe.tables(results)
    assert {f"{table.name}.md" for table in tables} <= {file.name for file in files}
    if any(label in FIGURES for label in recipe.shows):
        figures = [f for f in files if f.suffix in (".png", ".svg")]
        assert len(figures) >= 2
        assert all(f.stat().st_size > 1000 for f in figures)
    assert str(folder) not in json.dumps([r.message for r in results.records.values()])


def test_memory_is_measured_in_a_process_of_its_own() -> None:
    (job,) = RECIPES["cost"].jobs("smoke")
    assert isinstance(job.config, Config)
    assert 5 < cost.peak("dessilbi-mom", job.config, torch.device("cpu")) < 2000


def test_ratios_of_costs_are_taken_within_a_round(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    seconds = {"sgd-mom": [1.0, 10.0, 1.0], "dessilbi-mom": [2.0, 20.0, 2.0], "adam": [1.0] * 3}
    content = {"seconds": seconds, "memory": dict.fromkeys(seconds, 50.0), "device": "cpu"}
    run.write_json("cost.json", content | {"threads": 1})
    (job,) = RECIPES["cost"].jobs("smoke")
    found = RECIPES["cost"].measure(run, job, RunOptions())
    assert (found["dessilbi-mom ratio"], found["dessilbi-mom memory ratio"]) == (2.0, 1.0)

"""The cost table: a training step of VGG-16 with SGD, DessiLBI and Adam, in one run."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

from dessilbi.lab.run import files
from dessilbi.lab.run.config import Config, DataConfig, ModelConfig
from dessilbi.paper import cost
from dessilbi.paper.published import COST
from dessilbi.paper.recipe import Recipe, Scale, seed_list
from dessilbi.paper.sweep.sweep import Job
from dessilbi.paper.tables import Cell, Table

if TYPE_CHECKING:
    from dessilbi.lab.run.directory import RunDir
    from dessilbi.lab.run.options import RunOptions
    from dessilbi.paper.results import Results

ROUNDS: dict[Scale, int] = {"smoke": 3, "cpu": 15, "paper": 100}


def jobs(scale: Scale, seeds: int | None) -> list[Job]:
    """One measurement, repeated ``seeds`` times."""
    smoke = scale == "smoke"
    found = []
    for seed in seed_list(seeds, 1):
        config = Config(
            name=f"cost-{scale}",
            data=DataConfig(name="digits" if smoke else "cifar10"),
            model=ModelConfig(name="digits-net" if smoke else "vgg-16"),
            batch_size=64,
            epochs=0,
            seed=seed,
        )
        found.append(
            Job(
                key=f"cost/seed={seed}",
                config=config,
                labels={"seed": seed},
                work=partial(cost.measure, rounds=ROUNDS[scale]),
                finished=lambda run, config: (run.path / files.COST).is_file(),
            )
        )
    return found


def measure(run: RunDir, job: Job, options: RunOptions) -> dict[str, Any]:
    """Medians and ratios."""
    return cost.summary(json.loads((run.path / files.COST).read_text()))


def tables(results: Results) -> list[Table]:
    """Seconds, megabytes, and both relative to SGD, which can be compared across machines."""
    cells = []
    for what, row, value in (
        ("batch time, s", "mean batch time, s", "seconds"),
        ("time, relative to SGD", "mean batch time, s", "ratio"),
        ("memory, MB", "memory, MB", "memory"),
        ("memory, relative to SGD", "memory, MB", "memory ratio"),
    ):
        base = COST.value(row, "sgd-mom") or 1.0
        for name in cost.OPTIMIZERS:
            theirs = COST.value(row, name)
            if theirs is not None and "ratio" in value:
                theirs = theirs / base
            cells.append(Cell(what, name, tuple(results.values(f"{name} {value}")), theirs))
    note = (
        "On a CPU: processor time of the process (median step), and the growth of its resident "
        "memory; the paper's are wall time and memory of a GTX 2080. Only the ratios compare."
    )
    return [Table("cost", COST.title, cells, digits=4, notes=(note,))]


RECIPE = Recipe(
    name="cost",
    what="time and memory of a training step: SGD, DessiLBI and Adam on VGG-16, batch 64",
    shows=(f"table:{COST.label}",),
    jobs=jobs,
    tables=tables,
    measure=measure,
    costs={"smoke": "half a minute", "cpu": "5 minutes on 2 cores", "paper": "minutes on a GPU"},
    cuts={"smoke": ("digits-net, three rounds",), "cpu": ("15 rounds for 100",)},
)

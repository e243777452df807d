"""The cost table: time and memory of a training step with SGD, DessiLBI and Adam, in one run."""

from __future__ import annotations

import json
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import cross_entropy

from dessilbi.lab.data.load import dataset_info
from dessilbi.lab.run import files
from dessilbi.lab.run.config import Config, DataConfig, ModelConfig
from dessilbi.lab.run.directory import RunDir
from dessilbi.lab.run.environment import describe
from dessilbi.lab.training.build import network_without_data
from dessilbi.lab.training.distributed import pick_device
from dessilbi.lab.training.optimizers import make_optimizer
from dessilbi.paper.competitors import COMPETITORS
from dessilbi.paper.published import COST
from dessilbi.paper.recipe import Recipe, Scale, Setting
from dessilbi.paper.tables import Cell, Table

if TYPE_CHECKING:
    from collections.abc import Callable

    from dessilbi.lab.run.options import RunOptions
    from dessilbi.lab.training.display import Display
    from dessilbi.paper.results import Results
    from dessilbi.paper.sweep import Job

ROUNDS = {"cost-smoke": 3, "cost-cpu": 15, "cost-paper": 100}


class Cost(Recipe):
    """One measurement."""

    def settings(self, scale: Scale) -> list[Setting]:
        """Nothing is trained."""
        config = Config(
            name=f"cost-{scale}",
            data=DataConfig(name="digits" if scale == "smoke" else "cifar10"),
            model=ModelConfig(name="digits-net" if scale == "smoke" else "vgg-16"),
            batch_size=64,
            epochs=0,
        )
        return [Setting(labels={}, config=config)]

    def jobs(self, scale: Scale, seeds: int | None = None) -> list[Job]:
        """Steps are measured instead of training."""
        found = super().jobs(scale, seeds)
        return [replace(job, work=measure_steps, finished=measured) for job in found]

    def measure(self, run: RunDir, job: Job, options: RunOptions) -> dict[str, Any]:
        """Medians, and ratios to SGD: of times within a round."""
        content = json.loads((run.path / files.COST).read_text())
        seconds, memory = content["seconds"], content["memory"]
        found: dict[str, Any] = {"device": content["device"], "threads": content["threads"]}
        for name in COST.columns:
            ratios = [a / b for a, b in zip(seconds[name], seconds["sgd-mom"], strict=True)]
            found[f"{name} seconds"] = round(median(seconds[name]), 6)
            found[f"{name} ratio"] = round(median(ratios), 4)
            found[f"{name} memory"] = round(memory[name], 1)
            found[f"{name} memory ratio"] = round(memory[name] / max(memory["sgd-mom"], 1e-9), 4)
        return found

    def tables(self, results: Results) -> list[Table]:
        """Seconds, megabytes, and both relative to SGD, which can be compared across machines."""
        cells = []
        for what, row, value in (
            ("batch time, s", "mean batch time, s", "seconds"),
            ("time, relative to SGD", "mean batch time, s", "ratio"),
            ("memory, MB", "memory, MB", "memory"),
            ("memory, relative to SGD", "memory, MB", "memory ratio"),
        ):
            sgd, *_ = published = [v or 0.0 for v in COST.rows[row]]
            for name, theirs in zip(COST.columns, published, strict=True):
                ours = tuple(results.values(f"{name} {value}"))
                cells.append(Cell(what, name, ours, theirs / sgd if "ratio" in value else theirs))
        note = (
            "On a CPU: processor time of the process (median step), and the growth of its resident "
            "memory; the paper's are wall time and memory of a GTX 2080. Only the ratios compare."
        )
        return [Table("cost", COST.title, cells, digits=4, notes=(note,))]


def measured(run: RunDir, config: Config) -> bool:
    """Whether the numbers are there."""
    return (run.path / files.COST).is_file()


def measure_steps(config: Config, options: RunOptions, display: Display) -> None:
    """Measure, and leave the numbers in the run directory."""
    run = RunDir.of(config, options.runs)
    device = pick_device(options.device)
    with run.lock():
        found: dict[str, Any] = {
            "seconds": times(config, device),
            "memory": {name: peak(name, config, device) for name in COST.columns},
            "device": str(device),
            "threads": torch.get_num_threads(),
        }
        run.write(files.ENVIRONMENT, describe(device, 1))
        run.write_json(files.COST, found)


def times(config: Config, device: torch.device) -> dict[str, list[float]]:
    """Seconds of a step; the optimizers take turns, so that they share what else is going on."""
    # On a CPU the time of this process only: other work on the machine does not count.
    clock = time.process_time if device.type == "cpu" else time.perf_counter
    steps = {name: _stepper(name, config, device) for name in COST.columns}
    for step in steps.values():
        step()
    found: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(ROUNDS[config.name]):
        for name, step in steps.items():
            before = clock()
            step()
            found[name].append(clock() - before)
    return found


def _stepper(name: str, config: Config, device: torch.device) -> Callable[[], None]:
    model = network_without_data(config).to(device)
    optimizer = make_optimizer(model, COMPETITORS[name])
    info = dataset_info(config.data.name)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(config.batch_size, *info.shape, generator=generator).to(device)
    y = torch.randint(len(info.classes), (config.batch_size,), generator=generator).to(device)

    def step() -> None:
        optimizer.zero_grad()
        torch.autograd.backward(cross_entropy(model(x), y))
        optimizer.step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    return step


def peak(name: str, config: Config, device: torch.device) -> float:
    """Megabytes that three steps need, in a process of their own."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(_peak_here, name, config, device, torch.get_num_threads()).result()


def _peak_here(name: str, config: Config, device: torch.device, threads: int) -> float:
    torch.set_num_threads(threads)
    before = _kilobytes("VmRSS")
    step = _stepper(name, config, device)
    for _ in range(3):
        step()
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    return (_kilobytes("VmHWM") - before) / 1024


def _kilobytes(field: str) -> int:
    # getrusage would count the peak of the parent process as well.
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field))

"""What a training step costs with each optimizer: time as a ratio within a run, and memory."""

from __future__ import annotations

import pickle
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import cross_entropy

from dessilbi.lab.data.load import dataset_info
from dessilbi.lab.run.directory import RunDir
from dessilbi.lab.run.environment import describe
from dessilbi.lab.run.files import COST, ENVIRONMENT
from dessilbi.lab.training.build import network_without_data
from dessilbi.lab.training.distributed import pick_device
from dessilbi.lab.training.optimizers import make_optimizer
from dessilbi.paper.optimizers import COMPETITORS
from dessilbi.paper.sweep.work import JobSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from dessilbi.lab.run.config import Config
    from dessilbi.lab.run.options import RunOptions
    from dessilbi.lab.training.display import Display

OPTIMIZERS = ("sgd-mom", "dessilbi-mom", "adam")


def measure(config: Config, options: RunOptions, display: Display, *, rounds: int) -> None:
    """The work of a job: measure, and leave the numbers in the run directory."""
    run = RunDir.of(config, options.runs)
    device = pick_device(options.device)
    with run.lock():
        found: dict[str, Any] = {
            "seconds": times(config, device, rounds=rounds),
            "memory": {name: peak(name, config, options) for name in OPTIMIZERS},
            "device": str(device),
            "threads": torch.get_num_threads(),
        }
        run.write(ENVIRONMENT, describe(device, 1))
        run.write_json(COST, found)


def times(config: Config, device: torch.device, rounds: int) -> dict[str, list[float]]:
    """Seconds of a step; the optimizers take turns, so that they share what else is going on."""
    steps = {name: _stepper(name, config, device) for name in OPTIMIZERS}
    for step in steps.values():
        step()
    found: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            _settle(device)
            before = _clock(device)
            step()
            _settle(device)
            found[name].append(_clock(device) - before)
    return found


def ratio(seconds: Mapping[str, list[float]], name: str, base: str = OPTIMIZERS[0]) -> list[float]:
    """Ratios within a round."""
    return [a / b for a, b in zip(seconds[name], seconds[base], strict=True)]


def _clock(device: torch.device) -> float:
    # On a CPU the time of this process only: other work on the machine does not count.
    return time.process_time() if device.type == "cpu" else time.perf_counter()


def _settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


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

    return step


# ---------------------------------------------------------------------- memory


def peak(name: str, config: Config, options: RunOptions) -> float:
    """Megabytes that three steps need, in a process of their own."""
    spec = pickle.dumps(JobSpec(config, options, threads=torch.get_num_threads()))
    command = [sys.executable, "-m", "dessilbi.paper.cost", name]
    done = subprocess.run(command, input=spec, capture_output=True, check=False)
    if done.returncode:
        reason = done.stderr.decode(errors="replace").strip()
        raise RuntimeError(f"memory of {name} could not be measured: {reason}")
    return float(done.stdout.splitlines()[-1])


def _peak_here(name: str, spec: JobSpec) -> float:
    device = pick_device(spec.options.device)
    if spec.threads:
        torch.set_num_threads(spec.threads)
    before = _kilobytes("VmRSS")
    step = _stepper(name, spec.config, device)
    for _ in range(3):
        step()
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    return (_kilobytes("VmHWM") - before) / 1024


def _kilobytes(field: str) -> int:
    # getrusage would count the peak of the parent process as well.
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field))


def summary(content: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers of a table from what :func:`measure` left."""
    found: dict[str, Any] = {"device": content["device"], "threads": content["threads"]}
    for name in OPTIMIZERS:
        ratios = ratio(content["seconds"], name)
        found[f"{name} seconds"] = round(statistics.median(content["seconds"][name]), 6)
        found[f"{name} ratio"] = round(statistics.median(ratios), 4)
        found[f"{name} memory"] = round(content["memory"][name], 1)
        memory = content["memory"][name] / max(content["memory"][OPTIMIZERS[0]], 1e-9)
        found[f"{name} memory ratio"] = round(memory, 4)
    return found


if __name__ == "__main__":
    print(_peak_here(sys.argv[1], pickle.load(sys.stdin.buffer)))

"""Two processes by torchrun: the path of one, files from rank 0, restarts that leave no trace."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn

from dessilbi.lab.run.config import ModelConfig, OptimizerConfig, to_json
from dessilbi.lab.run.directory import RunDir
from dessilbi.lab.run.files import LAST
from dessilbi.lab.run.methods import GradualPruning, Method, NestedWeights, NestedWidths
from dessilbi.lab.run.options import RunOptions
from dessilbi.lab.run.recipes import digits
from dessilbi.lab.training.distributed import World
from dessilbi.lab.training.loop import train
from dessilbi.lab.training.shared_batchnorm import SharedBatchNorm, share_batchnorm
from lab_runs import PATIENCE, SMALL, STEPS, TEXT, assert_same_run, command, uninterrupted, wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from dessilbi.lab.run.config import Config

# With BatchNorm, filters and a batch whose halves are never equal.
DIGITS = replace(digits(), dtype="float64", epochs=3, batch_size=95)
DIGITS = replace(DIGITS, optimizer=replace(DIGITS.optimizer, nu=2.0))

SPY = """
# Notes every file that a process other than rank 0 changes below the folder of runs.
import os, sys
if os.environ.get("RANK", "0") != "0":
    runs, notes = os.environ["SPIED_RUNS"], open(os.environ["SPY_NOTES"], "a", buffering=1)
    notes.write("awake\\n")
    changes = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate"}
    def note(event, arguments):
        written = event == "open" and isinstance(arguments[2], int) and arguments[2] & 3
        if (written or event in changes) and str(arguments[0]).startswith(runs):
            notes.write(f"{event} {arguments[0]}\\n")
    sys.addaudithook(note)
"""

DYING_MODEL = """
import os, signal
from pathlib import Path
from torch import nn

class Net(nn.Module):
    '''Dropout, so that restarts need each rank's random numbers; one rank dies once.'''

    def __init__(self, num_classes):
        super().__init__()
        self.net = nn.Sequential(
            nn.Flatten(), nn.Linear(64, 40), nn.Dropout(0.5), nn.Linear(40, num_classes)
        )
        self.calls = 0

    def forward(self, x):
        self.calls += self.training
        marker = os.environ.get("DEATH")
        if marker and self.calls == int(os.environ["DEATH_STEP"]) and self.training:
            if os.environ["RANK"] == os.environ["DEATH_RANK"] and not Path(marker).exists():
                Path(marker).touch()
                os.kill(os.getpid(), signal.SIGKILL)
        return self.net(x)
"""


def torchrun(config: Config, folder: Path, *options: str, **environment: str) -> RunDir:
    """Train a configuration in two processes, ``folder`` being the current directory."""
    (folder / "config.json").write_text(to_json(config))
    runs = folder / "runs"
    arguments = ["--standalone", "--nproc-per-node", "2", *options]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", *arguments),
            *command(folder / "config.json", runs),
        ],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("done: ") == 1, done.stdout
    return RunDir(runs / config.run_name)


@pytest.mark.parametrize(
    "optimizer",
    [DIGITS.optimizer, OptimizerConfig(base="adamw", lr=1e-3, weight_decay=0.01, tau=5.0, c=1.0)],
    ids=lambda o: o.base,
)
def test_two_processes_walk_the_path_of_one(optimizer: OptimizerConfig, tmp_path: Path) -> None:
    config = replace(DIGITS, optimizer=optimizer)
    (tmp_path / "sitecustomize.py").write_text(SPY)
    notes = tmp_path / "notes"
    pair = torchrun(
        config,
        tmp_path,
        PYTHONPATH=os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]),
        SPIED_RUNS=str(tmp_path / "runs"),
        SPY_NOTES=str(notes),
    )
    alone = uninterrupted(config, tmp_path / "alone")

    left, right = pair.load(LAST), alone.load(LAST)
    assert left is not None
    assert right is not None
    assert left.tensors.keys() == right.tensors.keys()
    for name, tensor in right.tensors.items():
        if name != "random/cpu":
            torch.testing.assert_close(left.tensors[name], tensor, rtol=0, atol=1e-9)
    twins = [name for name in right.tensors if name.endswith("/v")]
    assert len(twins) == 3
    assert 0.1 < alone.records()[1]["density"] < alone.records()[2]["density"]
    for one, other in zip(pair.records(), alone.records(), strict=True):
        assert one.pop("train_loss") == pytest.approx(other.pop("train_loss"), abs=1e-9)
        assert one.pop("loss") == pytest.approx(other.pop("loss"), abs=1e-9)
        assert one.pop("sparse_loss") == pytest.approx(other.pop("sparse_loss"), abs=1e-9)
        assert one == other  # accuracies, densities of every layer

    assert set(notes.read_text().splitlines()) == {"awake"}, "only rank 0 may write"
    assert json.loads((pair.path / "environment.json").read_text())["processes"] == 2
    assert sorted(p.name for p in pair.path.iterdir()) == sorted(
        p.name for p in alone.path.iterdir()
    )


def test_two_processes_share_the_windows_of_a_text(texts: Path, tmp_path: Path) -> None:
    """Halves of a batch of 7 are unequal, and each window has several labels."""
    config = replace(TEXT, dtype="float64")
    pair = torchrun(config, tmp_path, DESSILBI_DATA=str(texts))
    alone = train(config, RunOptions(runs=tmp_path / "alone", data_dir=texts))
    left, right = pair.load(LAST), alone.load(LAST)
    assert left is not None
    assert right is not None
    for name, tensor in right.tensors.items():
        if name != "random/cpu":
            torch.testing.assert_close(left.tensors[name], tensor, rtol=0, atol=1e-9)
    for one, other in zip(pair.records(), alone.records(), strict=True):
        assert one["train_loss"] == pytest.approx(other["train_loss"], abs=1e-9)
        assert one["train_accuracy"] == other["train_accuracy"]
        assert one["density"] == other["density"]


@pytest.mark.slow
def test_two_processes_in_half_precision_learn_what_one_does(tmp_path: Path) -> None:
    """Up to bfloat16's rounding, which is another where halves of a batch are summed apart."""
    config = replace(DIGITS, dtype="float32", precision="bf16", epochs=2)
    pair = torchrun(config, tmp_path)
    alone = uninterrupted(config, tmp_path / "alone")
    for one, other in zip(pair.records(), alone.records(), strict=True):
        assert one["train_loss"] == pytest.approx(other["train_loss"], abs=0.02)
        assert one["train_accuracy"] == pytest.approx(other["train_accuracy"], abs=2)


RAMP = {"ramp_start": 0.1, "ramp_end": 0.3, "full_fraction": 0.2, "rank_every": 5}
METHODS: dict[str, Method] = {
    "weights": NestedWeights(min_density=0.1, **RAMP),
    "widths": NestedWidths(min_density=0.1, **RAMP),
    "pruning": GradualPruning(density=0.3, every=5),
    "pruning by Gamma": GradualPruning(density=0.3, every=5, by="gamma"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_a_method_in_two_processes_is_that_of_one(name: str, tmp_path: Path) -> None:
    config = replace(DIGITS, method=METHODS[name])
    if name == "widths":
        config = replace(config, optimizer=replace(config.optimizer, exclude=("fc",)))
    pair = torchrun(config, tmp_path)
    alone = uninterrupted(config, tmp_path / "alone")
    left, right = pair.load(LAST), alone.load(LAST)
    assert left is not None
    assert right is not None
    kept = "pruning/mask." if "pruning" in name else "nested/ranks/"
    assert any(tensor.startswith(kept) for tensor in right.tensors)
    for name, tensor in right.tensors.items():
        if name != "random/cpu":
            torch.testing.assert_close(left.tensors[name], tensor, rtol=0, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["full", "bf16", "fp16"])
def test_a_killed_worker_is_restarted_from_the_last_checkpoint(
    precision: Literal["full", "bf16", "fp16"], tmp_path: Path
) -> None:
    config = replace(
        SMALL, model=ModelConfig(name="dying:Net"), batch_size=255, precision=precision
    )
    folders = whole, restarted = tmp_path / "whole", tmp_path / "restarted"
    for folder in folders:
        folder.mkdir()
        (folder / "dying.py").write_text(DYING_MODEL)
    reference = torchrun(config, whole)
    marker = restarted / "died"
    run = torchrun(
        config,
        restarted,
        "--max-restarts=1",
        DEATH=str(marker),
        DEATH_RANK="1",
        DEATH_STEP=str(STEPS + 3),
    )
    assert marker.exists()
    assert_same_run(run, reference)


# ---------------------------------------------------------------------- the parts


def test_a_team_of_one_needs_no_torchrun() -> None:
    alone = World()
    assert alone.is_main
    assert alone.sum([1.5, 2], torch.device("cpu")) == [1.5, 2]
    alone.wait()


def _network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 3, 3),
        nn.BatchNorm2d(3, momentum=None),
        nn.Sequential(nn.Flatten(), nn.Linear(12, 4), nn.BatchNorm1d(4, affine=False, eps=1e-3)),
    ).double()


def _shared_rank(rank: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/join", rank=rank, world_size=2)
    torch.set_num_threads(1)
    model = share_batchnorm(_network(), torch.device("cpu"))
    for x in _inputs():
        part = x[:3] if rank == 0 else x[3:]
        (model(part) ** 3).sum().backward()
    for p in model.parameters():
        dist.all_reduce(p.grad)
    if rank == 0:
        gradients = {f"{name}.grad": p.grad for name, p in model.named_parameters()}
        torch.save({**model.state_dict(), **gradients}, f"{folder}/result.pt")
    dist.destroy_process_group()


def _inputs() -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [5 + torch.randn(8, 2, 4, 4, generator=generator).double() for _ in range(3)]


@pytest.mark.slow
def test_shared_batchnorm_is_batchnorm_of_the_whole_batch(tmp_path: Path) -> None:
    """Gradients and statistics, with unequal shares."""
    mp.spawn(_shared_rank, args=(str(tmp_path),), nprocs=2)
    shared = torch.load(tmp_path / "result.pt")
    model = _network()
    for x in _inputs():
        (model(x) ** 3).sum().backward()
    gradients = {f"{name}.grad": p.grad for name, p in model.named_parameters()}
    for name, tensor in {**model.state_dict(), **gradients}.items():
        torch.testing.assert_close(shared[name], tensor, rtol=1e-9, atol=1e-9)


def test_shared_batchnorm_keeps_parameters_names_and_evaluation() -> None:
    model, plain = _network(), _network()
    before = dict(model.named_parameters())
    shared = share_batchnorm(model, torch.device("cpu"))
    assert sum(isinstance(m, SharedBatchNorm) for m in shared.modules()) == 2
    assert all(p is before[name] for name, p in shared.named_parameters())
    assert shared.state_dict().keys() == plain.state_dict().keys()
    assert share_batchnorm(shared, torch.device("cpu")) is shared
    (x, *_) = _inputs()
    assert torch.equal(shared.eval()(x), plain.eval()(x))
    with torch.no_grad():  # a recalibration: every rank sees the same images
        assert torch.equal(shared.train()(x), plain.train()(x))


@pytest.mark.slow
def test_torchrun_that_is_asked_to_stop_leaves_a_run_that_continues(tmp_path: Path) -> None:
    """A signal to torchrun reaches the workers at different steps; nothing may be spoilt."""
    config = replace(SMALL, epochs=60, batch_size=96)
    (tmp_path / "config.json").write_text(to_json(config))
    run = RunDir(tmp_path / "runs" / config.run_name)
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", "2", *command(tmp_path / "config.json", run.path.parent)),
        ],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_for(lambda: len(run.records()) >= 2, process)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=PATIENCE)
    assert process.returncode != 0
    last = run.load(LAST)
    assert last is not None
    assert 0 < last.state["epoch"] < config.epochs
    resumed = torchrun(config, tmp_path)
    assert len(resumed.records()) == config.epochs

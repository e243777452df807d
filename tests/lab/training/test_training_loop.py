"""What a run writes and says: metrics, best and kept checkpoints, NaN, TensorBoard."""

from __future__ import annotations

import importlib.util
import json
import math
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

from dessilbi.lab.data import DataError, load_dataset
from dessilbi.lab.models import ModelError, make_model
from dessilbi.lab.run.checkpoint import load_model
from dessilbi.lab.run.config import Config, ConfigError, DataConfig, OptimizerConfig, ScheduleConfig
from dessilbi.lab.run.directory import RunDir, RunError
from dessilbi.lab.run.files import BEST, LAST
from dessilbi.lab.run.options import RunOptions
from dessilbi.lab.training.distributed import World, pick_device
from dessilbi.lab.training.errors import TrainingError
from dessilbi.lab.training.evaluate import evaluate
from dessilbi.lab.training.loop import train
from dessilbi.lab.training.state import Training
from lab_runs import (
    SMALL,
    STEPS,
    assert_same_run,
    changed,
    contents,
    uninterrupted,
    weights_of,
    with_model,
)

if TYPE_CHECKING:
    from pathlib import Path

JUDGED = replace(
    SMALL,
    data=DataConfig(validation=300),
    optimizer=replace(SMALL.optimizer, lr=0.5),  # too high on purpose: not every epoch is better
    schedule=ScheduleConfig(),
    epochs=6,
    keep=(0, 2, 5),
)


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    return uninterrupted(JUDGED, tmp_path_factory.mktemp("judged"))


def network(config: Config, weights: dict[str, torch.Tensor]) -> nn.Module:
    model = make_model(config.model.name, num_classes=10, in_channels=1, input_size=8)
    load_model(model, weights)
    return model


# ---------------------------------------------------------------------- metrics and checkpoints


def test_a_line_an_epoch_with_everything_in_it(tmp_path: Path) -> None:
    run = uninterrupted(SMALL, tmp_path)
    lines = (run.path / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    assert [r["epoch"] for r in records] == [1, 2, 3]
    assert [r["lr"] for r in records] == pytest.approx([0.1, 0.1, 0.01])
    assert {r["judged_on"] for r in records} == {"test"}
    for r in records:
        assert r.keys() == {
            *("epoch", "lr", "nu", "train_loss", "train_accuracy", "judged_on", "loss", "accuracy"),
            *("sparse_loss", "sparse_accuracy", "recalibrated_accuracy"),
            *("density", "densities"),
        }
        assert r["densities"].keys() == {"fc1.weight", "fc2.weight", "fc3.weight"}
    assert 0 < records[0]["density"] < records[-1]["density"] < 1
    assert [r["epoch"] for r in run.records("timing.jsonl")] == [1, 2, 3]


@pytest.mark.parametrize(
    "wrong",
    [
        replace(SMALL, optimizer=replace(SMALL.optimizer, lr=-1.0)),
        replace(SMALL, model=replace(SMALL.model, name="no-such-net")),
        replace(SMALL, data=replace(SMALL.data, name="mnist")),
    ],
    ids=["optimizer", "model", "data"],
)
def test_a_run_that_cannot_begin_leaves_nothing(tmp_path: Path, wrong: Config) -> None:
    with pytest.raises((ConfigError, ModelError, DataError)):
        train(wrong, RunOptions(runs=tmp_path / "runs", data_dir=tmp_path))
    assert list((tmp_path / "runs").iterdir()) == []


def test_other_optimizers_have_no_gamma(tmp_path: Path) -> None:
    run = uninterrupted(replace(SMALL, optimizer=OptimizerConfig(name="adam", lr=1e-3)), tmp_path)
    assert "density" not in run.records()[-1]


def test_the_same_configuration_gives_the_same_files(tmp_path: Path) -> None:
    first = uninterrupted(SMALL, tmp_path / "first")
    assert_same_run(uninterrupted(SMALL, tmp_path / "second"), first)
    assert contents(first).keys() >= {"config.json", "metrics.jsonl", "init.safetensors"}


def test_density_is_the_share_of_gammas_support(judged: RunDir) -> None:
    last = judged.load(LAST)
    assert last is not None
    lambd = JUDGED.optimizer.lambd
    twins = [v for name, v in last.part("optimizer").items() if name.endswith("/v")]
    entered = sum(int((v.abs() > lambd).sum()) for v in twins)
    density = entered / sum(v.numel() for v in twins)
    assert judged.records()[-1]["density"] == pytest.approx(density, abs=1e-12)


def test_held_out_images_judge_the_run(judged: RunDir) -> None:
    data = load_dataset("digits", validation=300)
    assert data.validation is not None
    score = evaluate(network(JUDGED, weights_of(judged)), data.validation)
    record = judged.records()[-1]
    assert record["judged_on"] == "validation"
    assert record["accuracy"] == score.accuracy
    assert record["loss"] == pytest.approx(score.mean_loss, rel=1e-6)


def test_the_best_checkpoint_is_the_first_best_epoch(judged: RunDir) -> None:
    accuracies = [r["accuracy"] for r in judged.records()]
    best = accuracies.index(max(accuracies)) + 1
    assert best < JUDGED.epochs, "the example must have a best epoch that is not the last"
    checkpoint = judged.load(BEST)
    assert checkpoint is not None
    assert checkpoint.state["epoch"] == best
    assert checkpoint.state["best"] == max(accuracies)
    data = load_dataset("digits", validation=300)
    assert data.validation is not None
    model = network(JUDGED, weights_of(judged, BEST))
    assert evaluate(model, data.validation).accuracy == max(accuracies)


def test_kept_epochs_have_the_weights_of_that_epoch(judged: RunDir, tmp_path: Path) -> None:
    kept = sorted(p.name for p in judged.path.glob("checkpoint-[0-9]*"))
    assert kept == ["checkpoint-0", "checkpoint-2", "checkpoint-5"]
    start = judged.read_tensors("init.safetensors")
    for name, weight in weights_of(judged, "checkpoint-0").items():
        assert torch.equal(weight, start[name])
    shorter = uninterrupted(replace(JUDGED, epochs=2, keep=()), tmp_path)
    for name, weight in weights_of(judged, "checkpoint-2").items():
        assert torch.equal(weight, weights_of(shorter)[name])


def test_the_environment_is_described(judged: RunDir) -> None:
    facts = json.loads((judged.path / "environment.json").read_text())
    assert facts["packages"]["torch"] == torch.__version__
    assert facts["device"] == "cpu"
    assert (facts["threads"], facts["processes"]) == (1, 1)


# ---------------------------------------------------------------------- a loss of NaN


def test_a_loss_of_nan_stops_the_run_with_advice(tmp_path: Path) -> None:
    config = replace(changed(SMALL, lr=1e6), keep=())
    with pytest.raises(TrainingError) as caught:
        train(config, RunOptions(runs=tmp_path))
    message = str(caught.value)
    assert "the loss is not finite at step 2 (epoch 1)" in message
    assert "the largest gradient is inf, in fc1.weight" in message
    assert "Lower the learning rate (now 1e+06)" in message
    assert "--schedule.warmup" in message
    assert "lr < nu" in message
    run = RunDir(tmp_path / config.run_name)
    assert str(run.path / LAST) in message
    assert all(w.isfinite().all() for w in weights_of(run).values())


class Exploding(nn.Module):
    """Sends back an infinite gradient of a finite loss, at one step."""

    def __init__(self, step: int, num_classes: int) -> None:
        super().__init__()
        self.fc = nn.Linear(64, num_classes)
        self.left = step

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits = self.fc(x.flatten(1))
        if self.training:
            if self.left == 0:
                logits.register_hook(lambda grad: grad * math.inf)
            self.left -= 1
        return logits


@pytest.mark.parametrize("save_minutes", [0.0, 10.0])
@pytest.mark.parametrize("step", [2 * STEPS - 1, 2 * STEPS - 2, 0])
def test_broken_weights_never_replace_a_good_checkpoint(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, step: int, save_minutes: float
) -> None:
    """Also when the loss was still finite and it is the last step before a save."""
    model = with_model(monkeypatch, lambda num_classes: Exploding(step, num_classes))
    config = replace(SMALL, model=model, keep=())
    with pytest.raises(TrainingError, match=r"the largest gradient is inf, in fc\.weight"):
        train(config, RunOptions(runs=tmp_path, save_minutes=save_minutes))
    run = RunDir(tmp_path / config.run_name)
    last = run.load(LAST)
    assert last is not None
    assert all(t.isfinite().all() for t in last.tensors.values())
    assert last.state["epoch"] == step // STEPS
    assert last.state["batch"] == (step % STEPS if save_minutes == 0 else 0)
    assert len(run.records()) == step // STEPS


def test_a_finite_gradient_is_told_with_its_size(tmp_path: Path) -> None:
    options, cpu = RunOptions(runs=tmp_path), torch.device("cpu")
    t = Training.make(SMALL, options, RunDir(tmp_path), cpu, World(), None)
    for size, p in enumerate(t.model.parameters()):
        p.grad = torch.full_like(p, -float(size))
    with pytest.raises(TrainingError, match=r"largest gradient is 5, in fc3\.bias"):
        t.refuse_nonfinite(torch.tensor(float("inf")))


# ---------------------------------------------------------------------- TensorBoard


@pytest.mark.skipif(importlib.util.find_spec("tensorboard") is None, reason="needs tensorboard")
@pytest.mark.filterwarnings("ignore::DeprecationWarning:tensorboard")
@pytest.mark.filterwarnings("ignore::DeprecationWarning:google")
def test_tensorboard_shows_the_metrics(tmp_path: Path) -> None:
    run = train(SMALL, RunOptions(runs=tmp_path, tensorboard=True))
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events: dict[tuple[str, int], float] = {}
    for file in (run.path / "tensorboard").iterdir():
        reader = EventAccumulator(str(file)).Reload()
        for tag in reader.Tags()["scalars"]:
            events |= {(tag, event.step): event.value for event in reader.Scalars(tag)}
    for record in run.records():
        for name in ("loss", "accuracy", "sparse_accuracy", "density", "train_loss", "lr"):
            assert events[name, record["epoch"]] == pytest.approx(record[name], rel=1e-6)


def test_without_asking_there_are_no_events(judged: RunDir) -> None:
    assert not (judged.path / "tensorboard").exists()


def test_missing_tensorboard_is_found_out_before_training(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ModuleNotFoundError, match="tensorboard"):
        train(SMALL, RunOptions(runs=tmp_path, tensorboard=True))
    assert not (tmp_path / SMALL.run_name / LAST).exists()


@pytest.mark.skipif(importlib.util.find_spec("tensorboard") is None, reason="needs tensorboard")
def test_events_that_cannot_be_written_are_a_clear_error(tmp_path: Path) -> None:
    run = RunDir.of(SMALL, tmp_path)
    (run.path / "tensorboard").write_text("in the way")
    with pytest.raises(RunError, match=f"cannot write {run.path}/tensorboard"):
        train(SMALL, RunOptions(runs=tmp_path, tensorboard=True))


# ---------------------------------------------------------------------- devices


def test_devices_that_cannot_be_had_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert pick_device("auto") == pick_device("cpu") == torch.device("cpu")
    for name in ("cuda", "cuda:1"):
        with pytest.raises(ValueError, match="torch finds no GPU here; use --device cpu"):
            pick_device(name)
    with pytest.raises(ValueError, match="device must be auto, cpu, cuda or cuda:N, got 'gpu'"):
        pick_device("gpu")


def test_each_process_takes_its_own_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert pick_device("auto") == pick_device("cuda") == torch.device("cuda", 3)
    assert pick_device("cuda:1") == torch.device("cuda", 1)
    assert [device.index for device in taken] == [3, 3, 1]

"""Language models: the loss of every character, what is recorded of it, and where a run goes on."""

from __future__ import annotations

import io
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
import torch
from rich.console import Console
from torch import nn
from torch.nn.functional import cross_entropy

from dessilbi.lab.analysis.networks import trained_network
from dessilbi.lab.analysis.subnetworks import open_path
from dessilbi.lab.data import batches, load_dataset
from dessilbi.lab.models import make_model
from dessilbi.lab.run.config import OptimizerConfig, ScheduleConfig
from dessilbi.lab.run.methods import GradualPruning
from dessilbi.lab.run.options import RunOptions
from dessilbi.lab.run.recipes import find_recipe
from dessilbi.lab.training.build import fresh_network, load_data
from dessilbi.lab.training.evaluate import BATCH, evaluate
from dessilbi.lab.training.loop import train
from dessilbi.lab.training.optimizers import twin_groups
from dessilbi.lab.training.terminal import TerminalDisplay
from dessilbi.path import Mask
from lab_runs import TEXT, Crash, CrashAt, assert_same_run, weights_of

if TYPE_CHECKING:
    from pathlib import Path

    from dessilbi.lab.run.directory import RunDir

STEPS = 5


def test_loss_and_accuracy_are_of_every_character(text_run: RunDir, texts: Path) -> None:
    data = load_data(TEXT, texts, download=False)
    model = trained_network(text_run, data).eval()
    loss, right, count = 0.0, 0, 0
    for x, y in batches(data.test, BATCH, seed=0, epoch=0, shuffle=False):
        logits = model(x).detach()
        for t in range(8):
            loss += float(cross_entropy(logits[:, t], y[:, t], reduction="sum"))
            right += int((logits[:, t].argmax(1) == y[:, t]).sum())
        count += y.numel()
    score, last = evaluate(model, data.test), text_run.records()[-1]
    assert count == 8 * len(data.test) == score.labels
    assert score.mean_loss == last["loss"] == pytest.approx(loss / count, rel=1e-6)
    assert score.accuracy == last["accuracy"] == 100 * right / count


def test_a_record_has_the_loss_of_the_support_too(text_run: RunDir) -> None:
    for record in text_run.records():
        assert record["judged_on"] == "validation"
        assert record.keys() >= {"sparse_loss", "sparse_accuracy", "density", "train_accuracy"}
        assert record["recalibrated_accuracy"] == record["sparse_accuracy"]
        assert 0 < record["train_accuracy"] < 100
    first, *_, last = text_run.records()
    assert last["train_loss"] < first["train_loss"] < math.log(256)
    assert [r["images"] for r in text_run.records("timing.jsonl")] == [30, 30, 30]


@pytest.mark.parametrize("after", [1, STEPS + 3, 2 * STEPS])
def test_an_interrupted_run_ends_bit_for_bit_the_same(
    text_run: RunDir, texts: Path, tmp_path: Path, after: int
) -> None:
    place = RunOptions(runs=tmp_path, data_dir=texts, save_minutes=0)
    with pytest.raises(Crash):
        train(TEXT, place, CrashAt(after))
    assert_same_run(train(TEXT, place), text_run)


# ---------------------------------------------------------------------- neurons


def test_a_neuron_is_a_row_and_a_column_and_nothing_else_has_a_twin() -> None:
    model = make_model("char-gpt-tiny", num_classes=9, in_channels=0, input_size=8)
    dense, *neurons = twin_groups(model, OptimizerConfig())
    assert dense["penalty"] is None
    assert len(neurons) == len(model.blocks)
    for i, group in enumerate(neurons):
        (first, row), (second, column) = group["params"]
        assert (first, second) == (f"blocks.{i}.mlp.fc.weight", f"blocks.{i}.mlp.proj.weight")
        assert group["tied"] is True
        assert group["group_dim"] == (0, 1)
        assert row.shape[0] == column.shape[1] == 64
    names = {name for group in (dense, *neurons) for name, _ in group["params"]}
    assert names == {name for name, _ in model.named_parameters()}


def test_the_path_knows_that_a_row_and_a_column_enter_together(text_run: RunDir) -> None:
    path = open_path(text_run)
    assert [layer.tied for layer in path.layers] == [
        f"blocks.{i}.mlp.fc.weight" for i in (0, 0, 1, 1)
    ]
    support = path.support(3)
    for i in range(2):
        rows, columns = (support[f"blocks.{i}.mlp.{name}.weight"] for name in ("fc", "proj"))
        assert torch.equal(rows.any(1), columns.any(0))
        assert 0 < rows.float().mean() < 1


@pytest.mark.parametrize("density", [0.1, 0.5])
def test_a_subnetwork_of_a_budget_has_whole_neurons(text_run: RunDir, density: float) -> None:
    mask = open_path(text_run).mask(density=density)
    assert 0.9 * density < mask.density <= density
    assert_whole_neurons(mask)


def test_pruning_by_size_leaves_whole_neurons(texts: Path, tmp_path: Path) -> None:
    config = replace(
        TEXT,
        optimizer=OptimizerConfig(name="adamw", lr=0.01),
        method=GradualPruning(density=0.25, begin=0.5, end=0.5),
    )
    pruned = train(config, RunOptions(runs=tmp_path, data_dir=texts))
    weights = weights_of(pruned)
    mask = Mask({n: w != 0 for n, w in weights.items() if ".mlp." in n})
    assert mask.density == 0.25
    assert_whole_neurons(mask)
    assert all(bool(w.all()) for n, w in weights.items() if ".mlp." not in n)


def assert_whole_neurons(mask: Mask) -> None:
    """A row of one matrix for each column of the other, and no other weight."""
    for i in range(2):
        rows, columns = mask[f"blocks.{i}.mlp.fc.weight"], mask[f"blocks.{i}.mlp.proj.weight"].T
        assert torch.equal(rows, rows[:, :1].expand_as(rows))
        assert torch.equal(columns, rows)


def test_a_network_from_elsewhere_may_know_its_groups() -> None:
    class Net(nn.Module):
        twin_patterns: ClassVar = {"up": {"penalty": "group_lasso"}}

        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(3, 4), nn.Linear(4, 2)

    def penalties(**options: Any) -> dict[str, str | None]:
        groups = twin_groups(Net(), OptimizerConfig(**options))
        return {name: group["penalty"] for group in groups for name, _ in group["params"]}

    only_up = {"up.weight": "group_lasso", "down.weight": None, "up.bias": None, "down.bias": None}
    assert penalties() == only_up
    assert penalties(exclude=("up",)) == dict.fromkeys(only_up)
    asked = {"up.weight": "lasso", "down.weight": "lasso", "up.bias": None, "down.bias": None}
    assert penalties(penalty="lasso") == asked


# ---------------------------------------------------------------------- AdamW


def test_adamw_learns_what_follows(texts: Path, tmp_path: Path) -> None:
    config = replace(
        TEXT, optimizer=OptimizerConfig(name="adamw", lr=0.02, weight_decay=0.1), epochs=10
    )
    trained = train(config, RunOptions(runs=tmp_path, data_dir=texts))
    last = trained.records()[-1]
    best = math.log(3) / 2  # one of three vowels, then its letter
    assert best < last["loss"] < best + 0.2
    assert last["accuracy"] > 60
    assert "sparse_loss" not in last


def test_adamw_is_that_of_torch(texts: Path, tmp_path: Path) -> None:
    optimizer = OptimizerConfig(name="adamw", lr=0.01, weight_decay=0.1)
    config = replace(TEXT, optimizer=optimizer, schedule=ScheduleConfig(), epochs=1, keep=(0,))
    ours = weights_of(train(config, RunOptions(runs=tmp_path, data_dir=texts)))
    data = load_dataset("tiny.txt", data_dir=texts, context=8, images=30)
    model = fresh_network(config, data)
    opt = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
    for x, y in batches(data.train, 7, seed=0, epoch=0, augment=data.augmentation):
        opt.zero_grad()
        cross_entropy(model(x).mT, y).backward()
        opt.step()
    for name, p in model.named_parameters():
        torch.testing.assert_close(ours[name], p.detach(), rtol=1e-4, atol=1e-5)


def test_the_terminal_shows_losses(texts: Path, tmp_path: Path) -> None:
    file = io.StringIO()
    with TerminalDisplay(Console(file=file, width=140, highlight=False)) as display:
        run = train(TEXT, RunOptions(runs=tmp_path, data_dir=texts), display)
    lines = file.getvalue().splitlines()
    assert lines[0].startswith("char-gpt-tiny on tiny.txt (30 training windows from ")
    assert lines[-4].split() == ["epoch", "loss", "dense", "sparse", "density", "windows/s"]
    for line, r in zip(lines[-3:], run.records(), strict=True):
        names = ("train_loss", "loss", "sparse_loss", "density")
        assert line.split()[:-1] == [f"{r['epoch']}/3", *(f"{r[name]:.4f}" for name in names)]


@pytest.mark.parametrize("name", ["char-gpt", "char-gpt-adamw"])
def test_the_recipe_is_two_thousand_steps_of_twelve_windows(name: str) -> None:
    config = find_recipe(name)
    assert config.data.images is not None
    assert config.epochs * config.data.images / config.batch_size == 2000
    assert config.schedule.warmup * config.data.images / config.batch_size == 100

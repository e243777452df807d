"""Nested training, pruning and a frozen support in the laboratory: runs, resumes, frontiers."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from dessilbi.cli import main
from dessilbi.cli.train import _chosen
from dessilbi.compaction import compact
from dessilbi.lab.analysis.frontier import curves, frontier
from dessilbi.lab.analysis.networks import trained_network
from dessilbi.lab.analysis.subnetworks import open_path
from dessilbi.lab.run.config import (
    Config,
    ConfigError,
    DataConfig,
    ModelConfig,
    OptimizerConfig,
)
from dessilbi.lab.run.directory import RunDir
from dessilbi.lab.run.methods import (
    Dense,
    FrozenSupport,
    GradualPruning,
    Method,
    NestedWeights,
    NestedWidths,
    NetworkSlimming,
)
from dessilbi.lab.run.options import RunOptions
from dessilbi.lab.run.recipes import RECIPES
from dessilbi.lab.training.build import fresh_network, load_data
from dessilbi.lab.training.callbacks import methods
from dessilbi.lab.training.distributed import World
from dessilbi.lab.training.loop import train
from dessilbi.lab.training.optimizers import twin_groups
from dessilbi.lab.training.state import Training
from dessilbi.paper.optimizers import COMPETITORS
from lab_runs import (
    NESTED,
    PRUNED,
    SMALL,
    STEPS,
    Crash,
    CrashAt,
    assert_same_run,
    uninterrupted,
    weights_of,
)

CONV = replace(NESTED, model=ModelConfig(name="digits-net"))
WIDTHS = replace(
    CONV,
    name="small-widths",
    optimizer=replace(SMALL.optimizer, exclude=("fc",)),
    method=NestedWidths(
        min_density=0.1, ramp_start=0.1, ramp_end=0.4, full_fraction=0.2, rank_every=3
    ),
)
FROZEN = replace(SMALL, name="small-frozen", keep=(), method=FrozenSupport(epoch=1))


# ---------------------------------------------------------------------- runs


@pytest.mark.parametrize("config", [NESTED, CONV, WIDTHS, PRUNED, FROZEN], ids=lambda c: c.name)
def test_a_crash_leaves_no_trace(config: Config, tmp_path: Path) -> None:
    place = RunOptions(runs=tmp_path / "crashed", save_minutes=0)
    for steps in (2, STEPS + 1, 3):
        with pytest.raises(Crash):
            train(config, place, CrashAt(steps))
    resumed = train(config, RunOptions(runs=tmp_path / "crashed"))
    assert_same_run(resumed, uninterrupted(config, tmp_path / "whole"))


def test_the_path_of_a_nested_run_gives_what_was_trained(nested: RunDir) -> None:
    path = open_path(nested)
    assert path.default_order == "nested"
    small, large = path.mask(density=0.05), path.mask(density=0.3)
    assert small.issubset(large)
    assert small.density == pytest.approx(0.05, abs=0.001)
    last = nested.load("checkpoint-last")
    assert last is not None
    assert {name.split("/")[0] for name in last.tensors} == {
        "model",
        "optimizer",
        "random",
        "nested",
    }


def test_widths_of_a_run_are_networks_of_whole_channels(tmp_path: Path) -> None:
    run = uninterrupted(WIDTHS, tmp_path)
    model = trained_network(run)
    for density in (0.2, 0.5):
        mask = open_path(run).mask(density=density)
        for conv, norm in (("conv1", "bn1"), ("conv2", "bn2")):
            alive = mask[f"{conv}.weight"].flatten(1).any(1)
            assert torch.equal(mask[f"{norm}.bias"], alive)
            assert float(alive.float().mean()) == pytest.approx(density, abs=0.1)
        inputs = torch.randn(2, 1, 8, 8, dtype=next(model.parameters()).dtype)
        small = compact(model.eval(), mask, inputs).model
        assert small.get_submodule("conv2").out_channels == int(mask["bn2.bias"].sum())
    points, _ = frontier(run, RunOptions(), (0.2, 0.22, 1.0))
    assert points[0].accuracy < points[2].accuracy
    assert points[0].density < 0.25
    assert points[0].macs < 0.1 * points[2].macs, "half of a width is a quarter of the work"
    assert points[1] == replace(points[0], budget=0.22)
    (curve,) = curves([(run, points, "test")])
    assert len(curve.points) == 2, "one network, one point"


def test_a_width_with_weights_of_its_own_is_taken_with_them(tmp_path: Path) -> None:
    run = uninterrupted(WIDTHS, tmp_path / "ladder")
    last = run.load("checkpoint-last")
    assert last is not None
    shared = last.part("model")["fc.weight"]
    own = trained_network(run, mask=open_path(run).mask(density=0.5)).get_parameter("fc.weight")
    assert (own != 0).any()
    assert not torch.equal(own, shared)

    main(["subnet", str(run.path), "--density", "0.5", "--runs", str(tmp_path / "child")])
    (child,) = (tmp_path / "child").iterdir()
    assert torch.equal(weights_of(RunDir.open(child))["fc.weight"], own)

    main(["compact", str(run.path), "--density", "0.5"])
    made = json.loads((run.path / "compact-0.5" / "report.json").read_text())
    (point,), _ = frontier(run, RunOptions(), (0.5,))
    assert made["accuracy"] == point.accuracy
    assert torch.equal(trained_network(run).get_parameter("fc.weight"), shared)


def test_a_pruned_run_ends_at_its_density(pruned: RunDir) -> None:
    weights = weights_of(pruned)
    matrices = [w for w in weights.values() if w.ndim > 1]
    kept = sum(int((w != 0).sum()) for w in matrices) / sum(w.numel() for w in matrices)
    assert kept == pytest.approx(0.1, abs=0.001)
    densities = [record.get("density", 1.0) for record in pruned.records()]
    assert densities == sorted(densities, reverse=True)
    assert densities[-1] == pytest.approx(kept)


def test_a_frozen_run_pulls_the_rest_to_zero(tmp_path: Path) -> None:
    frozen = uninterrupted(FROZEN, tmp_path)
    free = uninterrupted(replace(FROZEN, method=Dense()), tmp_path)
    supports = [open_path(frozen).support(epoch) for epoch in (1, 3)]
    for name, before in supports[0].items():
        assert not (supports[1][name] & ~before).any(), "something entered"
    assert any((open_path(free).support(3)[n] & ~before).any() for n, before in supports[0].items())
    outside = {
        run.path.name: sum(
            float(weights_of(run)[n][~before].abs().sum()) for n, before in supports[0].items()
        )
        for run in (frozen, free)
    }
    assert outside[frozen.path.name] < 0.7 * outside[free.path.name]


def test_a_subnetwork_of_a_nested_run_is_trained_alone(nested: RunDir, tmp_path: Path) -> None:
    main(["subnet", str(nested.path), "--density", "0.1", "--runs", str(tmp_path)])
    (child,) = tmp_path.iterdir()
    config = RunDir.open(child).config()
    assert config.method == Dense()
    assert config.start is not None
    assert config.start.mask == "density 0.1 by nested"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (replace(NESTED, optimizer=COMPETITORS["sgd-mom-wd"]), "nested training is along the path"),
        (replace(WIDTHS, optimizer=SMALL.optimizer), "method:nested-widths: parameter 'fc.weight'"),
        (replace(FROZEN, optimizer=COMPETITORS["adam"]), "freezes the support of Gamma"),
        (replace(PRUNED, method=GradualPruning(density=2.0)), "density must lie in"),
    ],
)
def test_what_does_not_go_together_is_refused(config: Config, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        train(config, RunOptions(runs=tmp_path))
    assert not list(tmp_path.iterdir()), "nothing is left of a run that never began"


def test_a_method_that_nobody_carries_out_is_refused_with_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(methods._MAKERS, NetworkSlimming, raising=False)
    config = replace(SMALL, method=NetworkSlimming())
    with pytest.raises(ConfigError, match=r"network-slimming.*import dessilbi\.paper\.baselines"):
        train(config, RunOptions(runs=tmp_path))


def nested_of(config: Config) -> dict[str, Any]:
    """What the lab hands to nested training."""
    with tempfile.TemporaryDirectory() as runs:
        options = RunOptions(runs=Path(runs))
        run = RunDir.of(config, options.runs)
        t = Training.make(config, options, run, torch.device("cpu"), World(), None)
        assert isinstance(t.method, methods.NestedCallback)
        return vars(t.method.nested)


def test_options_that_are_not_given_are_the_best_of_each_way() -> None:
    for kind, low, ramp_end, full in (
        (NestedWeights, 0.004, 0.25, 0.3),
        (NestedWidths, 0.125, 0.3, 1.0),
    ):
        method = kind()
        assert (method.min_density, method.ramp_end, method.full_fraction) == (low, ramp_end, full)


def test_the_mac_exponent_knows_what_weights_cost() -> None:
    by_weight = replace(CONV, optimizer=replace(CONV.optimizer, penalty="lasso"))
    priced = replace(by_weight, method=NestedWeights(mac_exponent=0.5))
    assert nested_of(priced)["_prices"] == {
        "conv1.weight": 8.0,
        "conv2.weight": 8.0,
        "fc.weight": 1.0,
    }
    assert nested_of(by_weight)["_prices"] == {}


QUICK = ("--model.name", "lenet-300-100", "--epochs", "1", "--batch-size", "512")


@pytest.mark.parametrize(
    ("words", "method"),
    [
        (["--nested"], NestedWeights()),
        (["method:nested-weights", "--method.min-density", "0.1"], NestedWeights(min_density=0.1)),
        (["method:gradual-pruning", "--method.density", "0.3"], GradualPruning(density=0.3)),
        (["method:frozen-support"], FrozenSupport()),
        ([], Dense()),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_the_command_line_chooses_a_method(
    words: list[str], method: Method, tmp_path: Path
) -> None:
    main(["train", "digits", *words, *QUICK, "--runs", str(tmp_path)])
    (run,) = tmp_path.iterdir()
    assert RunDir.open(run).config().method == method


def test_options_of_another_method_cannot_be_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["train", "digits", "method:frozen-support", "--method.widths", "0.5", *QUICK])
    assert "--method.widths" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["train", "digits", "method:nested-weihgts", *QUICK])
    assert "did you mean 'nested-weights'?" in capsys.readouterr().err


def test_the_short_option_keeps_a_recipes_own_nested_method() -> None:
    config, left = _chosen(RECIPES["vgg-4-cifar10-nested"](), ["--nested", "--seed", "1"])
    assert config.method == NestedWidths()
    assert left == ["--seed", "1"]


# ---------------------------------------------------------------------- groups


def test_neurons_and_filters_by_group_the_classifier_whole() -> None:
    data = load_data(SMALL, None, download=False)
    model = fresh_network(SMALL, data)
    groups = twin_groups(model, OptimizerConfig(penalty="group_lasso"))
    by_penalty = {g["penalty"]: [name for name, _ in g["params"]] for g in groups}
    assert by_penalty["group_lasso"] == ["fc1.weight", "fc2.weight"]
    assert "fc3.weight" in by_penalty[None]


def test_the_classifier_on_its_own_threshold() -> None:
    data = load_data(SMALL, None, download=False)
    model = fresh_network(SMALL, data)
    groups = twin_groups(model, OptimizerConfig(lambd=0.5, classifier_lambd=0.01))
    own = next(g for g in groups if any(name == "fc3.weight" for name, _ in g["params"]))
    assert own["lambd"] == 0.01
    assert own["penalty"] == "lasso"


def test_fewer_images() -> None:
    data = load_data(replace(SMALL, data=DataConfig(validation=100, images=200)), None, False)
    assert len(data.train) == 200
    assert data.validation is not None
    assert len(data.validation) == 100
    whole = load_data(SMALL, None, download=False)
    some = load_data(replace(SMALL, data=DataConfig(images=len(whole.train))), None, False)
    assert torch.equal(some.train.labels, whole.train.labels)
    with pytest.raises(ValueError, match="images must be in"):
        load_data(replace(SMALL, data=DataConfig(images=10**6)), None, False)

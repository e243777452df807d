"""Passes in half precision and compiled passes: weights stay whole, masks and resumes exact."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy

from dessilbi import Mask, project
from dessilbi.lab.data import batches
from dessilbi.lab.run.config import Config, ConfigError, OptimizerConfig, ScheduleConfig
from dessilbi.lab.run.directory import RunDir
from dessilbi.lab.run.files import INIT, LAST
from dessilbi.lab.run.methods import GradualPruning, NestedWeights, NestedWidths
from dessilbi.lab.run.options import RunOptions
from dessilbi.lab.training.build import load_data, network_without_data
from dessilbi.lab.training.distributed import World
from dessilbi.lab.training.evaluate import evaluate, evaluate_recalibrated
from dessilbi.lab.training.loop import train
from dessilbi.lab.training.precision import Precision
from dessilbi.lab.training.shared_batchnorm import SharedBatchNorm
from dessilbi.lab.training.state import Training
from lab_runs import (
    FILTERS,
    STEPS,
    Crash,
    CrashAt,
    assert_same_run,
    crash_and_resume,
    uninterrupted,
    weights_of,
)

if TYPE_CHECKING:
    from pathlib import Path

BF16 = replace(FILTERS, precision="bf16")
FP16 = replace(FILTERS, precision="fp16")
RAMP = {"ramp_start": 0.1, "ramp_end": 0.4, "full_fraction": 0.4, "rank_every": 3}
WEIGHTS = NestedWeights(min_density=0.1, **RAMP)  # type: ignore[arg-type]
WIDTHS = NestedWidths(min_density=0.25, branch_at=(0.3, 0.6), **RAMP)  # type: ignore[arg-type]
WITHOUT_FC = replace(FILTERS.optimizer, exclude=("fc",))
CPU = torch.device("cpu")


# ---------------------------------------------------------------------- the passes


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_an_epoch_is_the_usual_loop_around_autocast(precision: str, tmp_path: Path) -> None:
    """Torch's own recipe: autocast around forward and loss, backward and step outside."""
    config = replace(
        FILTERS,
        precision=precision,  # type: ignore[arg-type]
        optimizer=OptimizerConfig(name="sgd", lr=0.1, momentum=0.9),
        schedule=ScheduleConfig(),
        epochs=1,
        keep=(),
    )
    run = uninterrupted(config, tmp_path)

    model = network_without_data(config)
    model.load_state_dict(run.read_tensors(INIT))
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True)
    half = torch.bfloat16 if precision == "bf16" else torch.float16
    scaler = torch.amp.GradScaler("cpu", enabled=precision == "fp16")
    data = load_data(config, None, download=False)
    stream = batches(data.train, config.batch_size, seed=config.seed, epoch=0)
    for x, y in stream:
        opt.zero_grad()
        with torch.autocast("cpu", half):
            loss = cross_entropy(model(x), y)
        scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        scaler.step(opt)
        scaler.update()
    trained = weights_of(run)
    for name, tensor in model.state_dict().items():
        assert torch.equal(trained[name], tensor), name


def test_weights_and_v_are_float32_and_the_numbers_those_of_another_run(tmp_path: Path) -> None:
    half, full = uninterrupted(BF16, tmp_path), uninterrupted(FILTERS, tmp_path)
    left, right = half.load(LAST), full.load(LAST)
    assert left is not None
    assert right is not None
    kinds = {name: tensor.dtype for name, tensor in right.tensors.items()}
    assert {name: tensor.dtype for name, tensor in left.tensors.items()} == kinds
    assert not torch.equal(weights_of(half)["conv1.weight"], weights_of(full)["conv1.weight"])
    one, other = half.records()[-1], full.records()[-1]
    assert one["train_loss"] == pytest.approx(other["train_loss"], abs=0.1)


# ---------------------------------------------------------------------- masks under autocast


def test_weights_that_change_within_are_seen() -> None:
    """Torch's cache of casted weights would give the first output again."""
    layer, x = nn.Linear(8, 4, bias=False), torch.randn(3, 8)
    with Precision(BF16, CPU).autocast():
        assert layer(x).count_nonzero() > 0
        with torch.no_grad():
            layer.weight.zero_()
        assert layer(x).count_nonzero() == 0


def _trained(run: RunDir, config: Config) -> nn.Module:
    model = network_without_data(config)
    model.load_state_dict(weights_of(run))
    return model


@pytest.mark.parametrize("config", [BF16, FP16], ids=["bf16", "fp16"])
def test_a_mask_without_weights_leaves_chance(config: Config, tmp_path: Path) -> None:
    """Evaluated dense just before, within the same autocast."""
    model = _trained(uninterrupted(config, tmp_path), config)
    data = load_data(config, None, download=False)
    nothing = Mask({n: torch.zeros_like(p) > 0 for n, p in model.named_parameters()})
    with Precision(config, CPU).autocast():
        dense = evaluate(model, data.test)
        with project(model, nothing, allow_empty=True):
            masked = evaluate(model, data.test)
            recalibrated = evaluate_recalibrated(model, data.test, data.train)
        again = evaluate(model, data.test)
    assert dense.accuracy > 50
    assert masked.mean_loss == pytest.approx(math.log(10))
    assert masked.accuracy < 15
    assert recalibrated == masked
    assert again == dense


def test_a_subnetwork_is_evaluated_as_a_copy_with_its_zeros(tmp_path: Path) -> None:
    model = _trained(uninterrupted(BF16, tmp_path), BF16)
    data = load_data(BF16, None, download=False)
    mask = Mask.magnitude(model, 0.3)
    by_hand = copy.deepcopy(model)
    with torch.no_grad():
        for name, p in by_hand.named_parameters():
            if name in mask.names:
                p *= mask[name]
    with torch.autocast("cpu", torch.bfloat16):
        wanted = evaluate(by_hand, data.test)
        wanted_recalibrated = evaluate_recalibrated(by_hand, data.test, data.train)
    with Precision(BF16, CPU).autocast():
        evaluate(model, data.test)
        with project(model, mask):
            assert evaluate(model, data.test) == wanted
            assert evaluate_recalibrated(model, data.test, data.train) == wanted_recalibrated


# ---------------------------------------------------------------------- resumes


@pytest.mark.parametrize(
    "config",
    [
        BF16,
        FP16,
        replace(BF16, method=WEIGHTS),
        replace(FP16, method=WEIGHTS),
        replace(BF16, method=WIDTHS, optimizer=WITHOUT_FC),
        replace(BF16, method=GradualPruning(density=0.3, every=2)),
    ],
    ids=["bf16", "fp16", "bf16-weights", "fp16-weights", "bf16-widths", "bf16-pruning"],
)
def test_a_run_in_half_precision_resumes_exactly(config: Config, tmp_path: Path) -> None:
    resumed = crash_and_resume(config, tmp_path / "resumed", after=(2, STEPS))
    assert_same_run(resumed, uninterrupted(config, tmp_path / "whole"))


def test_the_scale_of_the_gradients_is_part_of_a_checkpoint(tmp_path: Path) -> None:
    run = uninterrupted(FP16, tmp_path)
    last = run.load(LAST)
    assert last is not None
    scale = last.part("scaler")["scale"].item()
    assert 0 < scale < 2**16, "the first steps were too large for float16"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
@pytest.mark.parametrize(
    "config",
    [
        FILTERS,
        BF16,
        replace(BF16, method=WEIGHTS),
        replace(BF16, method=WIDTHS, optimizer=WITHOUT_FC),
        replace(FILTERS, method=GradualPruning(density=0.3, every=2)),
    ],
    ids=["full", "bf16", "bf16-weights", "bf16-widths", "pruning"],
)
def test_a_compiled_run_resumes_exactly_and_learns_what_an_eager_one_does(
    config: Config, tmp_path: Path
) -> None:
    """Each part compiles for itself, as processes do."""
    config = replace(config, compile=True)
    torch.compiler.reset()
    whole = uninterrupted(config, tmp_path / "whole")
    torch.compiler.reset()
    with pytest.raises(Crash):
        train(config, RunOptions(runs=tmp_path / "resumed", save_minutes=0), CrashAt(STEPS + 2))
    torch.compiler.reset()
    assert_same_run(train(config, RunOptions(runs=tmp_path / "resumed")), whole)
    eager = uninterrupted(replace(config, compile=False), tmp_path)
    for one, other in zip(whole.records(), eager.records(), strict=True):
        assert one["train_loss"] == pytest.approx(other["train_loss"], abs=0.05)


# ---------------------------------------------------------------------- several processes


def test_shared_batchnorm_takes_its_statistics_in_float32(tmp_path: Path) -> None:
    """Of more pixels than bfloat16 can count, with a mean that it cannot hold."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/join", rank=0, world_size=1)
    try:
        shared, plain = SharedBatchNorm(3), nn.BatchNorm2d(3)
        x = (1 + torch.randn(8, 3, 17, 19)).bfloat16()
        left, right = (x.clone().requires_grad_() for _ in range(2))
        one, other = shared(left), plain(right)
        assert one.dtype is other.dtype is torch.bfloat16
        torch.testing.assert_close(one, other)
        torch.testing.assert_close(shared.running_mean, plain.running_mean)
        torch.testing.assert_close(shared.running_var, plain.running_var)
        (one**3).sum().backward()
        (other**3).sum().backward()
        torch.testing.assert_close(left.grad, right.grad, rtol=0.02, atol=0.02)
    finally:
        dist.destroy_process_group()


# ---------------------------------------------------------------------- refusals


def test_what_cannot_be_is_refused_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"precision='bf16' is for dtype='float32', got 'flo"):
        replace(BF16, dtype="float64")
    with pytest.raises(ConfigError, match=r"steps of their own.*set precision='bf16'"):
        uninterrupted(replace(FP16, method=WIDTHS, optimizer=WITHOUT_FC), tmp_path)
    compiled = replace(FILTERS, compile=True)
    with pytest.raises(ConfigError, match=r"compile=True is for a single process, got 2; leave"):
        Training.make(compiled, RunOptions(), RunDir(tmp_path), CPU, World(0, 2), None)

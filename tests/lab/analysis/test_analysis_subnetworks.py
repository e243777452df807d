"""Subnetworks of a run as runs of their own."""

from __future__ import annotations

import shutil
import signal
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from dessilbi.compaction import CompactError
from dessilbi.lab.analysis import networks
from dessilbi.lab.analysis.choice import Choice, Retrain
from dessilbi.lab.analysis.subnetworks import open_path, prepare, share_of_macs
from dessilbi.lab.data import load_dataset
from dessilbi.lab.models import make_model
from dessilbi.lab.run.checkpoint import load_model
from dessilbi.lab.run.config import Config, ConfigError, OptimizerConfig, ScheduleConfig, StopConfig
from dessilbi.lab.run.directory import RunDir, RunError
from dessilbi.lab.run.files import BEST, LAST, MASK, PATH, START
from dessilbi.lab.run.options import RunOptions
from dessilbi.lab.training import state as training
from dessilbi.lab.training.evaluate import evaluate, evaluate_recalibrated
from dessilbi.lab.training.loop import train
from dessilbi.lab.training.optimizers import make_optimizer
from dessilbi.lab.training.start import load_start
from dessilbi.paper.optimizers import COMPETITORS
from dessilbi.path import DEFAULT_ORDER, Mask, count_macs_per_weight
from lab_runs import (
    FILTERS,
    SMALL,
    STEPS,
    STOPPED,
    Crash,
    CrashAt,
    CrashAtWrite,
    Life,
    assert_same_run,
    contents,
    crashes,
    live,
    uninterrupted,
    weights_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from torch import Tensor, nn
    from torch.optim import Optimizer

THIRD = Choice(density=0.3)
SGD = COMPETITORS["sgd-mom-wd"]


def retrained(
    parent: RunDir, runs: Path, word: str | None, choice: Choice = THIRD, **options: Any
) -> tuple[Config, RunDir]:
    """A subnetwork's configuration and its run directory, not yet trained."""
    config = prepare(parent, choice, Retrain.parse(word), runs, **options)
    return config, RunDir(runs / config.run_name)


def masked(weights: dict[str, Tensor], mask: Mask) -> dict[str, Tensor]:
    return {n: t.where(mask[n], 0) if n in mask.names else t for n, t in weights.items()}


def assert_same_tensors(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    assert found.keys() == wanted.keys()
    assert [name for name in wanted if not torch.equal(found[name], wanted[name])] == []


# ---------------------------------------------------------------------- which point of the path


def test_a_choice_is_a_point_of_the_path(parent: RunDir) -> None:
    path = open_path(parent)
    total = sum(layer.numel for layer in path.layers)
    mask, words = Choice(density=0.3).mask(path)
    assert mask == path.mask(density=0.3)
    assert mask.kept == int(0.3 * total)
    assert words == f"density 0.3 by {DEFAULT_ORDER}"
    mask, words = Choice(parameters=500, order="entry").mask(path)
    assert mask == path.mask(parameters=500, order="entry")
    assert (mask.kept, words) == (500, "500 weights by entry")
    for epoch in (0, 2):
        mask, words = Choice(epoch=epoch).mask(path)
        assert (mask, words) == (Mask(path.support(epoch)), f"epoch {epoch}")


def test_stable_is_the_epoch_at_which_the_support_settled(stopped: RunDir) -> None:
    path = open_path(stopped)
    stop = STOPPED.stop
    epoch = path.stable_epoch(stop.window, stop.tolerance)
    assert epoch == path.epochs[-1]
    mask, words = Choice(stable=True).mask(path, stop)
    assert (mask, words) == (path.mask(epoch=epoch), f"settled at epoch {epoch}")


def test_a_run_that_settled_by_its_own_rule_has_a_stable_subnetwork(
    stopped: RunDir, tmp_path: Path
) -> None:
    """The default rule compares five epochs, more than this run has."""
    assert open_path(stopped).stable_epoch() is None
    config, _ = retrained(stopped, tmp_path, None, Choice(stable=True))
    assert config.start is not None
    assert config.start.mask == f"settled at epoch {len(stopped.records())}"


def test_a_support_that_did_not_settle_is_a_clear_error(parent: RunDir) -> None:
    with pytest.raises(ConfigError, match=r"did not settle .* choose --epoch or --density"):
        Choice(stable=True).mask(open_path(parent))


@pytest.mark.parametrize(
    "choice",
    [
        Choice(),
        Choice(density=0.3, parameters=5),
        Choice(density=0.3, epoch=0),
        Choice(epoch=1, stable=True),
        Choice(parameters=0, stable=True),
    ],
)
def test_exactly_one_choice(parent: RunDir, choice: Choice) -> None:
    with pytest.raises(ConfigError, match="choose one of --density, --parameters, --epoch and"):
        choice.mask(open_path(parent))


@pytest.mark.parametrize(
    ("choice", "fault"),
    [
        (Choice(epoch=9), "epoch 9 was not recorded; recorded epochs: 0, 1, 2, 3"),
        (Choice(density=1.5), "density"),
        (Choice(parameters=-1), "parameters"),
        (Choice(density=0.3, order="alphabet"), "unknown order 'alphabet'"),
    ],
)
def test_a_point_that_is_not_on_the_path(
    parent: RunDir, tmp_path: Path, choice: Choice, fault: str
) -> None:
    with pytest.raises(ValueError, match=fault):
        prepare(parent, choice, Retrain.parse(None), tmp_path)
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------------- how it is trained


def test_words_for_retraining() -> None:
    assert Retrain.parse(None) == Retrain("one-shot")
    for word in ("scratch", "scratch-b", "finetune"):
        assert Retrain.parse(word).how == word
    assert Retrain.parse("rewind:30") == Retrain("rewind", 30)


@pytest.mark.parametrize(
    "word", ["", "rewind", "rewind:", "rewind:-1", "rewind:1.5", "Scratch", "one-shot", "rewind:1 "]
)
def test_other_words_are_refused(word: str) -> None:
    with pytest.raises(ConfigError, match="retrain must be scratch, scratch-b, rewind:EPOCH or"):
        Retrain.parse(word)


@pytest.mark.parametrize(
    ("word", "source", "name"),
    [
        (None, LAST, "last"),
        ("finetune", LAST, "last"),
        ("scratch", "init.safetensors", "init"),
        ("scratch-b", "init.safetensors", "init"),
        ("rewind:1", "checkpoint-1", "epoch 1"),
        ("rewind:0", "checkpoint-0", "epoch 0"),
    ],
)
def test_the_weights_that_a_subnetwork_starts_from(
    parent: RunDir, tmp_path: Path, word: str | None, source: str, name: str
) -> None:
    config, run = retrained(parent, tmp_path, word)
    assert config.start is not None
    assert (config.start.parent, config.start.weights) == (parent.path.name, name)
    by_name = source.endswith(".safetensors")
    weights = parent.read_tensors(source) if by_name else weights_of(parent, source)
    assert_same_tensors(load_start(run, config.start).weights, weights)
    mask = open_path(parent).mask(density=0.3)
    assert Mask.load(run.path / MASK) == mask

    # Before its first step the run itself has them too, masked.
    with pytest.raises(Crash):
        train(config, RunOptions(runs=tmp_path), CrashAt(1)) if word else one_shot(config, tmp_path)
    assert_same_tensors(run.read_tensors("init.safetensors"), masked(weights, mask))
    assert_same_tensors(weights_of(run), masked(weights, mask))


@pytest.mark.parametrize(("word", "source"), [("finetune", LAST), ("rewind:1", "checkpoint-1")])
def test_a_network_that_goes_on_keeps_its_twin(
    parent: RunDir, tmp_path: Path, word: str, source: str
) -> None:
    """With V = 0 the coupling would pull all weights to zero instead of fine-tuning them."""
    config, run = retrained(parent, tmp_path, word, epochs=1)
    with pytest.raises(Crash):
        train(config, RunOptions(runs=tmp_path), CrashAt(1))
    before, after = parent.load(source), run.load(LAST)
    assert before is not None
    assert after is not None
    mask = Mask.load(run.path / MASK)
    wanted = {
        key: tensor.where(mask[key.removesuffix("/v")], 0) if key.endswith("/v") else tensor
        for key, tensor in before.part("optimizer").items()
    }
    found = after.part("optimizer")
    assert found.keys() == wanted.keys()
    for key, tensor in wanted.items():
        if key.endswith("/v"):
            assert bool(tensor.any())
            assert torch.equal(found[key], tensor)
        name = key.split("/")[0]
        if key.endswith("/momentum_buffer") and name in mask.names:
            assert torch.equal(found[key], tensor.where(mask[name], 0))
    assert open_path(run).density(0) > 0


@pytest.mark.parametrize("word", ["finetune", "rewind:1", "scratch"])
def test_a_network_that_goes_on_is_coupled_as_before(tmp_path: Path, word: str) -> None:
    """However short its training is; one that begins anew is coupled for its own."""
    tau = replace(SMALL, optimizer=OptimizerConfig(momentum=0.9, tau=4.0, c=0.1))
    parent = uninterrupted(tau, tmp_path / "parent")
    nu = 0.1 * (2 + 0.1) * STEPS / 4.0
    assert [record["nu"] for record in parent.records()] == pytest.approx([nu] * 3)
    config, run = retrained(parent, tmp_path, word, epochs=1)
    train(config, RunOptions(runs=tmp_path))
    wanted = 0.1 * STEPS / 4.0 if word == "scratch" else nu
    assert run.records()[-1]["nu"] == pytest.approx(wanted)
    assert (config.optimizer.nu is None) == (word == "scratch")


def test_another_optimizer_begins_anew(parent: RunDir, tmp_path: Path) -> None:
    other = replace(SMALL.optimizer, kappa=2.0)
    for word, optimizer in (("scratch", None), ("rewind:1", other), ("rewind:1", SGD)):
        config, run = retrained(parent, tmp_path, word, optimizer=optimizer)
        assert config.start is not None
        assert load_start(run, config.start).optimizer == {}


def one_shot(config: Config, runs: Path) -> None:
    train(config, RunOptions(runs=runs))
    raise Crash  # as the others do


def test_one_shot_is_judged_and_not_trained(filters: RunDir, tmp_path: Path) -> None:
    config, run = retrained(filters, tmp_path, None, Choice(density=0.8))
    assert config.epochs == 0
    train(config, RunOptions(runs=tmp_path))
    (record,) = run.records()
    mask = open_path(filters).mask(density=0.8)
    assert (record["epoch"], record["density"]) == (0, mask.density)
    assert record["densities"] == mask.layer_densities()
    model = make_model("digits-net", num_classes=10, in_channels=1, input_size=8)
    load_model(model, masked(weights_of(filters), mask))
    digits = load_dataset("digits")
    score = evaluate(model, digits.test)
    assert (record["accuracy"], record["loss"]) == (score.accuracy, score.mean_loss)
    recalibrated = evaluate_recalibrated(model, digits.test, digits.train).accuracy
    assert record["recalibrated_accuracy"] == recalibrated != score.accuracy


def rates_of(config: Config, runs: Path) -> list[float]:
    """The learning rate of every step of a run."""
    found: list[float] = []

    def watched(
        model: nn.Module, options: OptimizerConfig, shape: tuple[int, ...], **more: float
    ) -> Optimizer:
        optimizer = make_optimizer(model, options, shape, **more)
        optimizer.register_step_post_hook(
            lambda *_: found.append(float(optimizer.param_groups[0]["lr"]))
        )
        return optimizer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "make_optimizer", watched)
        train(config, RunOptions(runs=runs))
    return found


@pytest.mark.parametrize(
    "schedule",
    [
        ScheduleConfig(kind="multistep", milestones=(2,)),
        ScheduleConfig(kind="cosine", warmup=0.5),
    ],
    ids=lambda schedule: schedule.kind,
)
def test_a_rewound_run_goes_on_with_the_schedule(tmp_path: Path, schedule: ScheduleConfig) -> None:
    dense = replace(SMALL, schedule=schedule)
    rates = rates_of(dense, tmp_path)
    parent = RunDir(tmp_path / dense.run_name)
    config, run = retrained(parent, tmp_path, "rewind:1")
    assert config.epochs == dense.epochs - 1
    assert rates_of(config, tmp_path) == rates[STEPS:]
    assert [r["lr"] for r in run.records()[1:]] == [r["lr"] for r in parent.records()[1:]]


def test_fine_tuning_stays_at_the_last_rate(parent: RunDir, tmp_path: Path) -> None:
    config, _ = retrained(parent, tmp_path, "finetune", epochs=2)
    last = parent.records()[-1]["lr"]
    assert last == pytest.approx(0.1 * SMALL.optimizer.lr)
    assert rates_of(config, tmp_path) == [last] * 2 * STEPS


def test_fine_tuning_after_an_early_stop_stays_at_the_rate_of_the_stop(tmp_path: Path) -> None:
    """Drops of the schedule that never came do not count."""
    dense = replace(STOPPED, schedule=ScheduleConfig(kind="multistep", milestones=(1, 11)))
    parent = uninterrupted(dense, tmp_path)
    assert len(parent.records()) < 11
    config, _ = retrained(parent, tmp_path, "finetune")
    assert config.optimizer.lr == parent.records()[-1]["lr"]


def test_fine_tuning_with_another_optimizer_scales_its_own_rate(
    parent: RunDir, tmp_path: Path
) -> None:
    config, _ = retrained(parent, tmp_path, "finetune", optimizer=COMPETITORS["adam"])
    factor = parent.records()[-1]["lr"] / SMALL.optimizer.lr
    assert config.optimizer.lr == pytest.approx(0.001 * factor)


def test_scratch_b_stretches_the_schedule(filters: RunDir, tmp_path: Path) -> None:
    config, _ = retrained(filters, tmp_path, "scratch-b", Choice(density=0.05))
    assert config.epochs == 2 * FILTERS.epochs
    assert config.schedule.milestones == tuple(2 * m for m in FILTERS.schedule.milestones)


def test_epochs_by_default(parent: RunDir, tmp_path: Path) -> None:
    long = replace(SMALL, epochs=8)
    for word, epochs, of_long in (("scratch", 3, 8), ("rewind:1", 2, 7), ("finetune", 1, 2)):
        assert retrained(parent, tmp_path, word)[0].epochs == epochs
        assert _epochs_of(long, word, open_path(parent).mask(density=0.3)) == of_long
        assert retrained(parent, tmp_path, word, epochs=5)[0].epochs == 5
    assert retrained(parent, tmp_path, None, epochs=5)[0].epochs == 0


def _epochs_of(config: Config, word: str, mask: Mask) -> int:
    from dessilbi.lab.analysis.subnetworks import _epochs

    return _epochs(config, Retrain.parse(word), mask, None)


@pytest.mark.parametrize("density", [0.05, 0.3, 0.6, 0.9, 1.0])
def test_scratch_b_has_the_multiply_adds_of_the_parent(
    filters: RunDir, tmp_path: Path, density: float
) -> None:
    """At most twice the epochs."""
    dense = replace(FILTERS, epochs=100)
    mask = open_path(filters).mask(density=density)
    wanted = min(200, round(100 / share_of_macs(dense, mask)))
    assert _epochs_of(dense, "scratch-b", mask) == wanted
    assert wanted == {0.05: 200, 1.0: 100}.get(density, wanted)
    config, _ = retrained(filters, tmp_path, "scratch-b", Choice(density=density))
    assert FILTERS.epochs <= config.epochs <= 2 * FILTERS.epochs


def test_multiply_adds_of_a_network_that_cannot_be_made_smaller(
    filters: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then a filter that is gone leaves the weights that read it."""

    def refuse(*_: object, **__: object) -> None:
        raise CompactError("cannot be traced")

    mask = open_path(filters).mask(density=0.3)
    model = make_model("digits-net", num_classes=10, in_channels=1, input_size=8)
    each = count_macs_per_weight(model, torch.zeros(1, 1, 8, 8))
    weights = {name: p for name, p in model.named_parameters() if name in each}
    kept = {n: mask[n].sum() if n in mask.names else p.numel() for n, p in weights.items()}
    assert len(set(each.values())) > 1, "weights differ in work"
    whole = sum(p.numel() * each[n] for n, p in weights.items())
    share = sum(float(kept[n]) * each[n] for n in weights) / whole
    smaller = share_of_macs(FILTERS, mask)
    monkeypatch.setattr(networks, "compact", refuse)
    assert share_of_macs(FILTERS, mask) == pytest.approx(share)
    assert smaller < share


def test_seed_and_optimizer_can_be_exchanged(parent: RunDir, tmp_path: Path) -> None:
    config, _ = retrained(parent, tmp_path, "scratch")
    assert (config.seed, config.optimizer) == (SMALL.seed, SMALL.optimizer)
    assert (config.stop, config.keep) == (StopConfig(), ())
    other, run = retrained(parent, tmp_path, "scratch", seed=7, optimizer=SGD)
    assert (other.seed, other.optimizer) == (7, SGD)
    assert other.run_name != config.run_name
    train(other, RunOptions(runs=tmp_path))
    assert not (run.path / PATH).exists()


def test_the_same_subnetwork_is_the_same_run_wherever_it_is_asked_for(
    parent: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, run = retrained(parent, tmp_path, "scratch")
    before = contents(run)
    assert retrained(parent, tmp_path, "scratch")[0] == config
    monkeypatch.chdir(parent.path)
    assert retrained(RunDir.open("."), tmp_path, "scratch")[0] == config
    assert contents(run) == before
    assert [p.name for p in tmp_path.iterdir()] == [config.run_name]


# ---------------------------------------------------------------------- the mask is held


def assert_held(run: RunDir, mask: Mask) -> None:
    """Zero off the mask, in every checkpoint and in the weights before the first step."""
    names = [path.name for path in run.path.glob("checkpoint-*")]
    assert {LAST, BEST} <= set(names)
    for weights in [run.read_tensors("init.safetensors"), *(weights_of(run, n) for n in names)]:
        for name in mask.names:
            assert not bool(weights[name][~mask[name]].any())
            assert bool(weights[name][mask[name]].any())


@pytest.mark.parametrize("optimizer", [None, SGD, OptimizerConfig(name="adam", lr=1e-3)])
@pytest.mark.parametrize("dense", ["parent", "filters"])
def test_every_checkpoint_of_a_retrained_run_is_on_the_mask(
    request: pytest.FixtureRequest, tmp_path: Path, dense: str, optimizer: OptimizerConfig | None
) -> None:
    found: RunDir = request.getfixturevalue(dense)
    config, run = retrained(found, tmp_path, "rewind:1", optimizer=optimizer)
    config = replace(config, keep=tuple(range(config.epochs + 1)))  # to see all of them
    shutil.copytree(run.path, tmp_path / "kept" / config.run_name)
    run = RunDir(tmp_path / "kept" / config.run_name)
    (run.path / "config.json").unlink()
    train(config, RunOptions(runs=run.path.parent))
    mask = open_path(found).mask(density=0.3)
    assert_held(run, mask)
    start, last = weights_of(run, "checkpoint-0"), weights_of(run)
    assert all(bool((start[n] != last[n]).any()) for n in mask.names), "it was trained"
    assert [r["epoch"] for r in run.records()] == list(range(config.epochs + 1))


def test_gamma_of_a_subnetwork_stays_on_its_mask(parent: RunDir, tmp_path: Path) -> None:
    config, run = retrained(parent, tmp_path, "scratch")
    train(config, RunOptions(runs=tmp_path))
    path, mask = open_path(run), Mask.load(run.path / MASK)
    assert path.epochs == (0, 1, 2, 3)
    assert path.density(3) > 0
    assert path.mask(epoch=3).issubset(mask)


def test_the_parent_is_not_touched(parent: RunDir, tmp_path: Path) -> None:
    before = contents(parent)
    times = {p: p.stat().st_mtime_ns for p in parent.path.rglob("*")}
    for word in (None, "scratch", "rewind:0", "finetune"):
        config, _ = retrained(parent, tmp_path, word, epochs=1)
        train(config, RunOptions(runs=tmp_path))
    assert contents(parent) == before
    assert {p: p.stat().st_mtime_ns for p in parent.path.rglob("*")} == times


def test_a_subnetwork_outlives_its_parent(parent: RunDir, tmp_path: Path) -> None:
    copied = RunDir(tmp_path / "dense" / parent.path.name)
    shutil.copytree(parent.path, copied.path)
    config, run = retrained(copied, tmp_path, "scratch", epochs=2)
    with pytest.raises(Crash):
        train(config, RunOptions(runs=tmp_path), CrashAt(STEPS + 1))
    shutil.rmtree(copied.path)
    train(run.config(), RunOptions(runs=tmp_path))
    again, whole = retrained(parent, tmp_path / "whole", "scratch", epochs=2)
    train(again, RunOptions(runs=tmp_path / "whole"))
    assert_same_run(run, whole)


def test_an_unknown_epoch_to_rewind_to(parent: RunDir, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"has no checkpoint-2; train it with --keep 2 to rewind"):
        retrained(parent, tmp_path, "rewind:2")
    assert list(tmp_path.iterdir()) == []


def test_a_run_without_weights_is_not_told_to_keep_an_epoch(parent: RunDir, tmp_path: Path) -> None:
    copied = RunDir(tmp_path / "dense")
    shutil.copytree(parent.path, copied.path)
    shutil.rmtree(copied.path / LAST)
    with pytest.raises(RunError, match="has no checkpoint-last") as caught:
        retrained(copied, tmp_path, "finetune")
    assert "--keep" not in str(caught.value)


# ---------------------------------------------------------------------- tampering


def rewrite_mask(run: RunDir) -> None:
    mask = Mask.load(run.path / MASK)
    name, *others = mask.names
    flipped = mask[name].clone()
    flipped.view(-1)[0] ^= True
    Mask({name: flipped, **{other: mask[other] for other in others}}).save(run.path / MASK)


def rewrite_start(run: RunDir) -> None:
    weights = run.read_tensors(START)
    weights["fc1.bias"][0] += 1
    run.write_tensors(START, weights)


def damage_mask(run: RunDir) -> None:
    content = bytearray((run.path / MASK).read_bytes())
    content[-5] ^= 1
    (run.path / MASK).write_bytes(content)


def lose_mask(run: RunDir) -> None:
    (run.path / MASK).unlink()


def lose_start(run: RunDir) -> None:
    (run.path / START).unlink()


@pytest.mark.parametrize(
    "tamper", [rewrite_mask, rewrite_start, damage_mask, lose_mask, lose_start]
)
@pytest.mark.parametrize("begun", [False, True])
def test_a_mask_or_start_that_was_tampered_with_is_refused(
    parent: RunDir, tmp_path: Path, tamper: Callable[[RunDir], None], begun: bool
) -> None:
    config, run = retrained(parent, tmp_path, "finetune")
    if begun:
        with pytest.raises(Crash):
            train(config, RunOptions(runs=tmp_path, save_minutes=0), CrashAt(2))
    tamper(run)
    before = contents(run)
    with pytest.raises(RunError, match=r"(mask|start)\.safetensors.*remove "):
        train(config, RunOptions(runs=tmp_path))
    assert contents(run) == before


# ---------------------------------------------------------------------- interrupted


@pytest.fixture(scope="module")
def whole(parent: RunDir, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], RunDir]:
    """Subnetworks that nobody interrupted, by their word."""
    runs = tmp_path_factory.mktemp("whole")
    made: dict[str, RunDir] = {}

    def make(word: str) -> RunDir:
        if word not in made:
            config, made[word] = retrained(parent, runs, None if word == "one-shot" else word)
            train(config, RunOptions(runs=runs))
        return made[word]

    return make


def test_crashed_at_a_write_one_shot_ends_the_same(
    parent: RunDir, whole: Callable[[str], RunDir], tmp_path: Path
) -> None:
    """Each time a new run, from the first file that `dessilbi subnet` makes to the last."""
    for crash, runs in crashes(tmp_path, (2, 5, 8, 15, 18, 20, 22, 23, 24, 25)):
        with pytest.raises(Crash), crash:
            train(retrained(parent, runs, None)[0], RunOptions(runs=runs))
        config, run = retrained(parent, runs, None)
        train(config, RunOptions(runs=runs))
        assert_same_run(run, whole("one-shot"))


@pytest.mark.parametrize("number", [22, 36, 50, 83])
def test_crashed_at_a_write_a_retrained_run_ends_the_same(
    parent: RunDir, whole: Callable[[str], RunDir], tmp_path: Path, number: int
) -> None:
    with pytest.raises(Crash), CrashAtWrite(number):
        train(retrained(parent, tmp_path, "rewind:1")[0], RunOptions(runs=tmp_path, save_minutes=0))
    config, run = retrained(parent, tmp_path, "rewind:1")
    train(config, RunOptions(runs=tmp_path))
    assert_same_run(run, whole("rewind:1"))


@pytest.mark.parametrize("after", [(1,), (STEPS,), (STEPS + 2, 1)])
def test_crashed_after_any_step_a_subnetwork_ends_the_same(
    parent: RunDir, whole: Callable[[str], RunDir], tmp_path: Path, after: tuple[int, ...]
) -> None:
    config, run = retrained(parent, tmp_path, "rewind:1")
    for steps in after:
        with pytest.raises(Crash):
            train(config, RunOptions(runs=tmp_path, save_minutes=0), CrashAt(steps))
    train(config, RunOptions(runs=tmp_path))
    assert_same_run(run, whole("rewind:1"))


def test_killed_while_it_writes_a_subnetwork_ends_the_same(
    parent: RunDir, whole: Callable[[str], RunDir], tmp_path: Path
) -> None:
    config, run = retrained(parent, tmp_path, "rewind:1")
    assert live(Life(config, tmp_path, 70, save_minutes=0)) == -signal.SIGKILL
    train(config, RunOptions(runs=tmp_path))
    assert_same_run(run, whole("rewind:1"))


def test_killed_before_its_first_save_a_network_that_goes_on_ends_the_same(
    filters: RunDir, tmp_path: Path
) -> None:
    """Some of its filters are in Gamma from the beginning."""
    config, run = retrained(filters, tmp_path / "killed", "finetune", Choice(density=0.8), epochs=1)
    with pytest.raises(Crash):
        train(config, RunOptions(runs=tmp_path / "killed"), CrashAt(2))
    train(config, RunOptions(runs=tmp_path / "killed"))
    config, whole = retrained(filters, tmp_path, "finetune", Choice(density=0.8), epochs=1)
    train(config, RunOptions(runs=tmp_path))
    assert_same_run(run, whole)
    path = open_path(run)
    inside = path.support(0)["conv1.weight"].flatten(1).any(1)
    assert inside.any()
    assert (path.entry_steps("conv1.weight")[inside] == 0).all()

"""What fast recipes are made of: smoothed labels, alternating flips, shifts, flips at the end."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn
from torch.nn.functional import log_softmax

from dessilbi.lab.data import PadCropFlip, batches, load_dataset
from dessilbi.lab.data.augment import seeded
from dessilbi.lab.run.config import ConfigError, DataConfig, OptimizerConfig, ScheduleConfig
from dessilbi.lab.run.files import INIT
from dessilbi.lab.training import build
from dessilbi.lab.training.build import load_data, network_without_data
from dessilbi.lab.training.evaluate import evaluate, prediction_loss
from dessilbi.lab.training.schedule import lr_factor
from lab_runs import FILTERS, TEXT, uninterrupted, weights_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from torch import Tensor


# ---------------------------------------------------------------------- the loss


@pytest.mark.parametrize("shape", [(7, 5), (3, 4, 5)], ids=["images", "texts"])
def test_a_smoothed_label_is_spread_over_all_classes(shape: tuple[int, ...]) -> None:
    logits = torch.randn(shape, dtype=torch.float64)
    labels = torch.randint(5, shape[:-1])
    target = nn.functional.one_hot(labels, 5).double() * 0.8 + 0.2 / 5
    by_hand = -(target * log_softmax(logits, -1)).sum(-1).mean()
    found = prediction_loss(logits, labels, label_smoothing=0.2)
    assert float(found) == pytest.approx(float(by_hand), rel=1e-12)
    with pytest.raises(ConfigError, match=r"label_smoothing must lie in \[0, 1\), got 1"):
        replace(FILTERS, label_smoothing=1)


def test_a_fast_run_is_the_loop_by_hand(tmp_path: Path) -> None:
    """Smoothed labels, one-cycle and Nesterov; the network is judged without smoothing."""
    config = replace(
        FILTERS,
        dtype="float64",
        label_smoothing=0.2,
        optimizer=OptimizerConfig(name="sgd", lr=0.2, momentum=0.9, nesterov=True),
        schedule=ScheduleConfig(kind="linear", warmup=0.5),
        epochs=2,
    )
    run = uninterrupted(config, tmp_path)

    model = network_without_data(config)
    model.load_state_dict(run.read_tensors(INIT))
    opt = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9, nesterov=True, fused=True)
    smoothed = nn.CrossEntropyLoss(label_smoothing=0.2)
    data = load_data(config, None, download=False)
    steps = [
        (x, y)
        for epoch in range(2)
        for x, y in batches(data.train, config.batch_size, seed=0, epoch=epoch)
    ]
    for step, (x, y) in enumerate(steps):
        factor = lr_factor(config.schedule, step=step, steps_per_epoch=len(steps) // 2, epochs=2)
        opt.param_groups[0]["lr"] = 0.2 * factor
        opt.zero_grad()
        smoothed(model(x), y).backward()
        opt.step()
    trained = weights_of(run)
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(trained[name], tensor, rtol=1e-9, atol=1e-9)
    plain = evaluate(model, data.test).mean_loss
    assert run.records()[-1]["loss"] == pytest.approx(plain, rel=1e-9)
    assert "flipped_accuracy" not in run.records()[-1]


# ---------------------------------------------------------------------- flips and shifts


def _naive(images: Tensor, seed: int, epoch: int, pad: int) -> Iterator[Tensor]:
    """Shifted as without alternation, mirrored by who was first and how late it is, one by one."""
    usual = PadCropFlip(pad=pad).draw(len(images), seeded(seed, epoch, 1))
    first = torch.randint(0, 2, (len(images),), generator=seeded(seed, 0, 2))
    for image, (top, left, _), mirrored in zip(images, usual.tolist(), first, strict=True):
        canvas = nn.functional.pad(image, (pad,) * 4)
        crop = canvas[:, top : top + image.shape[1], left : left + image.shape[2]]
        yield crop.flip(-1) if (int(mirrored) + epoch) % 2 else crop


@pytest.mark.parametrize("epoch", [0, 1, 5])
@pytest.mark.parametrize("batch_size", [64, 1000])
def test_alternating_flips_are_those_of_a_loop_over_images(epoch: int, batch_size: int) -> None:
    data = load_dataset("digits", dtype=torch.float64)
    augment = PadCropFlip(pad=2, alternating=True)
    stream = batches(data.train, batch_size, seed=3, epoch=epoch, shuffle=False, augment=augment)
    found = torch.cat([x for x, _ in stream])
    plain, _ = next(batches(data.train, len(data.train), seed=0, epoch=0, shuffle=False))
    assert torch.equal(found, torch.stack([*_naive(plain, 3, epoch, 2)]))


def test_two_epochs_show_both_sides_of_every_image() -> None:
    data = load_dataset("digits", dtype=torch.float64)
    augment = PadCropFlip(pad=0, alternating=True)
    sides = [
        next(batches(data.train, 2000, seed=0, epoch=e, shuffle=False, augment=augment))[0]
        for e in range(3)
    ]
    assert torch.equal(sides[1], sides[0].flip(-1))
    assert torch.equal(sides[2], sides[0])
    plain, _ = next(batches(data.train, 2000, seed=0, epoch=0, shuffle=False))
    mirrored = (sides[0] != plain).flatten(1).any(1).double().mean()
    assert 0.45 < mirrored < 0.55
    with pytest.raises(ValueError, match="got flip=False"):
        PadCropFlip(flip=False, alternating=True)


def test_a_configuration_changes_the_augmentation_of_its_set() -> None:
    usual = PadCropFlip(pad=4)
    changed = build._augmentation
    assert changed(DataConfig(), usual) is usual
    assert changed(DataConfig(), None) is None
    assert changed(DataConfig(shift=2), usual) == PadCropFlip(pad=2)
    assert changed(DataConfig(flip="alternating"), usual) == PadCropFlip(pad=4, alternating=True)
    with pytest.raises(ConfigError, match=r"data\.shift .* those of mnist are not$"):
        changed(DataConfig(name="mnist", shift=2), None)
    with pytest.raises(ConfigError, match=r"are not with data\.augment=False"):
        changed(DataConfig(name="cifar10", shift=2, augment=False), usual)


# ---------------------------------------------------------------------- flips when judged


def test_the_last_epoch_is_also_judged_with_flips(tmp_path: Path) -> None:
    config = replace(FILTERS, dtype="float64", test_flips=True)
    run = uninterrupted(config, tmp_path)
    first, last = run.records()
    assert "flipped_accuracy" not in first

    model = network_without_data(config)
    model.load_state_dict(weights_of(run))
    data = load_data(config, None, download=False)
    x, y = next(batches(data.test, len(data.test), seed=0, epoch=0, shuffle=False))
    model.eval()
    with torch.no_grad():
        logits = (model(x) + model(x.flip(-1))) / 2
    wanted = 100 * (logits.argmax(1) == y).double().mean()
    assert last["flipped_accuracy"] == pytest.approx(float(wanted))
    assert last["flipped_accuracy"] != last["accuracy"]
    score = evaluate(model, data.test, flips=True)
    assert score.mean_loss == pytest.approx(float(prediction_loss(logits, y)), rel=1e-9)


def test_a_text_has_no_mirror_image(texts: Path) -> None:
    with pytest.raises(ConfigError, match=r"test_flips mirrors images, and tiny\.txt is a text"):
        load_data(replace(TEXT, test_flips=True), texts, download=False)

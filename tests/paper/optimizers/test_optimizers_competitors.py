"""Every optimizer of the comparison learns, moves all it should, and resumes bit by bit."""

import io

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from dessilbi.lab.run.config import OptimizerConfig, ScheduleConfig
from dessilbi.lab.training.optimizers import make_optimizer
from dessilbi.lab.training.schedule import lr_factor, set_lr
from dessilbi.paper.competitors import OPTIMIZERS
from dessilbi.paper.optimizers import COMPETITORS

STEPS = 80


def problem():
    """Two classes of tiny images: a bright left half, or a bright right half."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(32) % 2
    x = 0.3 * torch.randn(32, 1, 6, 6, generator=generator)
    x[y == 0, :, :, :3] += 1
    x[y == 1, :, :, 3:] += 1
    return x, y


def net():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64, 8),
        nn.ReLU(),
        nn.Linear(8, 2),
    )


def train(model, optimizer, steps):
    x, y = problem()
    losses = []
    schedule = ScheduleConfig(kind="step", step_size=2, warmup=0.2)
    for step in steps:
        set_lr(optimizer, lr_factor(schedule, step=step, steps_per_epoch=20, epochs=4))
        optimizer.zero_grad()
        loss = cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_the_table_has_the_papers_rows_and_numbers():
    # SGD: 5, Adam: 5, DessiLBI: 3 rows; and one that the table does not have.
    assert list(COMPETITORS) == [
        "sgd-naive",
        "sgd-l1",
        "sgd-mom",
        "sgd-mom-wd",
        "sgd-nesterov",
        "adam",
        "adabound",
        "adagrad",
        "amsgrad",
        "radam",
        "dessilbi-naive",
        "dessilbi-mom",
        "dessilbi-mom-wd",
        "dessilbi-nesterov",
    ]
    for key, config in COMPETITORS.items():
        family, _, variant = key.partition("-")
        assert config == OptimizerConfig(
            name="sgd-l1" if key == "sgd-l1" else family,
            lr=0.1 if family in ("sgd", "dessilbi") else 0.001,
            momentum=0.9 if variant in ("mom", "mom-wd", "nesterov") else 0.0,
            weight_decay=1e-4 if variant == "mom-wd" else 0.0,
            nesterov=variant == "nesterov",
            l1=1e-3 if variant == "l1" else 0.0,
            kappa=1.0,
            nu=10.0 if family == "dessilbi" else None,
            lambd=1.0 if family == "dessilbi" else None,
        )


@pytest.mark.parametrize("key", OPTIMIZERS)
def test_each_learns_and_moves_every_parameter(key):
    model = net()
    start = {name: p.detach().clone() for name, p in model.named_parameters()}
    losses = train(model, make_optimizer(model, OPTIMIZERS[key]), range(STEPS))
    assert losses[-1] < 0.95 * losses[0]
    for name, p in model.named_parameters():
        assert torch.isfinite(p).all(), name
        assert not torch.equal(p, start[name]), name


@pytest.mark.parametrize("key", COMPETITORS)
def test_each_resumes_bit_by_bit(key):
    straight = net()
    optimizer = make_optimizer(straight, COMPETITORS[key])
    train(straight, optimizer, range(30))
    file = io.BytesIO()
    torch.save({"model": straight.state_dict(), "optimizer": optimizer.state_dict()}, file)
    train(straight, optimizer, range(30, 50))

    file.seek(0)
    saved = torch.load(file, weights_only=True)
    resumed = net()
    loaded = make_optimizer(resumed, COMPETITORS[key])
    resumed.load_state_dict(saved["model"])
    loaded.load_state_dict(saved["optimizer"])
    train(resumed, loaded, range(30, 50))
    for (name, p), q in zip(straight.named_parameters(), resumed.parameters(), strict=True):
        assert torch.equal(p, q), name


@pytest.mark.parametrize("key", ["sgd-mom-wd", "adam", "amsgrad", "adagrad", "dessilbi-mom-wd"])
def test_the_fused_step_learns_what_the_loop_learns(key):
    fused = net().double()
    train_double(fused, make_optimizer(fused, COMPETITORS[key]))
    loop = net().double()
    optimizer = make_optimizer(loop, COMPETITORS[key])
    for group in optimizer.param_groups:
        group["fused"] = None
    train_double(loop, optimizer)
    for p, q in zip(fused.parameters(), loop.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-9, atol=1e-10)


def train_double(model, optimizer):
    x, y = problem()
    for _ in range(10):
        optimizer.zero_grad()
        cross_entropy(model(x.double()), y).backward()
        optimizer.step()

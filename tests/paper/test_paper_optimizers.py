"""Every optimizer of the comparison learns and resumes; AdaBound and the l1 penalty are right."""

import io
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from dessilbi.lab.run.config import OptimizerConfig, ScheduleConfig
from dessilbi.lab.training.optimizers import make_optimizer
from dessilbi.lab.training.schedule import lr_factor, set_lr
from dessilbi.paper.competitors import OPTIMIZERS
from dessilbi.paper.optimizers import COMPETITORS, AdaBound, add_l1
from dessilbi.paper.published import CLASSIFICATION


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
    # And one that the table does not have.
    assert list(COMPETITORS) == [*CLASSIFICATION.rows, "dessilbi-nesterov"]
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
def test_each_learns_moves_every_parameter_and_resumes_bit_by_bit(key):
    straight = net()
    start = {name: p.detach().clone() for name, p in straight.named_parameters()}
    optimizer = make_optimizer(straight, OPTIMIZERS[key])
    losses = train(straight, optimizer, range(30))
    file = io.BytesIO()
    torch.save({"model": straight.state_dict(), "optimizer": optimizer.state_dict()}, file)
    losses += train(straight, optimizer, range(30, 80))
    assert losses[-1] < 0.95 * losses[0]

    file.seek(0)
    saved = torch.load(file, weights_only=True)
    resumed = net()
    loaded = make_optimizer(resumed, OPTIMIZERS[key])
    resumed.load_state_dict(saved["model"])
    loaded.load_state_dict(saved["optimizer"])
    train(resumed, loaded, range(30, 80))
    for (name, p), q in zip(straight.named_parameters(), resumed.parameters(), strict=True):
        assert torch.isfinite(p).all(), name
        assert not torch.equal(p, start[name]), name
        assert torch.equal(p, q), name


# ---------------------------------------------------------------------- AdaBound


def numpy_adabound(W, gradients, lrs, *, beta1, beta2, eps, decay, final_lr, gamma):
    """Algorithm 2, one line for one line, with the rate of each iteration given."""
    m, v = np.zeros_like(W), np.zeros_like(W)
    base_lr = lrs[0]
    for t, (gradient, lr) in enumerate(zip(gradients, lrs, strict=True), start=1):
        g = gradient + decay * W
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g**2
        alpha = lr * np.sqrt(1 - beta2**t) / (1 - beta1**t)
        final = final_lr * lr / base_lr
        eta_l = final * (1 - 1 / (gamma * t + 1))
        eta_u = final * (1 + 1 / (gamma * t))
        eta = np.minimum(np.maximum(alpha / (np.sqrt(v) + eps), eta_l), eta_u)
        W = W - eta * m
    return W


def run(optimizer, W, gradients, lrs):
    for gradient, lr in zip(gradients, lrs, strict=True):
        optimizer.param_groups[0]["lr"] = lr
        W.grad = torch.from_numpy(gradient)
        optimizer.step()


@pytest.mark.parametrize("decay", [0.0, 0.05])
@pytest.mark.parametrize("gamma", [1e-3, 0.3])
@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.5, 0.9), (0.0, 0.0)])
def test_adabound_is_the_algorithm(decay, gamma, betas):
    rng = np.random.default_rng(0)
    start = rng.normal(size=(7, 5))
    # From tiny to huge, so that both bounds are met.
    gradients = rng.normal(size=(60, 7, 5)) * np.logspace(-6, 4, 5)
    lrs = [0.01] * 20 + [0.001] * 20 + [0.0001] * 20
    W = nn.Parameter(torch.from_numpy(start.copy()))
    optimizer = AdaBound([W], lr=lrs[0], betas=betas, gamma=gamma, weight_decay=decay)
    run(optimizer, W, gradients, lrs)
    assert np.array_equal(W.grad.numpy(), gradients[-1]), "gradients stay as they are"
    options = {"eps": 1e-8, "decay": decay, "final_lr": 0.1, "gamma": gamma}
    expected = numpy_adabound(start, gradients, lrs, beta1=betas[0], beta2=betas[1], **options)
    np.testing.assert_allclose(W.detach().numpy(), expected, rtol=1e-11, atol=1e-12)


def test_adabound_with_wide_bounds_is_adam_and_with_closed_ones_sgd():
    # As gamma -> 0 the bounds are [0, infinity): Adam with eps outside of the bias correction. As
    # it grows they close at once.
    rng = np.random.default_rng(1)
    start, gradients = rng.normal(size=8), rng.normal(size=(30, 8))
    for ours, theirs in (
        ({"lr": 0.01, "gamma": 1e-12, "eps": 0.0}, (torch.optim.Adam, {"lr": 0.01, "eps": 0.0})),
        ({"lr": 0.01, "gamma": 1e12, "betas": (0.0, 0.999)}, (torch.optim.SGD, {"lr": 0.1})),
    ):
        W, other = (nn.Parameter(torch.from_numpy(start.copy())) for _ in range(2))
        run(AdaBound([W], **ours), W, gradients, [0.01] * 30)
        kind, options = theirs
        run(kind([other], **options), other, gradients, [options["lr"]] * 30)
        torch.testing.assert_close(W, other, rtol=1e-9, atol=1e-10)


def test_adabound_keeps_the_base_rate_of_each_group_also_in_its_state():
    a, b, idle = (nn.Parameter(torch.zeros(2)) for _ in range(3))
    groups = [{"params": [a]}, {"params": [b, idle], "lr": 0.02}]
    optimizer = AdaBound(groups, lr=0.01)
    optimizer.param_groups[0]["lr"] = 0.001
    optimizer.load_state_dict(optimizer.state_dict())
    assert [g["base_lr"] for g in optimizer.param_groups] == [0.01, 0.02]

    def closure():
        optimizer.zero_grad()
        loss = (a + b - 1).square().sum()
        loss.backward()
        return float(loss.detach())

    assert optimizer.step(closure) == 2.0
    assert bool((b > 0).all())
    assert torch.equal(idle, torch.zeros(2))


@pytest.mark.parametrize("lr", [0.0, math.nan])
def test_adabound_needs_a_rate(lr):
    with pytest.raises(ValueError, match=f"lr must be > 0 and finite, got {lr}"):
        AdaBound([nn.Parameter(torch.zeros(1))], lr=lr)


# ---------------------------------------------------------------------- the l1 penalty


@pytest.mark.parametrize(
    "options",
    [{}, {"momentum": 0.9, "nesterov": True}, {"momentum": 0.9, "weight_decay": 0.01}],
)
def test_sgd_with_l1_is_sgd_on_the_penalised_loss_of_filters_and_matrices(options):
    ours, theirs = net().double(), net().double()
    x, y = problem()
    with torch.no_grad():
        ours[4].weight[0, :5] = theirs[4].weight[0, :5] = 0.0
    penalised = make_optimizer(ours, OptimizerConfig(name="sgd-l1", lr=0.05, l1=0.01, **options))
    plain = torch.optim.SGD(theirs.parameters(), lr=0.05, **options)
    for _ in range(10):
        penalised.zero_grad()
        cross_entropy(ours(x.double()), y).backward()
        penalised.step()
        plain.zero_grad()
        norm = sum(p.abs().sum() for p in theirs.parameters() if p.ndim >= 2)
        (cross_entropy(theirs(x.double()), y) + 0.01 * norm).backward()
        plain.step()
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-10, atol=1e-12)


def test_a_negative_penalty_is_refused():
    W = nn.Parameter(torch.ones(1))
    with pytest.raises(ValueError, match="strength must be >= 0, got -1"):
        add_l1(torch.optim.SGD([W]), [W], -1)

"""AdaBound against the algorithm spelled out in numpy, and as the SGD that it becomes."""

import io
import math

import numpy as np
import pytest
import torch
from torch import nn

from dessilbi.paper.optimizers import AdaBound
from dessilbi.paper.optimizers.adabound import bounds


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
    expected = numpy_adabound(
        start,
        gradients,
        lrs,
        beta1=betas[0],
        beta2=betas[1],
        eps=1e-8,
        decay=decay,
        final_lr=0.1,
        gamma=gamma,
    )
    np.testing.assert_allclose(W.detach().numpy(), expected, rtol=1e-11, atol=1e-12)


def test_wide_bounds_give_adam():
    # As gamma -> 0 the bounds are [0, infinity): Adam with eps outside of the bias correction.
    rng = np.random.default_rng(1)
    start, gradients = rng.normal(size=8), rng.normal(size=(30, 8))
    ours, theirs = (nn.Parameter(torch.from_numpy(start.copy())) for _ in range(2))
    run(AdaBound([ours], lr=0.01, gamma=1e-12, eps=0.0), ours, gradients, [0.01] * 30)
    run(torch.optim.Adam([theirs], lr=0.01, eps=0.0), theirs, gradients, [0.01] * 30)
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-10)


def test_late_steps_are_sgd_at_the_final_rate():
    rng = np.random.default_rng(2)
    start, gradients = rng.normal(size=8), rng.normal(size=(20, 8))
    ours, theirs = (nn.Parameter(torch.from_numpy(start.copy())) for _ in range(2))
    optimizer = AdaBound([ours], lr=1e-3, final_lr=0.1, betas=(0.0, 0.999))
    ours.grad = torch.zeros_like(ours)
    optimizer.step()
    optimizer.state[ours]["step"].fill_(1e13)
    run(optimizer, ours, gradients, [1e-3] * 20)
    run(torch.optim.SGD([theirs], lr=0.1), theirs, gradients, [0.1] * 20)
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


def test_late_steps_with_momentum_follow_the_running_mean():
    # gamma large: the bounds have closed from the first step on.
    rng = np.random.default_rng(3)
    start, gradients = rng.normal(size=8), rng.normal(size=(20, 8))
    W = nn.Parameter(torch.from_numpy(start.copy()))
    run(AdaBound([W], lr=1e-3, final_lr=0.2, gamma=1e12), W, gradients, [1e-3] * 20)
    expected, mean = start, np.zeros(8)
    for g in gradients:
        mean = 0.9 * mean + 0.1 * g
        expected = expected - 0.2 * mean
    np.testing.assert_allclose(W.detach().numpy(), expected, rtol=1e-9)


def test_bounds_close_on_the_final_rate_and_follow_the_schedule():
    group = {"lr": 1e-3, "base_lr": 1e-3, "final_lr": 0.1, "gamma": 1e-3}
    table = [bounds(group, t) for t in (1, 10, 1000, 10**6)]
    lowers, uppers = zip(*table, strict=True)
    assert list(lowers) == sorted(lowers)
    assert list(uppers) == sorted(uppers, reverse=True)
    assert lowers[-1] < 0.1 < uppers[-1]
    assert uppers[-1] - lowers[-1] < 1e-3
    lowered = bounds(group | {"lr": 1e-4}, 1000)
    assert lowered == pytest.approx([0.1 * b for b in bounds(group, 1000)])


def test_gradients_stay_as_they_are():
    W = nn.Parameter(torch.randn(4, 3))
    W.grad = torch.randn(4, 3)
    before = W.grad.clone()
    AdaBound([W], weight_decay=0.1).step()
    assert torch.equal(W.grad, before)


def test_parameters_without_gradient_and_zero_gradients_stay_put():
    idle, still = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
    still.grad = torch.zeros(3)
    AdaBound([idle, still], eps=0.0).step()
    assert torch.equal(idle, torch.ones(3))
    assert torch.equal(still, torch.ones(3))


def test_state_round_trip_keeps_the_base_rate_and_continues_exactly():
    def make():
        torch.manual_seed(0)
        W = nn.Parameter(torch.randn(6, 2))
        return W, AdaBound([W], lr=0.01)

    rng = np.random.default_rng(4)
    gradients = rng.normal(size=(10, 6, 2)).astype(np.float32)
    W, optimizer = make()
    run(optimizer, W, gradients[:5], [0.01] * 4 + [0.001])
    file = io.BytesIO()
    torch.save({"W": W.detach(), "optimizer": optimizer.state_dict()}, file)
    run(optimizer, W, gradients[5:], [0.001] * 5)

    again, resumed = make()
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    again.data.copy_(saved["W"])
    resumed.load_state_dict(saved["optimizer"])
    assert resumed.param_groups[0]["base_lr"] == 0.01
    run(resumed, again, gradients[5:], [0.001] * 5)
    assert torch.equal(W, again)


def test_each_group_has_its_own_rates():
    a, b = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2))
    optimizer = AdaBound([{"params": [a]}, {"params": [b], "lr": 0.02}], lr=0.01)
    assert [g["base_lr"] for g in optimizer.param_groups] == [0.01, 0.02]


def test_closure_is_evaluated_with_gradients():
    W = nn.Parameter(torch.ones(2))
    optimizer = AdaBound([W])

    def closure():
        optimizer.zero_grad()
        loss = W.square().sum()
        loss.backward()
        return float(loss.detach())

    assert optimizer.step(closure) == 2.0
    assert not torch.equal(W, torch.ones(2))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"lr": 0.0}, "lr must be > 0 and finite, got 0.0"),
        ({"lr": math.nan}, "lr must be > 0 and finite, got nan"),
        ({"final_lr": -1.0}, "final_lr must be > 0"),
        ({"gamma": 0.0}, "gamma must be > 0"),
        ({"eps": -1e-8}, "eps must be >= 0"),
        ({"weight_decay": math.inf}, "weight_decay must be >= 0 and finite"),
        ({"betas": (0.9, 1.0)}, r"betas must lie in \[0, 1\)"),
    ],
)
def test_bad_options_are_named(options, words):
    with pytest.raises(ValueError, match=words):
        AdaBound([nn.Parameter(torch.zeros(1))], **options)


def test_a_refused_group_is_not_added():
    optimizer = AdaBound([nn.Parameter(torch.zeros(1))])
    with pytest.raises(ValueError, match="gamma"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))], "gamma": -1.0})
    assert len(optimizer.param_groups) == 1


def test_sparse_gradients_are_refused():
    layer = nn.Embedding(4, 2, sparse=True)
    layer(torch.tensor([1])).sum().backward()
    with pytest.raises(RuntimeError, match="sparse gradients"):
        AdaBound(layer.parameters()).step()

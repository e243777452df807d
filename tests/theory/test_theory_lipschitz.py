"""The curvature estimate: right, with a bound that holds, and without a trace on the model."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from theory_problems import problem
from torch import Tensor, nn
from torch.autograd.functional import hessian
from torch.func import functional_call
from torch.nn.functional import cross_entropy, max_pool2d, mse_loss, relu, selu

from dessilbi.theory import LipschitzTrack, lipschitz
from dessilbi.theory._lanczos import lanczos, upper_bound


def exact(net: nn.Module, loss_fn: Any, x: Tensor, y: Tensor) -> Tensor:
    """All eigenvalues of the full Hessian."""
    shapes = {name: p.shape for name, p in net.named_parameters()}

    def loss(flat: Tensor) -> Tensor:
        parts = flat.split([shape.numel() for shape in shapes.values()])
        named = {n: part.view(s) for (n, s), part in zip(shapes.items(), parts, strict=True)}
        return loss_fn(functional_call(net, named, (x,)), y)

    flat = torch.cat([p.detach().reshape(-1) for p in net.parameters()])
    return torch.linalg.eigvalsh(hessian(loss, flat))


def image_net() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.Softplus(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(12, 4)
    ).double()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", ["tanh", "softplus", "conv", "wide"])
def test_it_is_within_one_percent_of_the_exact_hessian(kind: str, seed: int) -> None:
    torch.manual_seed(seed)
    if kind == "wide":
        net = nn.Sequential(nn.Linear(8, 12), nn.Tanh(), nn.Linear(12, 4)).double()
        loss_fn = mse_loss
        x, y = (torch.randn(30, n, dtype=torch.float64) for n in (8, 4))
    elif kind == "conv":
        net, loss_fn = image_net(), cross_entropy
        x, y = torch.randn(20, 1, 6, 6, dtype=torch.float64), torch.randint(4, (20,))
    else:
        made = problem(kind, seed)
        net, loss_fn, x, y = made.net, mse_loss, made.x, made.y
    eigenvalues = exact(net, loss_fn, x, y)
    found = lipschitz(net, loss_fn, [(x, y)])
    lip = float(eigenvalues.abs().max())
    assert found.value == pytest.approx(lip, rel=0.01)
    assert found.value <= lip * (1 + 1e-9)
    assert lip * (1 - 1e-12) <= found.upper <= 1.06 * lip
    point = found.points[0]
    assert point.largest <= float(eigenvalues[-1]) + 1e-9
    assert point.smallest >= float(eigenvalues[0]) - 1e-9
    # The residual encloses an eigenvalue.
    ends = torch.tensor([point.largest, point.smallest], dtype=torch.float64)
    chosen = ends[ends.abs().argmax()]
    assert float((eigenvalues - chosen).abs().min()) <= point.residual + 1e-9


def test_several_batches_are_one_loss() -> None:
    made = problem("tanh")
    parts = [(made.x[:5], made.y[:5]), (made.x[5:], made.y[5:])]
    whole = lipschitz(made.net, mse_loss, [(made.x, made.y)], tol=1e-8)
    assert lipschitz(made.net, mse_loss, parts, tol=1e-8).value == pytest.approx(whole.value)
    assert whole.images == 16


def test_weight_decay_is_part_of_the_loss() -> None:
    made = problem("softplus")
    plain = lipschitz(made.net, mse_loss, [(made.x, made.y)], tol=1e-8)
    decayed = lipschitz(made.net, mse_loss, [(made.x, made.y)], weight_decay=0.5, tol=1e-8)
    assert decayed.points[0].largest == pytest.approx(plain.points[0].largest + 0.5)


def test_the_largest_absolute_value_counts() -> None:
    """A saddle whose downward curvature is the stronger one."""
    net = nn.Linear(2, 1, bias=False).double()

    def saddle(out: Tensor, y: Tensor) -> Tensor:
        return (out[0] ** 2 - 3 * out[1] ** 2).sum() / 2

    found = lipschitz(net, saddle, [(torch.eye(2, dtype=torch.float64), torch.zeros(2))])
    assert found.value == pytest.approx(3)
    assert (found.points[0].largest, found.points[0].smallest) == pytest.approx((1, -3))
    assert found.upper == found.value  # two dimensions are searched to the end


def test_a_flat_loss_has_no_curvature() -> None:
    net = nn.Linear(3, 1)
    found = lipschitz(net, lambda out, y: out.sum(), [(torch.randn(4, 3), torch.zeros(4))])
    assert found.value == found.upper == 0


# ---------------------------------------------------------------------- the confidence


def test_the_bound_is_exceeded_as_rarely_as_it_says() -> None:
    """A spectrum that is hard for Lanczos; few steps; bounds that should fail at most 1 in 5."""
    n, failure = 200, 0.2
    spectrum = torch.cat([torch.linspace(-0.5, 0.97, n - 1), torch.ones(1)]).double()
    generator = torch.Generator().manual_seed(0)
    exceeded, loose = 0, []
    for _ in range(200):
        start = torch.randn(n, dtype=torch.float64, generator=generator)
        ends = lanczos(lambda v: spectrum * v, start, max_iter=12, enough=lambda ends: False)
        bound = upper_bound(ends, n, failure)
        exceeded += bound < 1
        loose.append(bound)
        assert ends.largest <= 1 + 1e-12
    assert exceeded <= failure * 200
    assert max(loose) < 1.6


def test_few_iterations_claim_nothing() -> None:
    made = problem("tanh")
    found = lipschitz(made.net, mse_loss, [(made.x, made.y)], max_iter=1)
    assert found.upper == math.inf
    assert found.points[0].iterations == 1


def test_it_says_what_it_knows() -> None:
    made = problem("relu")
    text = str(lipschitz(made.net, mse_loss, [(made.x, made.y)]))
    assert "with probability 0.99" in text
    assert "14 parameters, 16 images" in text
    assert "not smooth: relu;" in text


# ---------------------------------------------------------------------- along a run


def test_a_trajectory_keeps_the_largest() -> None:
    made = problem("tanh")
    states = []
    for scale in (0.5, 2.0, 1.0):
        states.append({name: scale * t for name, t in made.net.state_dict().items()})
    found = lipschitz(made.net, mse_loss, [(made.x, made.y)], trajectory=states, tol=1e-6)
    values = []
    for state in states:
        made.net.load_state_dict(state)
        values.append(float(exact(made.net, mse_loss, made.x, made.y).abs().max()))
    assert [point.lip for point in found.points] == pytest.approx(values, rel=1e-5)
    assert found.value == pytest.approx(max(values), rel=1e-5)
    assert [point.label for point in found.points] == ["point 0", "point 1", "point 2"]


def test_a_track_follows_the_model() -> None:
    made = problem("tanh")
    track = made.track()
    first = track("start")
    with torch.no_grad():
        made.net[0].weight.mul_(3)
    second = track("later")
    assert track.estimate.points == (first, second)
    assert first.lip != second.lip


# ---------------------------------------------------------------------- kinks


class Functional(nn.Module):
    """Uses functions where others use modules."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3)

    def forward(self, x: Tensor) -> Tensor:
        return max_pool2d(relu(self.conv(x)), 2).flatten(1)


def kinks(net: nn.Module, x: Tensor) -> tuple[str, ...]:
    return lipschitz(net, lambda out, y: (out**2).mean(), [(x, torch.zeros(1))]).nonsmooth


def test_kinks_are_named() -> None:
    x = torch.randn(2, 1, 6, 6)
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
    assert kinks(net, x) == ("maxpool2d", "relu")
    assert kinks(Functional(), x) == ("maxpool2d", "relu")
    assert kinks(nn.Sequential(nn.Conv2d(1, 2, 3), nn.PReLU()), x) == ("prelukernel",)
    assert kinks(nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU6()), x) == ("hardtanh",)


@pytest.mark.parametrize(
    "activation", [nn.Tanh(), nn.Softplus(), nn.GELU(), nn.SiLU(), nn.ELU(), nn.Sigmoid()]
)
def test_smooth_nets_are_called_smooth(activation: nn.Module) -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), activation, nn.AvgPool2d(2))
    assert kinks(net, torch.randn(2, 1, 6, 6)) == ()


def test_kinks_of_functions_and_losses_are_seen() -> None:
    net = nn.Linear(3, 2)
    x, y = torch.randn(4, 3), torch.zeros(4, 2)

    def seen(loss_fn: Any) -> tuple[str, ...]:
        return lipschitz(net, loss_fn, [(x, y)]).nonsmooth

    assert seen(lambda out, y: (out - y).abs().mean()) == ("abs",)
    assert seen(lambda out, y: out.clamp(0, 1).square().mean()) == ("clamp",)
    assert seen(lambda out, y: selu(out).square().mean()) == ("selu",)
    assert seen(lambda out, y: nn.functional.elu(out).square().mean()) == ()
    assert seen(nn.functional.huber_loss) == ()


# ---------------------------------------------------------------------- any model, and no trace


class Sequence(nn.Module):
    """Recurrence and attention: kernels without a second derivative must be avoided."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(3, 4, batch_first=True)
        self.attention = nn.TransformerEncoderLayer(4, 2, 8, activation="gelu", batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(self.rnn(x)[0])[:, -1]


def test_recurrence_and_attention() -> None:
    torch.manual_seed(0)
    net = Sequence().double()
    net.eval()
    x, y = torch.randn(6, 5, 3, dtype=torch.float64), torch.randint(4, (6,))
    found = lipschitz(net, cross_entropy, [(x, y)], max_iter=30)
    assert found.value == pytest.approx(float(exact_by_products(net, x, y).abs().max()), rel=0.01)


def exact_by_products(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    params = list(net.parameters())
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        grads = torch.autograd.grad(cross_entropy(net(x), y), params, create_graph=True)
        flat = torch.cat([g.reshape(-1) for g in grads])
        rows = [
            torch.cat([h.reshape(-1) for h in torch.autograd.grad(
                entry, params, retain_graph=True, allow_unused=True, materialize_grads=True
            )])
            for entry in flat
        ]  # fmt: skip
    return torch.linalg.eigvalsh(torch.stack(rows))


def test_nothing_of_the_model_changes() -> None:
    torch.manual_seed(1)
    net = nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Tanh(), nn.Dropout(0.5), nn.Flatten(),
        nn.Linear(48, 2),
    )  # fmt: skip
    x, y = torch.randn(8, 1, 6, 6), torch.randint(2, (8,))
    net[0].weight.grad = torch.ones_like(net[0].weight)
    before = {name: t.clone() for name, t in net.state_dict().items()}
    random = torch.get_rng_state()
    found = lipschitz(net, cross_entropy, [(x, y), (x, y)])
    again = lipschitz(net, cross_entropy, [(x, y), (x, y)])
    assert found == again
    assert torch.equal(torch.get_rng_state(), random)
    for name, t in net.state_dict().items():
        assert torch.equal(t, before[name]), name
    assert net.training
    assert torch.equal(net[0].weight.grad, torch.ones_like(net[0].weight))
    assert net[0].bias.grad is None
    assert [note.split(":")[0] for note in found.notes] == ["BatchNorm", "Dropout"]
    net.eval()
    assert lipschitz(net, cross_entropy, [(x, y)]).notes == ()


def test_frozen_parameters_do_not_count() -> None:
    made = problem("tanh")
    made.net[0].requires_grad_(False)
    found = lipschitz(made.net, mse_loss, [(made.x, made.y)])
    assert found.parameters == 6


# ---------------------------------------------------------------------- mistakes


def test_mistakes_are_named() -> None:
    made = problem("tanh")
    data = [(made.x, made.y)]
    with pytest.raises(ValueError, match=r"batches must hold at least one \(x, y\) pair"):
        lipschitz(made.net, mse_loss, [])
    with pytest.raises(ValueError, match="confidence must be in"):
        lipschitz(made.net, mse_loss, data, confidence=1.0)
    with pytest.raises(ValueError, match="max_iter must be >= 1, got 0"):
        lipschitz(made.net, mse_loss, data, max_iter=0)
    with pytest.raises(ValueError, match="weight_decay must be >= 0"):
        lipschitz(made.net, mse_loss, data, weight_decay=-1)
    with pytest.raises(ValueError, match=r"one number, got shape \(16, 2\)"):
        lipschitz(made.net, lambda out, y: out - y, data)
    with pytest.raises(ValueError, match=r"lack parameter '0.weight'"):
        lipschitz(made.net, mse_loss, data, trajectory=[{}])
    wrong = made.net.state_dict() | {"0.bias": torch.zeros(7)}
    with pytest.raises(ValueError, match=r"'0.bias' has shape \(2,\) in the model and \(7,\)"):
        lipschitz(made.net, mse_loss, data, trajectory=[wrong])
    with pytest.raises(ValueError, match="no point has been estimated"):
        _ = LipschitzTrack(made.net, mse_loss, data).estimate
    with torch.no_grad():
        made.net[0].weight.fill_(math.nan)
    with pytest.raises(ValueError, match="not finite"):
        lipschitz(made.net, mse_loss, data)
    frozen = nn.Linear(1, 1).requires_grad_(False)
    with pytest.raises(ValueError, match="no parameter that requires a gradient"):
        lipschitz(frozen, mse_loss, data)

"""SGD with an l1 penalty: the same as SGD on the penalised loss, with gradients left alone."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from dessilbi.lab.run.config import OptimizerConfig
from dessilbi.lab.training.optimizers import make_optimizer
from dessilbi.paper.optimizers import SGDL1
from dessilbi.paper.optimizers.sgd_l1 import penalise_weights


def net():
    torch.manual_seed(0)
    layers = (nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 2))
    return nn.Sequential(*layers).double()


X = torch.linspace(-1, 1, 8 * 36, dtype=torch.float64).sin().reshape(8, 1, 6, 6)
Y = torch.arange(8) % 2


@pytest.mark.parametrize("fused", [None, True])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"momentum": 0.9},
        {"momentum": 0.9, "nesterov": True},
        {"momentum": 0.9, "weight_decay": 0.01},
    ],
)
def test_it_is_sgd_on_the_penalised_loss(options, fused):
    ours, theirs = net(), net()
    with torch.no_grad():
        ours[4].weight[0, :5] = theirs[4].weight[0, :5] = 0.0
    penalised = SGDL1(penalise_weights(ours, 0.01), lr=0.05, l1=0.01, fused=fused, **options)
    plain = torch.optim.SGD(theirs.parameters(), lr=0.05, **options)
    for _ in range(10):
        penalised.zero_grad()
        cross_entropy(ours(X), Y).backward()
        penalised.step()
        plain.zero_grad()
        norm = theirs[0].weight.abs().sum() + theirs[4].weight.abs().sum()
        (cross_entropy(theirs(X), Y) + 0.01 * norm).backward()
        plain.step()
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-10, atol=1e-12)


def test_filters_and_matrices_are_penalised_biases_and_norms_are_not():
    groups = {g["name"]: g for g in penalise_weights(net(), 0.5)}
    assert [name for name, _ in groups["weights"]["params"]] == ["0.weight", "4.weight"]
    assert groups["weights"]["l1"] == 0.5
    assert groups["others"]["l1"] == 0.0
    assert len(groups["others"]["params"]) == 4


def test_a_model_without_biases_makes_one_group():
    assert len(penalise_weights(nn.Linear(2, 2, bias=False), 0.1)) == 1


def test_gradients_stay_as_they_are():
    model = net()
    optimizer = make_optimizer(model, OptimizerConfig(name="sgd-l1", l1=1.0, momentum=0.9))
    cross_entropy(model(X), Y).backward()
    before = [(p.grad, p.grad.clone()) for p in model.parameters()]
    optimizer.step()
    for p, (grad, values) in zip(model.parameters(), before, strict=True):
        assert p.grad is grad
        assert torch.equal(grad, values)


def test_a_copied_or_moved_optimizer_goes_on():
    W = nn.Parameter(torch.ones(2, 2))
    optimizer = SGDL1([W], lr=0.1, l1=0.5)
    W.grad = torch.zeros(2, 2)
    optimizer.step()
    twin = copy.deepcopy(optimizer)
    (V,) = twin.param_groups[0]["params"]
    V.grad = torch.zeros(2, 2)
    twin.step()
    W.data, W.grad = W.data.double(), None
    W.grad = torch.zeros(2, 2, dtype=torch.float64)
    optimizer.step()
    torch.testing.assert_close(W.detach().float(), torch.full((2, 2), 0.9))
    torch.testing.assert_close(V.detach(), torch.full((2, 2), 0.9))


def test_the_sums_are_not_part_of_the_state():
    W = nn.Parameter(torch.ones(2, 2))
    optimizer = SGDL1([W])
    W.grad = torch.zeros(2, 2)
    optimizer.step()
    assert optimizer.state_dict()["state"] == {}


def test_hooks_run_once_also_after_a_plain_sgd_was_made():
    torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    W = nn.Parameter(torch.ones(2, 2))
    optimizer = SGDL1([W])
    calls = []
    optimizer.register_step_pre_hook(lambda *_: calls.append("pre"))
    optimizer.register_step_post_hook(lambda *_: calls.append("post"))
    W.grad = torch.ones(2, 2)
    optimizer.step()
    assert calls == ["pre", "post"]


def test_a_closure_gives_the_gradient_that_is_penalised():
    W = nn.Parameter(torch.tensor([[2.0, -2.0]]))
    optimizer = SGDL1([W], lr=0.1, l1=0.5)

    def closure():
        optimizer.zero_grad()
        loss = W.sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    torch.testing.assert_close(W.detach(), torch.tensor([[2 - 0.15, -2 - 0.05]]))


def test_groups_added_later_get_the_penalty_too():
    optimizer = SGDL1([nn.Parameter(torch.ones(1, 1))], l1=0.25)
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1, 1))]})
    assert [g["l1"] for g in optimizer.param_groups] == [0.25, 0.25]


def test_a_negative_penalty_is_refused():
    with pytest.raises(ValueError, match=r"l1 must be >= 0 and finite, got -1.0"):
        SGDL1([nn.Parameter(torch.ones(1, 1))], l1=-1.0)

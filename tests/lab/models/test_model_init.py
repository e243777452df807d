import math

import pytest
import torch
from torch import nn

from dessilbi.lab.models import ModelError, initialize, make_model
from dessilbi.lab.models.init import NORMALISATIONS

TASK = {"num_classes": 10, "in_channels": 1, "input_size": 28}


def weighted_layers(model):
    return [m for m in model.modules() if isinstance(m, nn.Conv2d | nn.Linear)]


def fan(weight: torch.Tensor, scheme: str) -> int:
    fan_out = scheme == "he" and weight.ndim == 4
    return (weight.shape[0] if fan_out else weight.shape[1]) * weight[0, 0].numel()


@pytest.mark.parametrize("scheme", ["he", "he-fan-in"])
@pytest.mark.parametrize("name", ["lenet-5", "conv-4", "resnet-20"])
def test_weights_follow_the_normal_law_of_he(name, scheme):
    torch.manual_seed(0)
    model = make_model(name, **TASK, init=scheme)
    for layer in weighted_layers(model):
        weight = layer.weight.detach().double()
        z = weight.flatten() / math.sqrt(2 / fan(weight, scheme))
        # Of n standard normal draws: mean N(0, 1/n), variance about N(1, 2/n). Five sigma.
        n = z.numel()
        assert abs(z.mean()) < 5 / math.sqrt(n)
        assert abs(z.square().mean() - 1) < 5 * math.sqrt(2 / n)


@pytest.mark.parametrize("scheme", ["he", "he-fan-in"])
def test_biases_are_zero_and_normalisation_is_fresh(scheme):
    model = make_model("digits-net", num_classes=10, in_channels=1, input_size=8)
    model(torch.rand(4, 1, 8, 8))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(3.0)
    initialize(model, scheme)
    assert torch.count_nonzero(model.fc.bias) == 0
    for layer in (m for m in model.modules() if isinstance(m, nn.BatchNorm2d)):
        assert torch.all(layer.weight == 1)
        assert torch.all(layer.bias == 0)
        assert torch.all(layer.running_mean == 0)
        assert torch.all(layer.running_var == 1)
        assert layer.num_batches_tracked == 0


def test_default_draws_anew_from_torchs_own_law():
    layer = nn.Linear(784, 300)
    before = layer.weight.detach().clone()
    initialize(layer, "default")
    bound = 1 / math.sqrt(784)  # uniform in [-bound, bound], weights and biases
    assert not torch.equal(layer.weight, before)
    assert layer.weight.abs().max() <= bound
    assert layer.weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.01)
    assert torch.count_nonzero(layer.bias) > 0


@pytest.mark.parametrize("layer", [cls for cls in NORMALISATIONS if cls is not nn.GroupNorm])
def test_layers_without_affine_parameters_are_no_obstacle(layer):
    keyword = "elementwise_affine" if layer is nn.LayerNorm else "affine"
    model = initialize(nn.Sequential(layer(4, **{keyword: False})), "he")
    assert not list(model.parameters())


def test_layers_of_other_kinds_stay_as_they_are():
    model = nn.Sequential(nn.Embedding(5, 3))
    before = model[0].weight.clone()
    assert torch.equal(initialize(model, "he")[0].weight, before)
    assert not torch.equal(initialize(model, "default")[0].weight, before)


def test_the_model_itself_comes_back():
    model = nn.Linear(2, 2)
    assert initialize(model, "he") is model


@pytest.mark.parametrize("scheme", ["he", "he-fan-in", "default"])
def test_one_seed_gives_one_net_and_another_gives_another(scheme):
    nets = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        nets.append(make_model("lenet-5", **TASK, init=scheme).conv.c5.weight)
    assert torch.equal(nets[0], nets[1])
    assert not torch.equal(nets[0], nets[2])


def test_unknown_scheme():
    with pytest.raises(ModelError, match="one of he, he-fan-in, default, got 'xavier'"):
        initialize(nn.Linear(2, 2), "xavier")

"""Which tensors get a twin, how they are grouped, and what a wrong pattern says."""

from typing import Any

import pytest
import torch
from torch import nn

from dessilbi import DessiLBI, split_parameters


class Zoo(nn.Module):
    """One of every layer that the grouping rules speak of; never run."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 4)
        self.conv1 = nn.Conv1d(3, 5, 3)
        self.conv2 = nn.Conv2d(4, 6, 3)
        self.conv3 = nn.Conv3d(2, 3, 2)
        self.depthwise = nn.Conv2d(6, 6, 3, groups=6)
        self.up = nn.ConvTranspose2d(6, 2, 2)
        self.up_grouped = nn.ConvTranspose2d(6, 4, 2, groups=2)
        self.up_depthwise = nn.ConvTranspose2d(6, 6, 2, groups=6)
        self.norm = nn.BatchNorm2d(6)
        self.attention = nn.MultiheadAttention(4, 2)
        self.lstm = nn.LSTM(4, 3)
        self.position = nn.Parameter(torch.zeros(1, 7, 4))
        self.fc = nn.Linear(4, 10)


def options_by_name(groups: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {name: group for group in groups for name, _ in group["params"]}


def test_the_papers_rules_for_every_layer() -> None:
    found = options_by_name(split_parameters(Zoo()))
    assert set(found) == {name for name, _ in Zoo().named_parameters()}
    filters = {
        name: group["group_dim"]
        for name, group in found.items()
        if group["penalty"] == "group_lasso"
    }
    assert filters == {
        "conv1.weight": 0,
        "conv2.weight": 0,
        "conv3.weight": 0,
        "depthwise.weight": 0,
        "up.weight": 1,
        "up_grouped.weight": 1,
        "up_depthwise.weight": 0,
    }
    by_element = {name for name, group in found.items() if group["penalty"] == "lasso"}
    assert by_element == {
        "attention.in_proj_weight",
        "attention.out_proj.weight",
        "lstm.weight_ih_l0",
        "lstm.weight_hh_l0",
        "fc.weight",
    }
    for untouched in ("embed.weight", "position", "norm.weight", "fc.bias"):
        assert found[untouched]["penalty"] is None


def test_optimizer_takes_the_groups_and_keeps_the_names() -> None:
    model = Zoo()
    opt = DessiLBI(split_parameters(model), lr=0.1)
    named = dict(model.named_parameters())
    for name, p in opt.twins():
        assert named[name] is p
    assert [g["name"] for g in opt.param_groups] == ["dense", "filters", "filters", "elements"]
    assert opt.density() == 0


def test_every_layer_of_the_zoo_is_stepped() -> None:
    model = Zoo()
    opt = DessiLBI(split_parameters(model), lr=0.1, nu=1.0, lambd=0.01)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    for _ in range(20):
        opt.step()
    for name, p in model.named_parameters():
        assert not torch.equal(p, before[name])
    assert all(opt.support(p).any() for _, p in opt.twins())


def test_filters_of_a_transposed_convolution_are_output_channels() -> None:
    layer = nn.ConvTranspose2d(3, 2, 2)
    opt = DessiLBI(split_parameters(layer), lr=1.0, nu=1.0, lambd=1.0)
    with torch.no_grad():
        layer.weight[:, 0] = 5.0
        layer.weight[:, 1] = 0.0
    layer.weight.grad = torch.zeros_like(layer.weight)
    opt.step()
    assert opt.support(layer.weight)[:, 0].all()
    assert not opt.support(layer.weight)[:, 1].any()


def test_tied_embedding_stays_untouched() -> None:
    model = nn.Module()
    model.out = nn.Linear(4, 10, bias=False)
    model.embed = nn.Embedding(10, 4)
    model.embed.weight = model.out.weight
    assert [g["penalty"] for g in split_parameters(model)] == [None]


def small() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 2))


def test_a_tied_weight_answers_to_each_of_its_names() -> None:
    net = nn.Module()
    net.encode, net.decode, net.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4, bias=False)
    net.decode.weight = net.head.weight = net.encode.weight
    for name in ("encode", "decode", "head"):
        assert (
            options_by_name(split_parameters(net, exclude=[name]))["encode.weight"]["penalty"]
            is None
        )
        found = options_by_name(split_parameters(net, {name: {"lambd": 9.0}}))
        assert found["encode.weight"]["lambd"] == 9.0


def test_weights_without_a_shape_are_refused() -> None:
    net = nn.Sequential(nn.LazyConv2d(4, 3), nn.Flatten(), nn.LazyLinear(2))
    with pytest.raises(ValueError, match=r"'0.weight' has no shape yet: run a batch through"):
        split_parameters(net)
    net(torch.ones(1, 1, 5, 5))
    assert options_by_name(split_parameters(net))["0.weight"]["penalty"] == "group_lasso"


def test_first_pattern_wins() -> None:
    model = nn.ModuleDict({"conv1": nn.Conv2d(1, 2, 3), "conv2": nn.Conv2d(2, 2, 3)})
    found = options_by_name(
        split_parameters(model, {"conv1": {"lambd": 0.3}, "conv?": {"lambd": 0.7, "nu": 5.0}})
    )
    assert found["conv1.weight"]["lambd"] == 0.3
    assert "nu" not in found["conv1.weight"]
    assert found["conv2.weight"]["lambd"] == 0.7
    assert found["conv2.weight"]["penalty"] == "group_lasso"


def test_patterns_reach_parameters_through_names_globs_and_modules() -> None:
    model = small()
    for pattern in ("3.weight", "3.*", "3", "?.w*", "*"):
        found = options_by_name(split_parameters(model, {pattern: {"lambd": 0.25}}))
        assert found["3.weight"]["lambd"] == 0.25


def test_a_wildcard_gives_vectors_no_twin_but_their_name_does() -> None:
    found = options_by_name(split_parameters(small(), {"*": {"penalty": "lasso"}}))
    assert found["0.weight"]["penalty"] == "lasso"
    assert found["1.weight"]["penalty"] is None
    found = options_by_name(split_parameters(small(), {"1.weight": {"penalty": "lasso"}}))
    assert found["1.weight"]["penalty"] == "lasso"
    assert found["1.bias"]["penalty"] is None


def test_neurons_and_input_channels() -> None:
    patterns = {"3": {"penalty": "group_lasso"}, "0": {"group_dim": 1}}
    found = options_by_name(split_parameters(small(), patterns))
    assert (found["3.weight"]["penalty"], found["3.weight"]["group_dim"]) == ("group_lasso", 0)
    assert (found["0.weight"]["penalty"], found["0.weight"]["group_dim"]) == ("group_lasso", 1)


def test_exclude_wins_and_the_parameter_is_still_trained() -> None:
    model = small()
    found = options_by_name(split_parameters(model, {"*": {"lambd": 0.1}}, exclude=["3"]))
    assert found["3.weight"]["penalty"] is None
    assert found["0.weight"]["penalty"] == "group_lasso"
    assert set(found) == {name for name, _ in model.named_parameters()}


def test_scaled_thresholds() -> None:
    found = options_by_name(split_parameters(small(), {"3": {"lambd": 0.5}}, size_scaled=True))
    assert found["0.weight"]["lambd_scale"] == "size"
    assert found["3.weight"]["lambd"] == 0.5
    found = options_by_name(split_parameters(small(), init_scaled=0.8))
    assert (found["0.weight"]["lambd_scale"], found["0.weight"]["lambd"]) == ("init", 0.8)
    assert "lambd_scale" not in found["1.weight"]


def test_init_scaled_threshold_is_relative_to_the_initial_norm() -> None:
    conv = nn.Conv2d(2, 3, 3, bias=False)
    W0 = conv.weight.detach().clone()
    opt = DessiLBI(split_parameters(conv, init_scaled=0.5), lr=0.1, nu=1.0)
    for _ in range(3):  # the scale is taken once, before the weights move
        conv.weight.grad = torch.ones_like(conv.weight)
        opt.step()
    lambd = opt.penalty(conv.weight).lambd
    assert isinstance(lambd, torch.Tensor)
    torch.testing.assert_close(lambd.flatten(), 0.5 * W0.flatten(1).norm(dim=1))


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        (
            {"patterns": {"conv9": {}}},
            r"pattern 'conv9' matched no parameter; did you mean 'conv[123]'",
        ),
        ({"exclude": ["fcc"]}, r"pattern 'fcc' matched no parameter; did you mean 'fc'"),
        ({"patterns": {"zzzzzz": {}}}, r"pattern 'zzzzzz' matched no parameter$"),
        (
            {"patterns": {"conv1": {"lamda": 0.1}}},
            r"pattern 'conv1' sets unknown option 'lamda'; did you mean 'lambd'",
        ),
        (
            {"patterns": {"*": {"lambd": 0.1}, "conv1": {"lambd": 0.2}}},
            r"pattern 'conv1' decides nothing: '\*' comes first and takes 'conv1.weight'",
        ),
        ({"size_scaled": True, "init_scaled": 1.0}, "cannot both be given"),
        ({"init_scaled": -1.0}, r"init_scaled must be >= 0, got -1.0"),
    ],
)
def test_errors_name_the_way_out(kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        split_parameters(Zoo(), **kwargs)


def test_a_model_without_parameters_is_refused() -> None:
    with pytest.raises(ValueError, match="Sequential has no parameters"):
        split_parameters(nn.Sequential(nn.ReLU()))


def test_frozen_parameters_get_no_twin() -> None:
    model = small()
    model[0].weight.requires_grad_(False)
    found = options_by_name(split_parameters(model, {"0": {"penalty": "group_lasso"}}))
    assert found["0.weight"]["penalty"] is None
    assert found["3.weight"]["penalty"] == "lasso"


class Wrapped(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.net = inner


def test_the_name_of_a_wrapper_never_matters() -> None:
    for model in (
        Wrapped(small()),
        nn.DataParallel(small()),
        torch.compile(small(), backend="eager"),
    ):
        groups = split_parameters(model, {"0": {"lambd": 0.25}}, exclude=["3"])
        found = options_by_name(groups)
        assert set(found) == {name for name, _ in model.named_parameters()}
        by_end = {name[-8:]: options for name, options in found.items()}
        assert by_end["0.weight"]["lambd"] == 0.25
        assert by_end["3.weight"]["penalty"] is None


class OwnLinear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight


def test_weights_of_unknown_modules_are_named() -> None:
    model = nn.Sequential(OwnLinear(), nn.Linear(3, 2))
    with pytest.warns(UserWarning, match=r"1 weights get no twin.*0\.weight \(OwnLinear\)"):
        split_parameters(model)
    split_parameters(model, exclude=["0"])  # whoever names it knows
    found = options_by_name(split_parameters(model, {"0": {"penalty": "lasso"}}))
    assert found["0.weight"]["penalty"] == "lasso"
    parametrized = nn.Sequential(torch.nn.utils.parametrizations.weight_norm(nn.Linear(3, 3)))
    with pytest.warns(UserWarning, match="ParametrizationList"):
        split_parameters(parametrized)


class Gated(nn.Module):
    """A transformer's hidden layer: SwiGLU beside a stream."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4)
        self.gate, self.up, self.down = nn.Linear(4, 6), nn.Linear(4, 6), nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))


def test_a_neuron_is_its_rows_and_its_column() -> None:
    groups = split_parameters(Gated(), tied=True, example_input=torch.zeros(2, 3, 4))
    (neurons,) = (g for g in groups if g.get("tied"))
    assert neurons["name"] == "neurons of gate.weight"
    assert [name for name, _ in neurons["params"]] == ["gate.weight", "up.weight", "down.weight"]
    assert neurons["group_dim"] == (0, 0, 1)
    model = Gated()
    opt = DessiLBI(
        split_parameters(model, tied=True, example_input=torch.zeros(2, 3, 4)),
        lr=0.5, nu=1.0, lambd=0.8,
    )  # fmt: skip
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    for _ in range(5):
        opt.step()
    mask = opt.mask()
    kept = mask["gate.weight"].any(1)
    assert torch.equal(kept, mask["up.weight"].any(1))
    assert torch.equal(kept, mask["down.weight"].any(0))
    decided = split_parameters(
        Gated(), {"up": {"penalty": "lasso"}}, tied=True, example_input=torch.zeros(2, 3, 4)
    )
    assert not any(g.get("tied") for g in decided)

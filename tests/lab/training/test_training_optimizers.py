"""From a configuration to an optimizer: which class, which options, which step; and refusals."""

import copy
import math

import pytest
import torch
from torch import nn

from dessilbi import DessiLBI, SplitLBI
from dessilbi.lab.run.config import ConfigError, OptimizerConfig
from dessilbi.lab.training import fused as fused_room
from dessilbi.lab.training.muon import MuonAdamW
from dessilbi.lab.training.optimizers import make_optimizer
from dessilbi.optim.native import KernelBuildError
from dessilbi.paper.optimizers import SGDL1, AdaBound

NAMES = ("dessilbi", "sgd", "adam", "amsgrad", "adagrad", "radam", "adabound", "adamw")
BASES = ("adam", "amsgrad", "adamw", "adagrad", "nadam", "radam", "rmsprop", "adabound", "muon")


def net():
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(48, 2))


@pytest.fixture
def no_compiler(monkeypatch):
    def fail():
        raise KernelBuildError("no compiler")

    monkeypatch.setattr(fused_room, "library", fail)
    fused_room.kernel_builds.cache_clear()
    yield
    fused_room.kernel_builds.cache_clear()


@pytest.mark.parametrize(
    ("config", "cls"),
    [
        (OptimizerConfig(name="dessilbi"), DessiLBI),
        (OptimizerConfig(name="sgd"), torch.optim.SGD),
        (OptimizerConfig(name="sgd-l1", l1=1e-3), SGDL1),
        (OptimizerConfig(name="adam"), torch.optim.Adam),
        (OptimizerConfig(name="amsgrad"), torch.optim.Adam),
        (OptimizerConfig(name="adagrad"), torch.optim.Adagrad),
        (OptimizerConfig(name="radam"), torch.optim.RAdam),
        (OptimizerConfig(name="adabound"), AdaBound),
        (OptimizerConfig(name="adamw"), torch.optim.AdamW),
        (OptimizerConfig(name="nadam"), torch.optim.NAdam),
        (OptimizerConfig(name="rmsprop"), torch.optim.RMSprop),
        (OptimizerConfig(name="muon"), MuonAdamW),
        (OptimizerConfig(base="adamw"), SplitLBI),
    ],
)
def test_each_name_gives_its_class_with_every_parameter_once(config, cls):
    model = net()
    optimizer = make_optimizer(model, config)
    assert type(optimizer) is cls
    held = [p for group in optimizer.param_groups for p in group["params"]]
    assert {id(p) for p in held} == {id(p) for p in model.parameters()}
    assert len(held) == len(list(model.parameters()))
    names = [name for group in optimizer.param_groups for name in group["param_names"]]
    assert set(names) == {name for name, _ in model.named_parameters()}
    assert optimizer.defaults.get("amsgrad", False) == (config.name == "amsgrad")


@pytest.mark.parametrize("name", NAMES)
def test_lr_and_weight_decay_reach_every_optimizer(name):
    optimizer = make_optimizer(net(), OptimizerConfig(name=name, lr=0.03, weight_decay=0.02))
    for group in optimizer.param_groups:
        assert group["lr"] == 0.03
        assert group["weight_decay"] == 0.02


@pytest.mark.parametrize(("name", "l1"), [("sgd", 0.0), ("sgd-l1", 1e-3)])
def test_sgd_takes_momentum_and_nesterov(name, l1):
    config = OptimizerConfig(name=name, momentum=0.8, nesterov=True, l1=l1)
    for group in make_optimizer(net(), config).param_groups:
        assert (group["momentum"], group["nesterov"], group["dampening"]) == (0.8, True, 0)


def test_dessilbi_takes_all_its_options():
    options = {
        "lr": 0.2,
        "momentum": 0.8,
        "nesterov": True,
        "weight_decay": 0.01,
        "kappa": 2.0,
        "nu": 5.0,
        "lambd": 0.4,
        "coupling": "momentum",
        "decoupled_weight_decay": True,
    }
    optimizer = make_optimizer(net(), OptimizerConfig(**options))
    for group in optimizer.param_groups:
        assert {name: group[name] for name in options} == options


def penalties(**options):
    optimizer = make_optimizer(net(), OptimizerConfig(**options))
    return {
        name: group["penalty"]
        for group in optimizer.param_groups
        for name in group["param_names"]
        if group["penalty"] is not None
    }


def test_dessilbi_penalises_filters_by_group_and_lines_by_element():
    assert penalties() == {"0.weight": "group_lasso", "3.weight": "lasso"}


def test_dessilbi_lasso_reaches_filters_but_no_vectors():
    assert penalties(penalty="lasso") == {"0.weight": "lasso", "3.weight": "lasso"}


def test_dessilbi_exclude_wins_over_lasso():
    assert penalties(penalty="lasso", exclude=("3",)) == {"0.weight": "lasso"}


def test_dessilbi_thresholds_scale_by_size_or_initial_norm():
    by_size = make_optimizer(net(), OptimizerConfig(size_scaled=True, lambd=0.3))
    by_norm = make_optimizer(net(), OptimizerConfig(c=0.7))
    assert [(g["lambd_scale"], g["lambd"]) for g in by_size.param_groups if g["penalty"]] == [
        ("size", 0.3)
    ] * 2
    assert [(g["lambd_scale"], g["lambd"]) for g in by_norm.param_groups if g["penalty"]] == [
        ("init", 0.7)
    ] * 2


def test_the_coupling_follows_from_its_time_and_the_rates_of_the_run():
    model = net()
    loose = make_optimizer(model, OptimizerConfig(lr=0.2), total_factor=300.0)
    assert {g["nu"] for g in loose.param_groups} == {0.2 * 300 / 10}
    tight = make_optimizer(model, OptimizerConfig(lr=0.2, tau=30.0), total_factor=300.0)
    assert {g["nu"] for g in tight.param_groups} == {2.0}
    given = make_optimizer(model, OptimizerConfig(lr=0.2, nu=7.0), total_factor=300.0)
    assert {g["nu"] for g in given.param_groups} == {7.0}
    adamw = make_optimizer(model, OptimizerConfig(lr=0.01, base="adamw"), total_factor=300.0)
    assert {g["nu"] for g in adamw.param_groups} == {0.3}
    still = make_optimizer(model, OptimizerConfig(lr=0.0), total_factor=300.0)
    assert {g["nu"] for g in still.param_groups} == {100.0}, "any will do where nothing moves"


@pytest.mark.parametrize("base", BASES)
def test_a_twin_grows_beside_any_base(base):
    model = net()
    options = {"momentum": 0.9} if base == "muon" else {}
    config = OptimizerConfig(base=base, lr=0.01, weight_decay=0.1, c=0.001, **options)
    optimizer = make_optimizer(model, config, total_factor=5.0)
    assert type(optimizer) is SplitLBI
    assert type(optimizer.base) is type(make_optimizer(net(), OptimizerConfig(name=base)))
    assert {name for name, _ in optimizer.twins()} == {"0.weight", "3.weight"}
    assert {(g["lr"], g["weight_decay"]) for g in optimizer.param_groups} == {(0.01, 0.1)}
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 1, 6, 6)).square().sum().backward()
        optimizer.step()
    assert optimizer.density() > 0
    again = make_optimizer(model, config, total_factor=5.0)
    again.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for name, p in optimizer.twins():
        assert torch.equal(again.dual(p), optimizer.dual(p)), name


def test_muon_takes_the_matrices_of_hidden_layers_only():
    model = nn.Sequential(
        nn.Embedding(5, 4), nn.Linear(4, 4), nn.Conv1d(3, 3, 1), nn.Flatten(), nn.Linear(12, 2)
    )
    for config in (OptimizerConfig(name="muon"), OptimizerConfig(base="muon")):
        groups = make_optimizer(model, config).param_groups
        assert {n for g in groups if g["muon"] for n in g["param_names"]} == {"1.weight"}


def test_muon_is_torchs_muon_beside_torchs_adamw():
    ours, theirs = (nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2)) for _ in range(2))
    theirs.load_state_dict(ours.state_dict())
    config = OptimizerConfig(name="muon", lr=0.01, momentum=0.9, nesterov=True, weight_decay=0.1)
    optimizer = make_optimizer(ours, config)
    options = {"lr": 0.01, "weight_decay": 0.1}
    hidden = theirs[0].weight
    muon = torch.optim.Muon([hidden], momentum=0.9, adjust_lr_fn="match_rms_adamw", **options)
    others = [p for p in theirs.parameters() if p is not hidden]
    adamw = torch.optim.AdamW(others, fused=True, **options)
    for step in range(6):
        x = torch.randn(8, 4)
        for model in (ours, theirs):
            model.zero_grad()
            model(x).square().sum().backward()
        for one in (optimizer, muon, adamw):
            one.step()
        if step == 2:  # what was loaded is what is stepped
            optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(p, q)


class Summed(nn.Module):
    """Two convolutions that write to one stream."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.head = nn.Conv2d(1, 3, 1), nn.Conv2d(3, 3, 1), nn.Linear(3, 2)

    def forward(self, x):
        x = self.a(x)
        return self.head((x + self.b(x)).mean((2, 3)))


def test_dessilbi_couples_filters_that_must_leave_together():
    groups = make_optimizer(Summed(), OptimizerConfig(tied=True), (1, 8, 8)).param_groups
    assert [g["param_names"] for g in groups if g["tied"]] == [["a.weight", "b.weight"]]
    plain = make_optimizer(Summed(), OptimizerConfig(), (1, 8, 8)).param_groups
    assert not any(g["tied"] for g in plain)
    with pytest.raises(ConfigError, match="needs the shape of the images"):
        make_optimizer(Summed(), OptimizerConfig(tied=True))
    with pytest.raises(ConfigError, match="sgd does not know tied"):
        make_optimizer(Summed(), OptimizerConfig(name="sgd", tied=True), (1, 8, 8))


# ---------------------------------------------------------------------- refusals


@pytest.mark.parametrize("name", ["adam", "amsgrad", "adagrad", "radam", "adabound"])
@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("momentum", 0.9),
        ("nesterov", True),
        ("l1", 1e-3),
        ("kappa", 2.0),
        ("nu", 10.0),
        ("lambd", 0.5),
        ("penalty", "lasso"),
        ("coupling", "momentum"),
        ("decoupled_weight_decay", True),
        ("exclude", ("fc",)),
        ("size_scaled", True),
        ("tau", 5.0),
        ("c", 1.0),
        ("base", "adam"),
    ],
)
def test_adam_and_kin_refuse_what_they_do_not_know(name, option, value):
    config = OptimizerConfig(name=name, lr=0.001, **{option: value})
    with pytest.raises(ConfigError) as error:
        make_optimizer(net(), config)
    message = str(error.value)
    assert f"optimizer {name} does not know {option} (got {option}={value!r})" in message
    assert f"{name} accepts lr, weight_decay" in message


def test_sgd_refuses_the_options_of_the_twin():
    with pytest.raises(ConfigError, match=r"sgd does not know nu \(got nu=10.0\)"):
        make_optimizer(net(), OptimizerConfig(name="sgd", nu=10.0))


def test_dessilbi_refuses_l1():
    with pytest.raises(ConfigError, match=r"dessilbi does not know l1 \(got l1=0.001\)"):
        make_optimizer(net(), OptimizerConfig(l1=1e-3))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("adamx", "unknown optimizer 'adamx'; did you mean 'adam"),
        ("xyz", "; known: dessilbi, sgd.*import dessilbi.paper.optimizers"),
    ],
)
def test_unknown_names_are_refused(name, words):
    with pytest.raises(ConfigError, match=words):
        make_optimizer(net(), OptimizerConfig(name=name))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [-0.1, math.nan, math.inf])
@pytest.mark.parametrize("option", ["lr", "weight_decay"])
def test_numbers_out_of_range_are_refused(name, option, value):
    with pytest.raises(ConfigError, match=rf"optimizer {name}: {option} must be >= 0 and finite"):
        make_optimizer(net(), OptimizerConfig(name=name, **{option: value}))


@pytest.mark.parametrize("name", ["sgd", "dessilbi"])
def test_nesterov_needs_momentum(name):
    with pytest.raises(ConfigError, match=rf"{name}: nesterov=True needs momentum > 0"):
        make_optimizer(net(), OptimizerConfig(name=name, nesterov=True))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"nu": 0.0}, "dessilbi: nu must be > 0"),
        ({"exclude": ("fc9",)}, "dessilbi: pattern 'fc9' matched no parameter"),
        ({"size_scaled": True, "c": 1.0}, "size_scaled=True scales lambd; give lambd"),
        ({"lambd": 0.3, "c": 1.0}, "lambd takes the place of c, got lambd=0.3 and c=1.0"),
        ({"nu": 3.0, "tau": 10.0}, "nu takes the place of tau, got nu=3.0 and tau=10.0; set one"),
        ({"tau": 0.0}, "dessilbi: tau must be > 0, got 0.0"),
        ({"c": -1.0}, "dessilbi: c must be >= 0, got -1.0"),
        ({"base": "adamx"}, "unknown base 'adamx'; did you mean 'adam"),
        ({"base": "dessilbi"}, "unknown base 'dessilbi'"),
        ({"base": "sgd-l1"}, "unknown base 'sgd-l1'"),
        ({"base": "adamw", "momentum": 0.9}, "dessilbi with base adamw does not know momentum"),
        ({"base": "adamw", "coupling": "momentum"}, "base adamw does not know coupling"),
        ({"name": "adam", "base": "adamw"}, "adam does not know base"),
        ({"base": "adabound", "lr": 0.0}, "dessilbi with base adabound: lr must be > 0"),
        ({"name": "adabound", "lr": 0.0}, "adabound: lr must be > 0"),
    ],
)
def test_refusals_from_below_are_configuration_errors(options, words):
    with pytest.raises(ConfigError, match=words):
        make_optimizer(net(), OptimizerConfig(**options))


# ---------------------------------------------------------------------- the fused step


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["sgd", "adam", "amsgrad", "adagrad"])
def test_torch_optimizers_are_fused_on_cpu(name, dtype):
    assert make_optimizer(net().to(dtype), OptimizerConfig(name=name)).defaults["fused"] is True


@pytest.mark.parametrize("name", ["dessilbi", "sgd", "adam", "adagrad"])
def test_half_precision_is_left_to_the_default(name):
    optimizer = make_optimizer(net().to(torch.bfloat16), OptimizerConfig(name=name))
    assert optimizer.defaults["fused"] is None


def test_dessilbi_is_fused_where_the_kernel_builds():
    optimizer = make_optimizer(net(), OptimizerConfig())
    assert optimizer.defaults["fused"] is (True if fused_room.kernel_builds() else None)


@pytest.mark.usefixtures("no_compiler")
def test_dessilbi_falls_back_quietly_without_a_compiler(capfd):
    model = net()
    optimizer = make_optimizer(model, OptimizerConfig())
    assert optimizer.defaults["fused"] is None
    model(torch.randn(2, 1, 6, 6)).square().sum().backward()
    optimizer.step()
    assert capfd.readouterr() == ("", "")


def test_the_compiler_is_tried_once(monkeypatch):
    tries = []
    monkeypatch.setattr(fused_room, "library", lambda: tries.append(1))
    fused_room.kernel_builds.cache_clear()
    for _ in range(3):
        assert make_optimizer(net(), OptimizerConfig()).defaults["fused"] is True
    assert tries == [1]
    fused_room.kernel_builds.cache_clear()


def test_on_cuda_each_optimizer_takes_the_step_it_has(monkeypatch):
    monkeypatch.setattr(fused_room, "_device_type", lambda model: "cuda")
    monkeypatch.setattr(fused_room, "kernel_builds", lambda: True)
    monkeypatch.setattr(fused_room, "_has_triton", lambda: False)
    made = {name: make_optimizer(net(), OptimizerConfig(name=name)) for name in NAMES[:5]}
    assert {name: optimizer.defaults["fused"] for name, optimizer in made.items()} == {
        "dessilbi": None,
        "sgd": True,
        "adam": True,
        "amsgrad": True,
        "adagrad": None,  # torch has it on CPU only
    }
    monkeypatch.setattr(fused_room, "_has_triton", lambda: True)
    assert make_optimizer(net(), OptimizerConfig()).defaults["fused"] is True


@pytest.mark.parametrize("name", ["dessilbi", "sgd", "adam", "adagrad"])
@pytest.mark.parametrize("saved", [None, True])
def test_loading_keeps_the_step_of_this_machine(name, saved):
    optimizer = make_optimizer(net(), OptimizerConfig(name=name))
    state = copy.deepcopy(optimizer.state_dict())
    for group in state["param_groups"]:
        group["fused"] = saved
    optimizer.load_state_dict(state)
    chosen = optimizer.defaults["fused"]
    assert [g["fused"] for g in optimizer.param_groups] == [chosen] * len(optimizer.param_groups)
    assert state["param_groups"][0]["fused"] is saved

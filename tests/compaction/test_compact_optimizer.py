"""Optimizer state moves along: training the compact model is training the masked one."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from compaction_nets import Tied, filter_mask, lab_net, randomize, tied_mask
from dessilbi import DessiLBI, Mask, SplitLBI, split_parameters
from dessilbi.compaction import CompactError, compact
from dessilbi.subnet import HeldMask


def steps(model: nn.Module, optimizer: torch.optim.Optimizer, count: int = 3) -> None:
    x = torch.randn(16, 1, 8, 8, generator=torch.Generator().manual_seed(5)).double()
    y = torch.arange(16) % 10
    for _ in range(count):
        optimizer.zero_grad()
        F.cross_entropy(model.eval()(x), y).backward()
        optimizer.step()


def no_constants(model: nn.Module) -> nn.Module:
    """Filters that are off send nothing, so that the compact model has no carriers."""
    with torch.no_grad():
        for m in model.modules():
            if isinstance(m, nn.BatchNorm2d):
                m.bias.fill_(-0.01)
                m.running_mean.zero_()  # type: ignore[union-attr]
    return model


def test_training_goes_on_as_the_masked_model_would() -> None:
    model = no_constants(lab_net("digits-net", 8, 1)).double()
    mask = filter_mask(model, 0.5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    held = HeldMask(model, mask, optimizer)
    steps(model, optimizer)
    small = compact(model, mask, torch.zeros(1, 1, 8, 8).double(), latency=False)
    assert small.report.carriers == 0
    with torch.no_grad():  # what was cut may not move on: the compact model does not have it
        for name in ("bn1", "bn2"):
            off = torch.ones(len(model.get_parameter(f"{name}.bias"))).bool()
            off[list(small.plan.tensors[f"{name}.bias"].stays[0])] = False
            model.get_parameter(f"{name}.bias").register_hook(lambda g, off=off: g * ~off)
            optimizer.state[model.get_parameter(f"{name}.bias")]["momentum_buffer"][off] = 0
    moved = small.cut_optimizer(model, optimizer)
    steps(small.model, moved)
    steps(model, optimizer)
    held.close()
    again = compact(model, mask, torch.zeros(1, 1, 8, 8).double(), latency=False).model
    for name, p in small.model.named_parameters():
        assert torch.allclose(p, again.get_parameter(name), atol=1e-12), name


@pytest.mark.parametrize("kind", ["init", "size", None])
def test_v_and_momentum_and_thresholds_are_cut(kind: str | None) -> None:
    model = randomize(lab_net("digits-net", 8, 1)).double()
    groups = split_parameters(
        model,
        exclude=["fc"],
        init_scaled=1.0 if kind == "init" else None,
        size_scaled=kind == "size",
    )
    optimizer = DessiLBI(groups, lr=0.1, momentum=0.9, nu=2.0, lambd=0.01)
    steps(model, optimizer)
    mask = filter_mask(model, 0.5)
    small = compact(model, mask, torch.zeros(1, 1, 8, 8).double(), latency=False)
    moved = small.cut_optimizer(model, optimizer)
    assert isinstance(moved, DessiLBI)
    assert [name for name, _ in moved.twins()] == [name for name, _ in optimizer.twins()]
    rows, columns = (list(small.plan.tensors["conv2.weight"].stays[d]) for d in (0, 1))
    old, new = model.get_parameter("conv2.weight"), small.model.get_parameter("conv2.weight")
    for key in ("v", "momentum_buffer"):
        wanted = optimizer.state[old][key][rows][:, columns]
        assert torch.equal(moved.state[new][key], wanted)
    if kind == "init":
        wanted = optimizer.state[old]["lambd_scale"][rows]
        assert torch.equal(moved.state[new]["lambd_scale"], wanted)
    steps(small.model, moved)
    assert moved.density() >= 0


@pytest.mark.parametrize("v_dtype", [None, torch.bfloat16])
def test_a_twin_beside_adamw_is_cut_with_it(v_dtype: torch.dtype | None) -> None:
    model = randomize(lab_net("digits-net", 8, 1)).double()
    base = torch.optim.AdamW(split_parameters(model, exclude=["fc"]), lr=0.01, betas=(0.8, 0.9))
    optimizer = SplitLBI(base, nu=0.1, c=0.5, kappa=2.0, v_dtype=v_dtype)
    steps(model, optimizer)
    small = compact(model, filter_mask(model, 0.5), torch.zeros(1, 1, 8, 8).double(), latency=False)
    moved = small.cut_optimizer(model, optimizer)
    assert isinstance(moved, SplitLBI)
    assert type(moved.base) is torch.optim.AdamW
    assert [name for name, _ in moved.twins()] == [name for name, _ in optimizer.twins()]
    for name, p in moved.twins():
        old, stays = model.get_parameter(name), small.plan.tensors[name].stays
        rows, columns = (list(stays.get(d, range(old.shape[d]))) for d in (0, 1))
        for key in ("v", "exp_avg", "exp_avg_sq"):
            wanted = optimizer.state[old][key][rows][:, columns]
            assert torch.equal(moved.state[p][key], wanted)
            assert moved.state[p][key].dtype is wanted.dtype
        wanted = optimizer.state[old]["lambd_scale"][rows]
        assert torch.equal(moved.state[p]["lambd_scale"], wanted)
        assert torch.equal(moved.support(p), optimizer.support(old)[rows][:, columns])
    for old_group, new_group in zip(optimizer.param_groups, moved.param_groups, strict=False):
        for option in ("nu", "lambd", "lambd_scale", "kappa", "betas", "lr"):
            assert old_group[option] == new_group[option]
    steps(small.model, moved)
    steps(small.model, SplitLBI.around(moved, moved.base))
    extra = nn.Parameter(torch.ones(2, 2).double())
    moved.add_param_group({"params": [("extra", extra)]})
    assert moved.param_groups[-1]["kappa"] == 2.0


def test_adam_and_a_bias_that_holds_constants() -> None:
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3, bias=False)).double()
    nn.init.constant_(net[0].bias, 0.5)
    optimizer = torch.optim.AdamW(net.named_parameters(), lr=1e-2)
    net(torch.randn(8, 4).double()).sum().backward()
    optimizer.step()
    keep = torch.ones(6, 4).bool()
    keep[[1, 2]] = False
    small = compact(net, Mask({"0.weight": keep}), torch.zeros(2, 4).double(), latency=False)
    assert "2.bias" in dict(small.model.named_parameters())
    moved = small.cut_optimizer(net, optimizer)
    names = [name for group in moved.param_groups for name in group["param_names"]]
    assert sorted(names) == sorted(dict(small.model.named_parameters()))
    weight = small.model.get_parameter("0.weight")
    assert moved.state[weight]["exp_avg"].shape == weight.shape
    assert moved.state[weight]["step"] == 1
    assert small.model.get_parameter("2.bias") not in moved.state
    small.model(torch.randn(8, 4).double()).sum().backward()
    moved.step()


def test_tied_weights_are_one_parameter_by_any_name() -> None:
    net, x = Tied(), torch.arange(20)[None]
    optimizer = torch.optim.SGD(net.named_parameters(), lr=0.1, momentum=0.9)
    net(x).sum().backward()
    optimizer.step()
    small = compact(net, tied_mask(), x, form="graph", latency=False)
    first = [next(iter(dict(m.named_parameters()))) for m in (net, small.model)]
    assert first == ["decode.weight", "embed.weight"]  # the graph reads it by its other name
    moved = small.cut_optimizer(net, optimizer)
    (group,) = moved.param_groups
    assert {id(p) for p in group["params"]} == {id(p) for p in small.model.parameters()}
    old, new = net.decode.weight, small.model.get_parameter("embed.weight")
    kept = moved.state[new]["momentum_buffer"]
    assert torch.equal(kept, optimizer.state[old]["momentum_buffer"])


def test_a_foreign_optimizer_and_odd_state_are_refused() -> None:
    model, other = lab_net("digits-net", 8, 1), nn.Linear(2, 2)
    small = compact(model, filter_mask(model, 0.5), torch.zeros(1, 1, 8, 8), latency=False)
    with pytest.raises(CompactError, match="no parameter of the model"):
        small.cut_optimizer(model, torch.optim.SGD(other.parameters()))
    optimizer = torch.optim.SGD(model.parameters())
    optimizer.state[model.get_parameter("conv1.weight")]["odd"] = torch.zeros(7)
    with pytest.raises(CompactError, match=r"'odd' of 'conv1\.weight' has shape"):
        small.cut_optimizer(model, optimizer)

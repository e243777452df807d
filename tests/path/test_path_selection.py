from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from path_problems import EPOCH, make, recorded, train
from torch import nn

from dessilbi.optim import DessiLBI, split_parameters
from dessilbi.path import (
    DEFAULT_ORDER,
    ORDERS,
    SCALES,
    PathRecorder,
    SolutionPath,
    count_macs_per_weight,
    macs,
)
from dessilbi.path.orders import Groups, ranked_groups

PATH = recorded()
LAYERS = {layer.name: layer for layer in PATH.layers}
ALONE = [(layer,) for layer in PATH.layers]
MACS = {"conv.weight": 16.0, "up.weight": 16.0, "fc.weight": 1.0}

densities = st.floats(0, 1)
orders = st.sampled_from(sorted(set(ORDERS) - {"nested"}))  # needs a nested run
scales = st.sampled_from(SCALES)
floors = st.one_of(
    st.none(),
    st.integers(0, 9),
    st.fixed_dictionaries({}, optional={n: st.integers(0, 9) for n in LAYERS}),
)


def cost_of_floors(floor, default=1):
    floor = default if floor is None else floor
    by_layer = floor if isinstance(floor, dict) else dict.fromkeys(LAYERS, floor)
    return sum(
        min(by_layer.get(n, default), layer.groups) * layer.group_size
        for n, layer in LAYERS.items()
    )


@settings(max_examples=150, deadline=None)
@given(densities, densities, orders, scales, floors)
def test_nested_and_within_budget(a, b, order, scale, floor):
    small, large = sorted((a, b))
    masks = [
        PATH.mask(density=d, order=order, scale=scale, min_groups=floor) for d in (small, large)
    ]
    assert masks[0].issubset(masks[1])
    for d, mask in zip((small, large), masks, strict=True):
        assert mask.density <= d or mask.kept <= cost_of_floors(floor)
        for name, t in mask.tensors.items():
            whole = LAYERS[name]
            if whole.exact:
                rows = t.transpose(0, whole.group_dim).flatten(1)
                assert torch.equal(rows.any(1), rows.all(1))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 700), st.floats(0, 5000), orders, scales)
def test_budgets_by_brute_force(parameters, macs, order, scale):
    ranked = ranked_groups(PATH, ALONE, order, scale)
    number = np.repeat(np.arange(3), [layer.groups for layer in PATH.layers])

    def brute(limit, cost):
        keep, spent = set(), 0.0
        for i, layer in enumerate(PATH.layers):  # floors: the best of each layer
            keep.add(next(g for g in ranked if number[g] == i))
            spent += cost(layer)
        for g in ranked:
            if g in keep:
                continue
            spent += cost(PATH.layers[number[g]])
            if spent > limit:
                break
            keep.add(g)
        return sum(PATH.layers[number[g]].group_size for g in keep), keep

    mask = PATH.mask(parameters=parameters, order=order, scale=scale)
    kept, groups = brute(parameters, lambda layer: layer.group_size)
    assert mask.kept == kept
    by_macs = PATH.mask(macs=macs, macs_per_weight=MACS, order=order, scale=scale)
    kept, groups = brute(macs, lambda layer: layer.group_size * MACS[layer.name])
    assert by_macs.kept == kept
    for layer in PATH.layers:
        inside = [g - layer.offset for g in groups if number[g] == PATH.layers.index(layer)]
        flags = torch.zeros(layer.groups, dtype=torch.bool)
        flags[inside] = True
        assert torch.equal(by_macs[layer.name], layer.expand(flags))


def test_budgets_of_different_units_are_nested():
    a = PATH.mask(density=0.2)
    b = PATH.mask(parameters=a.kept + 100)
    c = PATH.mask(macs=1e9, macs_per_weight=MACS)
    assert a.issubset(b)
    assert b.issubset(c)
    assert c.density == 1


def test_the_support_of_an_epoch():
    for e in PATH.epochs:
        mask = PATH.mask(e)
        assert mask == PATH.mask(epoch=e)
        for name, t in PATH.support(e).items():
            assert torch.equal(mask[name], t)
    assert PATH.mask(epoch=0).kept == 0
    floored = PATH.mask(epoch=0, min_groups=2)
    assert {n: int(t.sum()) for n, t in floored.tensors.items()} == {
        n: 2 * layer.group_size for n, layer in LAYERS.items()
    }


def test_floor_of_one_layer_and_none():
    assert PATH.mask(density=0).kept == sum(layer.group_size for layer in PATH.layers)
    assert PATH.mask(density=0, min_groups=0).kept == 0
    mask = PATH.mask(density=0, min_groups={"fc.weight": 7})
    assert int(mask["fc.weight"].sum()) == 7
    assert int(mask["conv.weight"].sum()) == LAYERS["conv.weight"].group_size


def test_per_layer_budgets():
    mask = PATH.mask(per_layer={"fc.weight": 0.03, "conv.weight": 0.5, "up.weight": 1.0})
    found = mask.layer_densities()
    assert found == {"conv.weight": 0.5, "up.weight": 1.0, "fc.weight": 0.03}
    mixed = PATH.mask(per_layer={"fc.weight": 0.03}, density=0.5)
    others = sum(LAYERS[n].numel for n in ("conv.weight", "up.weight"))
    kept = sum(int(mixed[n].sum()) for n in ("conv.weight", "up.weight"))
    assert 0.5 * others - 24 < kept <= 0.5 * others
    assert mixed.layer_densities()["fc.weight"] == 0.03
    assert set(PATH.mask(per_layer=0.5).layer_densities()) == set(LAYERS)
    smaller = PATH.mask(per_layer={"fc.weight": 0.01}, density=0.3)
    assert smaller.issubset(mixed)


def test_some_layers_only():
    mask = PATH.mask(density=0.1, layers=["fc.weight"])
    assert mask.names == ("fc.weight",)
    assert mask.kept == 50


def test_entry_order_takes_early_groups_first():
    mask = PATH.mask(per_layer=0.5, order="entry", layers=["conv.weight"])
    steps = PATH.entry_steps("conv.weight").double()
    steps[steps < 0] = float("inf")
    kept = mask["conv.weight"].flatten(1)[:, 0]
    assert steps[kept].max() <= steps[~kept].min()


def test_strength_orders_take_strong_weights_first():
    net, opt = make()
    rec = PathRecorder(net, opt)
    train(net, opt, rec, stop=2 * EPOCH)
    params = dict(net.named_parameters())
    W = params["fc.weight"].detach()
    V = opt.state[params["fc.weight"]]["v"]
    for order, x in (("magnitude", W), ("dual", V), ("gamma", opt.gamma(params["fc.weight"]))):
        kept = rec.path.mask(density=0.1, order=order, layers=["fc.weight"])["fc.weight"]
        assert x[kept].abs().min() >= x[~kept].abs().max() * (1 - 2**-10)  # float16
    norms = params["up.weight"].detach().transpose(0, 1).flatten(1).norm(dim=1)
    kept = rec.path.mask(density=0.4, order="magnitude", layers=["up.weight"])["up.weight"]
    assert norms[kept[0, :, 0, 0]].min() >= norms[~kept[0, :, 0, 0]].max()


def test_dual_on_the_threshold_scale_gives_back_the_support():
    last = PATH.epochs[-1]
    mask = PATH.mask(density=PATH.density(last), order="dual", scale="threshold", min_groups=0)
    assert mask == PATH.mask(epoch=last)
    assert PATH.mask(density=PATH.density(last), order="gamma", min_groups=0) == mask


def test_scales():
    raw = Groups(PATH, ALONE, "norm").magnitude
    rms = Groups(PATH, ALONE, "rms").magnitude
    sizes = np.repeat([x.group_size for x in PATH.layers], [x.groups for x in PATH.layers])
    assert np.allclose(rms, raw / np.sqrt(sizes))
    relative = Groups(PATH, ALONE, "layer").magnitude
    for layer in PATH.layers:
        assert np.mean(relative[layer.slice] ** 2) == pytest.approx(1, rel=1e-5)


def test_groups_that_left_come_last_in_stay():
    groups = Groups(PATH, ALONE, "rms")
    assert np.array_equal(np.isfinite(groups.stay), groups.inside)
    assert (groups.stay[groups.inside] >= groups.entry[groups.inside]).all()


def test_a_mixed_net_is_ranked_at_the_resolution_of_marks():
    mixed = Groups(PATH, ALONE, "rms").entry
    assert (mixed[np.isfinite(mixed)] % EPOCH == 0).all()
    exact = Groups(PATH, [(LAYERS["conv.weight"],)], "rms").entry
    assert (exact[np.isfinite(exact)] % EPOCH != 0).any()


def test_a_diverged_weight_comes_last():
    net, opt = make()
    rec = PathRecorder(net, opt)
    with torch.no_grad():
        net.fc.weight[0, 0] = float("nan")
        net.fc.weight[0, 1] = 1e30
    rec.record(0)
    mask = rec.path.mask(parameters=1, order="magnitude", layers=["fc.weight"], min_groups=0)
    assert mask["fc.weight"][0, 1]
    rest = rec.path.mask(parameters=499, order="magnitude", layers=["fc.weight"])
    assert not rest["fc.weight"][0, 0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "give one of epoch, density"),
        ({"epoch": None}, "never settled"),
        ({"epoch": 1, "density": 0.1}, "got epoch and density"),
        ({"epoch": 1, "per_layer": 0.1}, "cannot be combined with epoch"),
        ({"epoch": 99}, "epoch 99 was not recorded"),
        ({"density": 1.5}, "density must be a density from 0 to 1, got 1.5"),
        ({"density": float("nan")}, "from 0 to 1, got nan"),
        ({"parameters": -1}, "parameters must be >= 0"),
        ({"macs": 10.0}, "macs and macs_per_weight belong together"),
        ({"macs": 10.0, "model": nn.Linear(2, 2)}, "model and example_input count what macs="),
        ({"density": 0.1, "example_input": 1, "model": nn.Linear(2, 2)}, "give both, and macs"),
        ({"macs": 10.0, "macs_per_weight": {"fc.weight": 1}}, "lacks layer 'conv.weight'"),
        ({"per_layer": {"fc.weight": 2.0}}, r"per_layer\['fc.weight'\] must be"),
        ({"per_layer": {"fc.weight": 0.1}}, "does not name 'conv.weight'"),
        ({"per_layer": {"fc.wight": 0.1}}, "did you mean 'fc.weight'"),
        ({"density": 0.1, "order": "entri"}, "unknown order 'entri'; did you mean 'entry'"),
        ({"density": 0.1, "scale": "norms"}, "unknown scale 'norms'; did you mean 'norm'"),
        ({"density": 0.1, "min_groups": -1}, "min_groups must be a number of groups >= 0, got -1"),
        ({"density": 0.1, "min_groups": {"fc": 1}}, "min_groups names an unknown layer 'fc'"),
        ({"density": 0.1, "layers": []}, "at least one layer"),
        ({"density": 0.1, "layers": ["cnv.weight"]}, "did you mean 'conv.weight'"),
    ],
)
def test_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        PATH.mask(**arguments)


def test_the_default_order_exists():
    assert DEFAULT_ORDER in ORDERS
    assert isinstance(PATH, SolutionPath)


# ---------------------------------------------------------------------- multiply-adds


def test_multiply_adds_are_counted_of_the_network():
    net, _ = make()
    x = torch.zeros(2, 1, 6, 6)
    assert count_macs_per_weight(net, x) == MACS
    assert macs(net, x) == sum(MACS[n] * layer.numel for n, layer in LAYERS.items())
    for budget in (1_000, 5_000.0):
        mask = PATH.mask(macs=budget, model=net, example_input=x)
        assert mask == PATH.mask(macs=budget, macs_per_weight=MACS)
        assert macs(net, x, mask) <= budget
        assert macs(net, x, mask) == sum(MACS[n] * int(mask[n].sum()) for n in LAYERS)


# ---------------------------------------------------------------------- tied layers


def recorded_mlp():
    """Two layers whose neurons are a row of one and a column of the other, and one beside them."""
    torch.manual_seed(0)
    net = nn.ModuleDict({"fc": nn.Linear(3, 8), "proj": nn.Linear(8, 5), "out": nn.Linear(5, 6)})
    neuron = {"tied": True, "group_dim": (0, 1), "penalty": "group_lasso"}
    patterns = {"[fp]*": neuron, "out": {"penalty": "group_lasso"}}
    opt = DessiLBI(split_parameters(net, patterns), lr=0.3, nu=3.0, lambd=0.3)
    rec = PathRecorder(net, opt)
    for step in range(6):
        x = torch.randn(16, 3, generator=torch.Generator().manual_seed(step))
        opt.zero_grad()
        out = net["out"](net["proj"](net["fc"](x).relu()))
        out.square().mean().backward()
        opt.step()
    rec.record(1)
    return net, opt, rec.path


NET, OPT, TIED = recorded_mlp()
PARTS = ("fc.weight", "proj.weight")


@pytest.mark.parametrize("order", sorted(set(ORDERS) - {"nested"}))
@pytest.mark.parametrize("scale", SCALES)
def test_tied_groups_are_kept_together_at_any_budget(order, scale):
    before = None
    for density in (0.0, 0.2, 0.3, 0.5, 0.8, 1.0):
        mask = TIED.mask(density=density, order=order, scale=scale)
        assert mask.names == tuple(layer.name for layer in TIED.layers)
        rows, columns = mask["fc.weight"], mask["proj.weight"].T
        assert torch.equal(rows.any(1), columns.any(1))
        assert torch.equal(rows.any(1), rows.all(1))
        assert torch.equal(columns.any(1), columns.all(1))
        assert density == 0 or mask.density <= density
        assert before is None or before.issubset(mask)
        before = mask


def test_tied_groups_are_ranked_by_their_joint_norm():
    fc, proj, out = (NET[name].weight.detach() for name in ("fc", "proj", "out"))
    joint = torch.sqrt(fc.square().sum(1) + proj.square().sum(0))
    alone = out.norm(dim=1)
    for scale, sizes in (("norm", (1, 1)), ("rms", (3 + 5, 5))):
        strength = torch.cat([joint / sizes[0] ** 0.5, alone / sizes[1] ** 0.5])
        ranked = strength.argsort(descending=True).tolist()
        cost = [8] * 8 + [5] * 6
        for parameters in range(0, 95, 3):
            mask = TIED.mask(parameters=parameters, scale=scale, min_groups=0)
            kept, spent = set(), 0
            for group in ranked:
                spent += cost[group]
                if spent > parameters:
                    break
                kept.add(group)
            found = [*mask["fc.weight"][:, 0].tolist(), *mask["out.weight"][:, 0].tolist()]
            assert {i for i, inside in enumerate(found) if inside} == kept


def test_the_support_of_tied_groups_comes_back_on_the_threshold_scale():
    whole = TIED.density(1)
    assert 0 < whole < 1
    mask = TIED.mask(density=whole, order="dual", scale="threshold", min_groups=0)
    assert mask == TIED.mask(epoch=1)
    assert torch.equal(mask["fc.weight"], OPT.support(NET["fc"].weight))


def test_budgets_and_floors_of_tied_layers_count_their_groups_once():
    mask = TIED.mask(density=0, min_groups={"proj.weight": 3, "out.weight": 0})
    assert int(mask["fc.weight"].any(1).sum()) == int(mask["proj.weight"].any(0).sum()) == 3
    half = TIED.mask(per_layer={"fc.weight": 0.5}, density=1.0)
    assert half.layer_densities() == {"fc.weight": 0.5, "proj.weight": 0.5, "out.weight": 1.0}
    macs = {"fc.weight": 2.0, "proj.weight": 1.0, "out.weight": 1000.0}
    mask = TIED.mask(macs=4 * (2 * 3 + 5), macs_per_weight=macs, layers=list(PARTS))
    assert mask.layer_densities() == {"fc.weight": 0.5, "proj.weight": 0.5}
    with pytest.raises(ValueError, match=r"per_layer must be the same for fc.weight, proj.weight"):
        TIED.mask(per_layer={"fc.weight": 0.5, "proj.weight": 0.6}, density=1.0)


def test_the_path_of_tied_layers_ranks_the_same_from_its_file(tmp_path):
    TIED.save(tmp_path / "path.safetensors")
    again = SolutionPath.load(tmp_path / "path.safetensors")
    assert again.mask(density=0.4) == TIED.mask(density=0.4)
    assert again.mask(density=0.4)["fc.weight"].any()

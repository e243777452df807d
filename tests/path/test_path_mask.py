from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from path_problems import Net
from torch import nn
from torch.nn.utils import prune

from dessilbi.path import FormatError, Mask
from dessilbi.path.mask import most_weights

SHAPES = {"a": (3, 4), "b": (2, 5, 2)}


def some(seed=0, density=0.5):
    return Mask.random(SHAPES, density, generator=torch.Generator().manual_seed(seed))


def test_counts():
    mask = Mask({"a": torch.tensor([True, False]), "b": torch.ones(2, 3, dtype=torch.bool)})
    assert (mask.kept, mask.total, mask.density) == (7, 8, 7 / 8)
    assert mask.names == ("a", "b")
    assert mask.layer_densities() == {"a": 0.5, "b": 1.0}
    assert mask.shapes == {"a": (2,), "b": (2, 3)}
    with pytest.raises(KeyError, match="unknown parameter 'c'"):
        mask["c"]
    assert repr(mask) == "Mask(2 tensors, 7 of 8 weights kept)"
    assert Mask({}).density == 0


def test_is_frozen_and_keeps_its_own_copy():
    t = torch.ones(3, dtype=torch.bool)
    mask = Mask({"a": t})
    t.zero_()
    assert mask.kept == 3
    with pytest.raises(AttributeError):
        mask.tensors = {}
    with pytest.raises(TypeError):
        mask.tensors["b"] = t
    with pytest.raises(TypeError, match="unhashable"):
        hash(mask)
    with pytest.raises(ValueError, match=r"mask of 'a' must be a bool tensor, got torch.float32"):
        Mask({"a": torch.ones(2)})


def test_as_sets():
    a, b = some(0), some(1)
    assert (a & b).issubset(a)
    assert a.issubset(a | b)
    assert (a & b).kept + (a | b).kept == a.kept + b.kept
    assert a != b
    assert a == Mask(dict(a.tensors))
    assert not (a | b).issubset(a)
    assert a != "mask"
    with pytest.raises(ValueError, match=r"lacks a masked parameter: unknown name 'a'"):
        a.issubset(Mask({"b": b["b"]}))
    with pytest.raises(ValueError, match="has shape"):
        _ = a | Mask({"a": b["a"].T, "b": b["b"]})


def test_round_trip(tmp_path):
    mask = some() | Mask({n: torch.zeros(s, dtype=torch.bool) for n, s in SHAPES.items()})
    mask.save(tmp_path / "mask.safetensors")
    loaded = Mask.load(tmp_path / "mask.safetensors")
    assert loaded == mask
    assert loaded.names == mask.names
    content = bytearray((tmp_path / "mask.safetensors").read_bytes())
    content[-1] ^= 1
    (tmp_path / "mask.safetensors").write_bytes(bytes(content))
    with pytest.raises(FormatError, match="checksum"):
        Mask.load(tmp_path / "mask.safetensors")


def test_a_bit_a_weight(tmp_path):
    mask = Mask({"w": torch.ones(1000, 80, dtype=torch.bool)})
    assert mask.save(tmp_path / "m") < 80000 / 8 + 500


def test_check_names_the_trouble():
    net = Net()
    Mask.random(net, 0.5).check(net)
    with pytest.raises(ValueError, match=r"'conv.wight'; did you mean 'conv.weight'"):
        Mask({"conv.wight": torch.ones(6, 1, 3, 3, dtype=torch.bool)}).check(net)
    with pytest.raises(ValueError, match=r"'fc.weight' has shape \(2, 2\), .* \(4, 125\)"):
        Mask({"fc.weight": torch.ones(2, 2, dtype=torch.bool)}).check(net)


def test_prune_round_trip():
    net = Net()
    mask = Mask.random(net, 0.3)
    dense = net.fc.weight.detach().clone()
    mask.to_prune(net)
    assert prune.is_pruned(net)
    assert torch.equal(net.fc.weight, dense * mask["fc.weight"])
    assert Mask.from_prune(net) == mask
    mask.check(net)
    assert Mask.random(net, 0.3).names == mask.names
    both = Mask.random(net, 0.5)
    both.to_prune(net)  # torch combines: what either drops is dropped
    assert Mask.from_prune(net) == mask & both
    prune.remove(net.fc, "weight")
    assert Mask.from_prune(net).names == ("conv.weight", "up.weight")


def test_torch_s_own_pruning_is_read():
    net = Net()
    prune.l1_unstructured(net.fc, "weight", amount=100)
    mask = Mask.from_prune(net)
    assert mask.names == ("fc.weight",)
    assert mask.kept == 400


def test_prune_of_tied_weights():
    net = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    net[1].weight = net[0].weight
    mask = Mask({"0.weight": torch.eye(3) > 0})
    mask.to_prune(net)
    assert torch.equal(net[1].weight, net[0].weight)
    assert net[1].weight_orig is net[0].weight_orig
    assert Mask.from_prune(net) == mask


@settings(deadline=None)
@given(st.floats(0, 1), st.floats(0, 1))
def test_random_masks_have_exact_counts(d, e):
    assert Mask.random(SHAPES, d).kept == most_weights(d, 32)
    mask = Mask.random(SHAPES, layer_densities={"a": d, "b": e})
    assert int(mask["a"].sum()) == most_weights(d, 12)
    assert int(mask["b"].sum()) == most_weights(e, 20)
    again = Mask.random(mask, layer_densities=mask.layer_densities())
    assert again.layer_densities() == mask.layer_densities()


@given(st.integers(1, 10**8), st.data())
def test_a_density_is_undone_exactly(total, data):
    kept = data.draw(st.integers(0, total))
    assert most_weights(kept / total, total) == kept


def test_random_by_filter():
    mask = Mask.random(SHAPES, layer_densities={"a": 0.7, "b": 0.4}, group_dims={"b": 1})
    rows = mask["b"].transpose(0, 1).flatten(1)
    assert torch.equal(rows.any(1), rows.all(1))
    assert int(mask["b"].sum()) == 8
    assert int(mask["a"].sum()) == 8
    assert Mask.random(SHAPES, 0.5, group_dims={"b": 0, "a": 0}).density <= 0.5


def test_random_masks_differ_and_repeat():
    assert some(0) == some(0)
    assert some(0) != some(1)
    for arguments in ({}, {"density": 0.1, "layer_densities": {"a": 1, "b": 1}}):
        with pytest.raises(ValueError, match="either density or layer_densities"):
            Mask.random(SHAPES, **arguments)
    with pytest.raises(ValueError, match="lacks parameter 'b'"):
        Mask.random(SHAPES, layer_densities={"a": 0.1})
    with pytest.raises(ValueError, match="unknown parameter 'c'"):
        Mask.random(SHAPES, layer_densities={"a": 0.1, "b": 0.1, "c": 0.1})
    with pytest.raises(ValueError, match="from 0 to 1, got 2"):
        Mask.random(SHAPES, 2)


def test_magnitude_keeps_the_largest():
    net = Net()
    W = {n: p.detach().abs() for n, p in net.named_parameters() if p.ndim > 1}
    mask = Mask.magnitude(net, 0.2)
    every = torch.cat([w.flatten() for w in W.values()])
    assert mask.kept == most_weights(0.2, len(every))
    threshold = every.sort(descending=True).values[mask.kept - 1]
    for name, w in W.items():
        assert torch.equal(mask[name], w >= threshold)
    by_layer = Mask.magnitude(net, 0.2, scope="layer")
    for name, w in W.items():
        assert int(by_layer[name].sum()) == most_weights(0.2, w.numel())
    assert Mask.magnitude(net, 0.2, names=["fc.weight"]).names == ("fc.weight",)
    with pytest.raises(ValueError, match=r"did you mean 'fc.weight'"):
        Mask.magnitude(net, 0.2, names=["fc.wight"])
    with pytest.raises(ValueError, match="scope must be"):
        Mask.magnitude(net, 0.2, scope="all")

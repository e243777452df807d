"""Sparse linear layers: the same product in every way, and dense where dense is faster."""

from __future__ import annotations

import json
from copy import deepcopy

import pytest
import torch
from torch import nn

from compaction_nets import lab_net, weight_mask
from dessilbi import project
from dessilbi.compaction import SparseLinear, sparsify

WAYS = ["dense", "csr", "scipy"]


def sparse_layer(bias: bool = True) -> nn.Linear:
    layer = nn.Linear(40, 30, bias=bias)
    with torch.no_grad():
        layer.weight[torch.rand(30, 40) < 0.9] = 0
        layer.weight[3] = 0
    return layer


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(1, 40), (7, 40), (2, 3, 40), (40,)])
@pytest.mark.parametrize("way", WAYS)
def test_every_way_is_the_dense_product(way: str, shape: tuple[int, ...], bias: bool) -> None:
    if way == "scipy":
        pytest.importorskip("scipy")
    layer = sparse_layer(bias)
    x = torch.randn(shape)
    with torch.no_grad():
        found, wanted = SparseLinear(layer, {1: way})(x), layer(x)
    assert found.shape == wanted.shape
    assert torch.allclose(found, wanted, atol=1e-6)


def test_the_batch_decides_the_way() -> None:
    layer = SparseLinear(sparse_layer(), {1: "scipy", 128: "dense"})
    assert [layer.way(n) for n in (1, 8, 16, 128, 10_000)] == ["scipy", "scipy", *["dense"] * 3]
    assert "ways={1: 'scipy', 128: 'dense'}" in repr(layer)
    only = SparseLinear(sparse_layer(), {1: "csr"})
    assert only.weight.numel() == 0  # no dense copy where none is needed
    assert set(only.state_dict()) == {"bias", "crow", "columns", "values"}


def test_copies_and_loaded_state_multiply_with_their_own_weights() -> None:
    pytest.importorskip("scipy")
    layer = sparse_layer()
    made = SparseLinear(layer, {1: "scipy"})
    other = deepcopy(made)
    other.values.mul_(2)
    x = torch.randn(1, 40)
    with torch.no_grad():
        assert torch.allclose(made(x), layer(x), atol=1e-6)
        assert torch.allclose(other(x) - other.bias, 2 * (layer(x) - layer.bias), atol=1e-5)


def test_a_transformer_layer_calls_it() -> None:
    """Its fused path would read the dense weight, which is not there."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    x, padding = torch.randn(2, 3, 8), torch.tensor([[False] * 3, [False, True, True]])
    plain, fused = (
        nn.TransformerEncoder(layer, 2, enable_nested_tensor=on) for on in (False, True)
    )
    for one in fused.layers:
        one.linear1 = SparseLinear(one.linear1, {1: "csr"})
    made = deepcopy(fused)
    with torch.no_grad():
        wanted, wanted_padded = plain(x), plain(x, src_key_padding_mask=padding)
        assert torch.allclose(made(x), wanted, atol=1e-6)
        found = made(x, src_key_padding_mask=padding)
        assert torch.allclose(found[~padding], wanted_padded[~padding], atol=1e-6)
        assert made.double()(x.double()).dtype == torch.float64


def test_it_is_for_inference() -> None:
    with pytest.raises(RuntimeError, match="SparseLinear is for inference"):
        SparseLinear(sparse_layer(), {1: "csr"})(torch.randn(1, 40, requires_grad=True))
    with pytest.raises(ValueError, match="ways must map batch sizes to dense, csr, scipy"):
        SparseLinear(sparse_layer(), {1: "fast"})


def test_a_network_is_sparsified_where_it_wins() -> None:
    pytest.importorskip("scipy")
    model = lab_net("lenet-300-100", 28, 1)
    x = torch.randn(2, 1, 28, 28)
    with project(model, weight_mask(model, 0.02)), torch.no_grad():
        before = deepcopy(model.state_dict())
        made, report = sparsify(model)
        assert torch.allclose(made(x), model(x), atol=1e-5)
        assert all(torch.equal(t, before[n]) for n, t in model.state_dict().items())
        never, _ = sparsify(model, margin=0.0)
    assert [one.name for one in report.layers] == ["fc1", "fc2", "fc3"]
    assert report.layers[0].density == pytest.approx(0.02, rel=0.05)
    for one in report.layers:
        layer = made.get_submodule(one.name)
        assert isinstance(layer, SparseLinear) == (set(one.ways.values()) != {"dense"})
        assert all(one.ratio(batch) >= 1 for batch in (1, 128))
    assert not any(isinstance(m, SparseLinear) for m in never.modules())
    assert set(json.loads(json.dumps(report.to_json()))["layers"][0]["times"]) == {"1", "128"}
    assert "fc1" in str(report)


def test_a_single_layer() -> None:
    layer = sparse_layer()
    made, report = sparsify(layer, batches=(1,), margin=1e9)
    assert [one.name for one in report.layers] == [""]
    with torch.no_grad():
        x = torch.randn(1, 40)
        assert torch.allclose(made(x), layer(x), atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_layer_in_half_precision_stays_dense(dtype: torch.dtype) -> None:
    layer = sparse_layer().to(dtype)
    made, report = sparsify(nn.Sequential(layer), batches=(1,), margin=1e9)
    assert report.layers == ()
    x = torch.randn(1, 40, dtype=dtype)
    assert torch.equal(made(x), layer(x))

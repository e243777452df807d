"""Which parameter slices belong to one channel."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from compaction_nets import NETS, Separable, lab_net
from dessilbi.compaction import Tied, tied_channels


def by_writer(model: nn.Module, *shape: int) -> dict[str, Tied]:
    """Sets by the first parameter that writes them; the first is the network's input."""
    pixels, *found = tied_channels(model, torch.zeros(1, *shape))
    assert not pixels.free
    return {next(m.parameter for m in one.members if m.dim == 0): one for one in found}


def members(one: Tied) -> set[tuple[str, int]]:
    return {(m.parameter, m.dim) for m in one.members}


def test_a_filter_its_norm_and_its_readers() -> None:
    sets = by_writer(lab_net("digits-net", 8, 1), 1, 8, 8)
    assert members(sets["conv1.weight"]) == {
        ("conv1.weight", 0),
        ("bn1.weight", 0),
        ("bn1.bias", 0),
        ("conv2.weight", 1),
    }
    assert sets["conv1.weight"].free
    assert sets["conv1.weight"].channels == 16
    last = sets["conv2.weight"]
    (columns,) = (m for m in last.members if m.parameter == "fc.weight")
    assert columns.dim == 1
    assert torch.equal(columns.index, torch.arange(512).view(32, 16))  # sixteen pixels a channel
    assert not sets["fc.weight"].free  # the network's output


def test_a_residual_stream_is_one_set() -> None:
    sets = by_writer(lab_net("resnet-20", 8, 3), 3, 8, 8)
    stream = members(sets["conv1.weight"])
    assert {(f"stage1.{i}.conv2.weight", 0) for i in range(3)} <= stream
    assert {("stage1.1.conv1.weight", 1), ("stage2.0.shortcut.conv.weight", 1)} <= stream
    inner = members(sets["stage1.0.conv1.weight"])
    assert inner == {
        ("stage1.0.conv1.weight", 0),
        ("stage1.0.bn1.weight", 0),
        ("stage1.0.bn1.bias", 0),
        ("stage1.0.conv2.weight", 1),
    }


def test_depthwise_filters_go_with_the_channel() -> None:
    sets = by_writer(Separable(), 3, 8, 8)
    inner = members(sets["blocks.0.0.weight"])
    assert {("blocks.0.3.weight", 0), ("blocks.0.6.weight", 1)} <= inner
    assert sets["blocks.0.0.weight"].free


@pytest.mark.parametrize("name", NETS)
def test_every_slice_belongs_to_one_channel(name: str) -> None:
    """No slice twice, and for each parameter all slices or none."""
    make, shape = NETS[name]
    model = make()
    seen: dict[tuple[str, int], list[int]] = {}
    for one in tied_channels(model, torch.zeros(1, *shape)):
        for member in one.members:
            assert len(member.index) == one.channels
            seen.setdefault((member.parameter, member.dim), []).extend(
                member.index.flatten().tolist()
            )
    for (parameter, dim), slices in seen.items():
        assert sorted(slices) == list(range(model.get_parameter(parameter).shape[dim]))


def test_grouped_convolutions_and_unknown_operations_hold_their_channels() -> None:
    make, shape = NETS["shuffled"]
    sets = by_writer(make(), *shape)
    assert not sets["first.0.weight"].free
    assert not sets["grouped.0.weight"].free

"""Which parameter slices belong to one channel."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from compaction_nets import NETS, Separable, lab_net
from dessilbi.compaction import Tied, tied_channels


def by_writer(model: nn.Module, *shape: int) -> dict[str, Tied]:
    """Sets by the first parameter that writes them."""
    found = tied_channels(model, torch.zeros(1, *shape))
    written = [one for one in found if any(m.dim == 0 for m in one.members)]
    assert not any(one.free for one in found if one not in written)  # the network's input
    return {next(m.parameter for m in one.members if m.dim == 0): one for one in written}


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


def test_groups_of_a_convolution_leave_as_a_whole_or_not_at_all() -> None:
    net = nn.Sequential(nn.Conv2d(3, 8, 1), nn.Conv2d(8, 12, 3, groups=4), nn.Conv2d(12, 2, 1))
    x = torch.zeros(1, 3, 8, 8)
    held = {m.parameter for one in tied_channels(net, x) if not one.free for m in one.members}
    assert {"0.weight", "1.weight", "2.weight"} <= held
    (groups,) = (one for one in tied_channels(net, x, blocks=True) if one.free)
    assert groups.channels == 4
    assert {(m.parameter, m.dim, m.index.shape[1]) for m in groups.members} == {
        ("0.weight", 0, 2), ("0.bias", 0, 2), ("1.weight", 0, 3), ("1.bias", 0, 3),
        ("2.weight", 1, 3),
    }  # fmt: skip
    assert groups.writers == {"0.weight", "1.weight"}


class Attention(nn.Module):
    """Two query heads for each key-value head, by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = nn.Linear(8, 16), nn.Linear(8, 8), nn.Linear(8, 8)
        self.out = nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        n, t, _ = x.shape
        q = self.q(x).view(n, t, 4, 4).transpose(1, 2)
        k, v = (one(x).view(n, t, 2, 4).transpose(1, 2) for one in (self.k, self.v))
        k, v = (one[:, :, None].expand(n, 2, 2, t, 4).reshape(n, 4, t, 4) for one in (k, v))
        y = ((q @ k.transpose(-1, -2)) / 2).softmax(-1) @ v
        return self.out(y.transpose(1, 2).reshape(n, t, -1))


def test_a_key_value_head_goes_with_its_queries() -> None:
    x = torch.zeros(2, 5, 8)
    (heads,) = (one for one in tied_channels(Attention(), x, blocks=True) if one.free)
    assert heads.channels == 2
    index = {(m.parameter, m.dim): m.index for m in heads.members}
    assert torch.equal(index["q.weight", 0], torch.arange(16).view(2, 8))
    assert torch.equal(index["k.weight", 0], torch.arange(8).view(2, 4))
    assert torch.equal(index["out.weight", 1], torch.arange(16).view(2, 8))
    assert not any(one.free for one in tied_channels(Attention(), x))

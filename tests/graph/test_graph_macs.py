"""How many multiply-adds each weight takes part in."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dessilbi.graph.macs import count_macs_per_weight


def test_a_weight_is_used_once_for_every_position() -> None:
    net = nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.ConvTranspose2d(3, 1, 3), nn.Flatten(), nn.Linear(36, 2)
    ).train()
    found = count_macs_per_weight(net, torch.zeros(3, 1, 6, 6))
    assert found == {"0.weight": 16.0, "1.weight": 16.0, "3.weight": 1.0}
    assert net.training
    assert not net[0]._forward_hooks


def test_tokens_groups_strides_and_dimensions() -> None:
    assert count_macs_per_weight(nn.Linear(4, 2), torch.zeros(5, 7, 4)) == {"weight": 7.0}
    strided = nn.Conv1d(4, 4, 3, groups=2, stride=2)
    assert count_macs_per_weight(strided, torch.zeros(1, 4, 9)) == {"weight": 4.0}
    assert count_macs_per_weight(nn.Conv3d(1, 2, 2), torch.zeros(1, 1, 3, 3, 3)) == {"weight": 8.0}


def test_a_weight_in_several_layers_counts_in_each() -> None:
    tied = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    tied[1].weight = tied[0].weight
    assert count_macs_per_weight(tied, torch.zeros(2, 3)) == {"0.weight": 2.0}


def test_no_batch_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one example"):
        count_macs_per_weight(nn.Linear(3, 3), torch.zeros(0, 3))
    with pytest.raises(ValueError, match="must be a batch"):
        count_macs_per_weight(nn.Linear(3, 3), ())

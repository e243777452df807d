"""Statistics of BatchNorm: measured anew in full, or left as they were."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn

from dessilbi.path import Mask
from dessilbi.subnet import project, recalibrate_batchnorm

if TYPE_CHECKING:
    from collections.abc import Callable

INPUTS = torch.linspace(-1, 1, 16 * 36).sin().reshape(16, 1, 6, 6)


def make_net() -> nn.Sequential:
    """With statistics that are not those of a new network."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU())
    net(INPUTS)
    return net


def statistics(net: nn.Module) -> dict[str, Tensor]:
    return {name: b.clone() for name, b in net.named_buffers()}


def unchanged(net: nn.Module, before: dict[str, Tensor]) -> bool:
    return all(torch.equal(b, before[name]) for name, b in net.named_buffers())


@pytest.mark.parametrize(
    ("inputs", "error"),
    [
        (lambda: iter(()), ValueError),
        (lambda: INPUTS, (RuntimeError, ValueError)),
        (lambda: [(INPUTS, torch.zeros(16))], TypeError),
        (lambda: [INPUTS, None], TypeError),
    ],
    ids=["an exhausted generator", "a tensor", "pairs", "a bad second batch"],
)
def test_what_fails_leaves_the_statistics_as_they_were(
    inputs: Callable[[], Any], error: type[Exception]
) -> None:
    net = make_net()
    before = statistics(net)
    with pytest.raises(error):
        recalibrate_batchnorm(net, inputs())
    assert unchanged(net, before)


@pytest.mark.parametrize("error", [None, KeyboardInterrupt])
def test_the_dense_weights_come_back_with_their_statistics(
    error: type[BaseException] | None,
) -> None:
    net = make_net()
    before = statistics(net)
    mask = Mask({"0.weight": torch.arange(6).lt(3).view(6, 1, 1, 1).expand(6, 1, 3, 3)})
    try:
        with project(net, mask):
            recalibrate_batchnorm(net, [INPUTS])
            inside = statistics(net)
            if error is not None:
                raise error
    except KeyboardInterrupt:
        pass
    assert not torch.equal(inside["1.running_var"], before["1.running_var"])
    assert unchanged(net, before)

"""Statistics of BatchNorm: measured anew in full, or left as they were."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

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
        (lambda: [INPUTS, "no batch"], TypeError),
        (lambda: [INPUTS, None], TypeError),
    ],
    ids=["an exhausted generator", "text", "a bad second batch"],
)
def test_what_fails_leaves_the_statistics_as_they_were(
    inputs: Callable[[], Any], error: type[Exception]
) -> None:
    net = make_net()
    before = statistics(net)
    with pytest.raises(error):
        recalibrate_batchnorm(net, inputs())
    assert unchanged(net, before)


class Several(nn.Module):
    """Takes two inputs, and perhaps labels."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x: Tensor, scale: Tensor, labels: Tensor | None = None) -> Tensor:
        assert labels is None or labels.dtype is torch.int64
        return self.norm(x * scale)


@pytest.mark.parametrize(
    "given",
    [
        INPUTS,
        DataLoader(TensorDataset(INPUTS, torch.arange(16)), batch_size=16),
        [(INPUTS, torch.arange(16))],
        [(INPUTS,)],
        [{"input": INPUTS}],
    ],
    ids=["a tensor", "a loader of pairs", "pairs", "arguments", "keywords"],
)
def test_batches_are_taken_as_loaders_give_them(given: Any) -> None:
    net, wanted = make_net(), make_net()
    recalibrate_batchnorm(net, given)
    recalibrate_batchnorm(wanted, [INPUTS])
    assert unchanged(net, statistics(wanted))


def test_labels_come_after_all_inputs() -> None:
    x, scale, labels = torch.randn(8, 3), torch.rand(8, 1), torch.arange(8)
    wanted = Several()
    recalibrate_batchnorm(wanted, [(x, scale)])
    for batch in ([x, scale, labels], (x, scale, labels), (x, scale, labels, labels)):
        net = Several()
        recalibrate_batchnorm(net, [batch])
        assert unchanged(net, statistics(wanted))


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

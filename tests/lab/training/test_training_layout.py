"""Images lie channels-last on a CPU, but for networks that oneDNN would spoil the memory of."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch
from torch import Tensor, nn

from dessilbi import DessiLBI, Mask, NestedWidths, compact, split_parameters
from dessilbi.graph.ties import tied_channels
from dessilbi.lab.data import Dataset, TensorSplit, batches
from dessilbi.lab.models import make_model
from dessilbi.lab.models.resnet import BasicBlock, _resnet
from dessilbi.lab.models.task import Task
from dessilbi.lab.run.config import ModelConfig
from dessilbi.lab.run.options import RunOptions
from dessilbi.lab.training.build import laid_out_for, load_data, needs_channels_first
from dessilbi.lab.training.loop import train
from lab_runs import SMALL

if TYPE_CHECKING:
    from pathlib import Path


class Strided(nn.Module):
    """A strided 1x1 convolution of few channels, which notes how its images lie in memory."""

    layouts: list[bool] = []  # noqa: RUF012 - shared by all on purpose

    def __init__(self, num_classes: int, in_channels: int = 1) -> None:
        super().__init__()
        self.widen = nn.Conv2d(in_channels, 6, 3, padding=1)
        self.conv = nn.Conv2d(6, 16, 1, stride=2)
        self.out = nn.Linear(16, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.widen(x)
        if self.training:
            self.layouts.append(x.is_contiguous())
        out: Tensor = self.out(self.conv(x).relu().mean((2, 3)))
        return out


@pytest.mark.parametrize(
    ("model", "needs"),
    [
        (nn.Conv2d(6, 16, 1, stride=2), True),
        (nn.Conv2d(6, 16, 1), False),
        (nn.Conv2d(6, 16, 3, stride=2), False),
        (nn.Conv2d(32, 16, 1, stride=2), False),
        (make_model("resnet-20", num_classes=10, in_channels=3, input_size=32), False),
    ],
)
def test_which_networks_need_the_plain_layout(model: nn.Module, needs: bool) -> None:
    assert needs_channels_first(model) == needs


def narrow_resnet(num_classes: int, in_channels: int = 1) -> nn.Module:
    """The lab's ResNet with filters so few that its shortcut needs the plain layout."""
    return _resnet(BasicBlock, 8, (1, 1), Task(num_classes, in_channels, 8))


TASK = {"num_classes": 10, "in_channels": 1, "input_size": 8}


def test_data_is_laid_out_for_those_only() -> None:
    data = load_data(SMALL, None, download=False)
    seen = {}
    for name in ("resnet-20", f"{__name__}:Strided", f"{__name__}:narrow_resnet"):
        laid_out = laid_out_for(make_model(name, **TASK), replace_channels(data))
        x, _ = next(iter(batches(laid_out.train, 4, seed=0, epoch=0)))
        seen[name.split(":")[-1]] = x.is_contiguous()
    assert seen == {"resnet-20": False, "Strided": True, "narrow_resnet": True}


@pytest.mark.parametrize(("half", "last"), [(False, False), (True, True)])
def test_half_precision_is_channels_last_on_other_devices_too(half: bool, last: bool) -> None:
    """The device without memory stands for a GPU."""
    data = replace_channels(load_data(SMALL, None, download=False))
    split = laid_out_for(make_model("resnet-20", **TASK), data, half=half).train
    assert isinstance(split, TensorSplit)
    x = split.pixels(torch.empty(4, 3, 8, 8, dtype=torch.uint8, device="meta"))
    assert x.is_contiguous(memory_format=torch.channels_last) == last
    assert split.pixels(split.images[:4]).is_contiguous(memory_format=torch.channels_last)


def replace_channels(data: Dataset) -> Dataset:
    """The same with three channels: with one, both layouts are one."""
    assert isinstance(data.train, TensorSplit)
    train = replace(data.train, images=data.train.images.repeat(1, 3, 1, 1))
    return replace(data, train=train)


@pytest.mark.filterwarnings("ignore:nothing was removed")
def test_a_narrow_network_of_the_lab_is_compacted_tied_and_narrowed() -> None:
    """It had a hook, which all three refuse."""
    model = make_model(f"{__name__}:narrow_resnet", **TASK).eval()
    x = torch.rand(2, 1, 8, 8)
    assert len(tied_channels(model, x)) > 0
    small = compact(model, Mask.magnitude(model, 0.5, scope="global"), x).model
    assert small(x).shape == (2, 10)
    optimizer = DessiLBI(split_parameters(model, exclude=["fc"]), lr=0.1)
    NestedWidths(model, optimizer, 10, x).close()


@pytest.mark.parametrize("check_step", [False, True])
def test_training_gives_it_to_them(tmp_path: Path, check_step: bool) -> None:
    Strided.layouts.clear()
    config = replace(SMALL, epochs=1, keep=(), model=ModelConfig(name=f"{__name__}:Strided"))
    train(config, RunOptions(runs=tmp_path, check_step=check_step))
    assert Strided.layouts
    assert all(Strided.layouts)

"""Images lie channels-last on a CPU, but for networks that oneDNN would spoil the memory of."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch
from torch import Tensor, nn

from dessilbi.lab.models import make_model
from dessilbi.lab.models.layout import needs_plain_layout
from dessilbi.lab.run.config import ModelConfig
from dessilbi.lab.run.options import RunOptions
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
    assert needs_plain_layout(model) == needs


def test_images_are_laid_out_for_those_only() -> None:
    x = torch.rand(2, 3, 8, 8).to(memory_format=torch.channels_last)
    seen: list[Tensor] = []
    task = {"num_classes": 10, "in_channels": 3, "input_size": 32}
    for name in ("resnet-20", f"{__name__}:Strided"):
        model = make_model(name, **task)
        model.register_forward_hook(lambda _m, inputs, _out: seen.extend(inputs))
        model(x)
    assert [one.is_contiguous() for one in seen] == [False, True]
    assert all(torch.equal(one, x) for one in seen)


@pytest.mark.parametrize("check_step", [False, True])
def test_training_gives_it_to_them(tmp_path: Path, check_step: bool) -> None:
    Strided.layouts.clear()
    config = replace(SMALL, epochs=1, keep=(), model=ModelConfig(name=f"{__name__}:Strided"))
    train(config, RunOptions(runs=tmp_path, check_step=check_step))
    assert Strided.layouts
    assert all(Strided.layouts)

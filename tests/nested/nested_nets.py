"""Networks, batches and loops that the tests of nested training share."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from dessilbi import DessiLBI, NestedSchedule, NestedTraining, NestedWidths, split_parameters

if TYPE_CHECKING:
    from torch.optim import Optimizer

OPTIONS: dict[str, Any] = {
    "lr": 0.1,
    "nu": 5.0,
    "lambd": 0.05,
    "momentum": 0.9,
    "weight_decay": 1e-3,
}
EARLY: dict[str, Any] = {
    "min_density": 0.02,
    "max_density": 1.0,
    "ramp_start": 0.0,
    "ramp_end": 0.0,
    "freeze_ranking_at": 1.0,
    "full_fraction": 0.2,
    "rank_every": 4,
}
"""Every budget from the first step on."""


class Net(nn.Module):
    """A convolution by filter, BatchNorm, and two linear layers by element."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8)
        self.hidden, self.out = nn.Linear(8 * 16, 20), nn.Linear(20, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.hidden(self.norm(self.conv(x)).relu().flatten(1)).relu())


class Plain(nn.Module):
    """Two convolutions with BatchNorm, flattened into a linear layer and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.norm = nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8)
        self.two = nn.Conv2d(8, 6, 3)
        self.hidden, self.out = nn.Linear(6 * 4, 10), nn.Linear(10, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.two(self.norm(self.one(x)).relu()).relu().flatten(1)
        return self.out(self.hidden(x).relu())


class Residual(nn.Module):
    """A stream that two convolutions write to, each with its BatchNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.stem_norm = nn.Conv2d(1, 8, 3, bias=False), nn.BatchNorm2d(8)
        self.inner = nn.Conv2d(8, 5, 3, padding=1)
        self.back, self.back_norm = nn.Conv2d(5, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.out = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem_norm(self.stem(x)).relu()
        x = (x + self.back_norm(self.back(self.inner(x).relu()))).relu()
        return self.out(x.mean((2, 3)))


class Remembering(nn.Module):
    """Stores what its loss reads, as a network with an auxiliary loss does."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.out = nn.Linear(36, 12), nn.Linear(12, 12), nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        self.h = self.one(x.flatten(1)).relu()
        return self.out(self.two(self.h).relu())


def batch(step: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(16, 1, 6, 6, dtype=torch.float64, generator=generator)
    return x.to(dtype), torch.randint(4, (16,), generator=generator)


def make(dtype: torch.dtype = torch.float64, **options: Any) -> tuple[Net, DessiLBI]:
    torch.manual_seed(0)
    net = Net().to(dtype)
    return net, DessiLBI(split_parameters(net), **(OPTIONS | options))


def by_weight(
    net: nn.Module, opt: Optimizer, steps: int = 30, schedule: Any = None, **options: Any
) -> NestedTraining:
    return NestedTraining(
        net, opt, steps, schedule=NestedSchedule(**(EARLY | (schedule or {}))), **options
    )


def make_widths(
    kind: type[nn.Module],
    steps: int = 12,
    exclude: tuple[str, ...] = ("out",),
    schedule: Any = None,
    opt: Any = None,
    **options: Any,
) -> tuple[nn.Module, Optimizer, NestedWidths]:
    """Every width from the first step on, and no branches unless they are asked for."""
    torch.manual_seed(0)
    net = kind().double()
    groups = split_parameters(net, {"*": {"penalty": "group_lasso"}}, exclude=exclude)
    optimizer: Optimizer = DessiLBI(groups, **OPTIONS) if opt is None else opt(groups)
    early = {**EARLY, "min_density": 0.1, "rank_every": 3}
    options = {"small_fraction": 1.0, "branch_at": (1.0, 1.0)} | options
    nested = NestedWidths(
        net,
        optimizer,
        steps,
        batch(0)[0],
        schedule=NestedSchedule(**(early | (schedule or {}))),
        **options,
    )
    return net, optimizer, nested


def train(
    net: nn.Module, opt: Optimizer, nested: NestedTraining | NestedWidths, start: int, stop: int
) -> None:
    for step in range(start, stop):
        x, y = batch(step, next(net.parameters()).dtype)
        opt.zero_grad()
        nested.backward(x, partial(cross_entropy, target=y))
        opt.step()


def train_in_place(
    net: nn.Module, opt: Optimizer, nested: NestedTraining, start: int, stop: int
) -> None:
    for step in range(start, stop):
        x, y = batch(step, next(net.parameters()).dtype)
        opt.zero_grad()
        with nested:
            cross_entropy(net(x), y).backward()
        opt.step()


def weights(net: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in net.named_parameters()}

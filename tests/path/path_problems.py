"""A small network whose filters enter, leave and re-enter within a few dozen steps."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from dessilbi.optim import DessiLBI, SplitLBI, TwinOptimizer, split_parameters
from dessilbi.path import PathRecorder, SolutionPath


class Net(nn.Module):
    """A convolution, a transposed one (groups in dimension 1) and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 6, 3)
        self.up = nn.ConvTranspose2d(6, 5, 2)
        self.fc = nn.Linear(5 * 5 * 5, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.up(self.conv(x).relu()).relu().flatten(1))


def make(base: str = "sgd", **options: Any) -> tuple[Net, TwinOptimizer]:
    torch.manual_seed(1)
    net = Net()
    groups = split_parameters(net, {"fc": {"lambd": 0.02}})
    if base == "adamw":
        return net, SplitLBI(torch.optim.AdamW(groups, lr=0.02), nu=0.2, lambd=0.5, **options)
    settings = {"lr": 0.3, "nu": 3.0, "lambd": 0.5, "momentum": 0.9} | options
    return net, DessiLBI(groups, **settings)


def batch(step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(8, 1, 6, 6, generator=generator)
    return x, torch.randint(4, (8,), generator=generator)


def train_step(net: nn.Module, opt: TwinOptimizer, step: int) -> float:
    # A threshold that rises and falls makes groups leave and come back.
    for group in opt.param_groups:
        if group["name"] == "filters":
            group["lambd"] = 0.5 + 0.4 * (step % 7 < 3)
    x, y = batch(step)
    opt.zero_grad()
    loss = cross_entropy(net(x), y)
    loss.backward()
    opt.step()
    return float(loss.detach())


STEPS, EPOCH = 40, 5


def train(
    net: nn.Module, opt: TwinOptimizer, rec: PathRecorder, start: int = 0, stop: int = STEPS
) -> None:
    """Steps start+1 to stop, with a mark after every few."""
    for step in range(start + 1, stop + 1):
        loss = train_step(net, opt, step)
        if step % EPOCH == 0:
            rec.record(step // EPOCH, loss=loss)


def recorded(**options: Any) -> SolutionPath:
    net, opt = make(**options)
    rec = PathRecorder(net, opt)
    rec.record(0)
    train(net, opt, rec)
    return rec.path


def same(a: SolutionPath, b: SolutionPath) -> bool:
    """Equal in everything that can be read."""
    if (a.layers, a.step, a.epochs) != (b.layers, b.step, b.epochs):
        return False
    checks = []
    for layer in a.layers:
        pairs = zip(a.events(layer.name), b.events(layer.name), strict=True)
        checks += [torch.equal(x, y) for x, y in pairs]
        for e in a.epochs:
            pairs = zip(a.norms(e, layer.name), b.norms(e, layer.name), strict=True)
            checks += [torch.equal(x, y) for x, y in pairs]
            checks.append(torch.equal(a.support(e)[layer.name], b.support(e)[layer.name]))
            checks.append(a.density(e, layer.name) == b.density(e, layer.name))
    checks += [a.loss(e) == b.loss(e) and a.gap(e) == b.gap(e) for e in a.epochs]
    checks += [a.augmented_loss(e) == b.augmented_loss(e) for e in a.epochs]
    return all(checks)

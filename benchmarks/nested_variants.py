"""Variants of nested training that were tried: accuracy at every budget on held-out images.

    python benchmarks/nested_variants.py [--data-dir DIR] [--seed 0] [--draw prog --ramp 0.33 ...]

Fashion-MNIST, LeNet-300-100 on flat tensors, 50,000 images to train on, 10,000 of the training set
to judge by, 12 epochs, batch 128, lr 0.1, momentum 0.9, weight decay 1e-4. Without options it is
the first prototype: from the end of epoch 1 a budget is drawn log-uniformly at every step, the
whole network in a quarter of the steps, and the ranking is fixed after three quarters. What helped
became `dessilbi.NestedTraining`; docs/one-run-tried.md has the figures. It is an experiment,
not the implementation: everything sits in one loop, and the variants exclude or ignore one another.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - as everybody does

from dessilbi.lab.data import load_dataset
from dessilbi.lab.data.splits import TensorSplit

BUDGETS = (0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 1.0)
SHAPES = ((300, 784), (100, 300), (10, 100))
ENDS = (0, 235_200, 265_200, 266_200)
KNOTS = 8
BATCH, MOMENTUM = 128, 0.9


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--data-dir", type=Path)
    add("--seed", type=int, default=0)
    add("--epochs", type=int, default=12)
    add("--sched", choices=("multistep", "cosine", "linear"), default="multistep")
    add("--lr", type=float, default=0.1)
    add("--wd", type=float, default=1e-4)
    add("--nu", type=float, default=100.0)
    add("--lambd", type=float, default=0.03)
    add("--coupling", type=int, default=1, help="0: no Gamma")
    add("--low", type=float, default=0.004, help="smallest budget")
    add("--high", type=float, default=1.0, help="largest budget drawn after the descent")
    add("--full", type=float, default=0.25, help="share of steps on the whole network")
    add("--start", type=float, default=1 / 12)
    add("--draw", choices=("log", "prog", "lin"), default="log")
    add("--ramp", type=float, default=0.5, help="prog, lin: end of the descent to --low")
    add("--golden", type=int, default=0, help="1: budgets spread evenly, not at random")
    add("--power", type=float, default=1.0, help="above 1: smaller budgets more often")
    add("--fix", type=float, default=0.75, help="when the ranking is fixed")
    add("--refresh", type=int, default=50)
    add("--rank", choices=("w", "v", "entry", "layer"), default="w", help="what is ranked")
    add("--floor", type=float, default=0.0, help="share of each layer that every budget keeps")
    add("--split", type=int, default=1, help="budgets a step, each on its part of the batch")
    add("--ring", type=float, default=0.0, help="move only weights beyond budget / RING")
    add("--ringstart", type=float, default=0.33)
    add("--frozenmom", type=int, default=1, help="0: momentum decays where a weight rests")
    add("--kd", type=float, default=0.0, help="weight of the whole network's last logits")
    add("--kdT", type=float, default=2.0)
    add("--ema", type=float, default=0.0)
    add("--privbias", type=int, default=0, help="1: biases of their own by budget")
    add("--smooth", type=float, default=0.0)
    return parser


class Variant:
    """A network in training."""

    def __init__(self, o: argparse.Namespace) -> None:
        self.o = o
        torch.manual_seed(o.seed)
        self.W = torch.empty(ENDS[-1])
        for i, shape in enumerate(SHAPES):
            nn.init.kaiming_normal_(self.W[ENDS[i] : ENDS[i + 1]].view(shape), nonlinearity="relu")
        rows = KNOTS if o.privbias else 1
        self.biases = [torch.zeros(rows, shape[0], requires_grad=True) for shape in SHAPES]
        self.V, self.buffer = torch.zeros_like(self.W), torch.zeros_like(self.W)
        self.bias_buffers = [torch.zeros_like(b) for b in self.biases]
        self.random = random.Random(o.seed)
        self.entered = torch.full_like(self.W, torch.inf)
        self.age = 0
        self.score: Tensor | None = None
        self.sorted = torch.empty(0)

    def forward(self, W: Tensor, x: Tensor, density: float) -> Tensor:
        """Logits; the density chooses biases if each budget has its own."""
        for i, shape in enumerate(SHAPES):
            bias = self.biases[i][0]
            if self.o.privbias:
                place = (1 - math.log(density) / math.log(self.o.low)) * (KNOTS - 1)
                place = min(max(place, 0.0), KNOTS - 1 - 1e-9)
                j, f = int(place), place - int(place)
                bias = self.biases[i][j] * (1 - f) + self.biases[i][j + 1] * f
            x = F.linear(x, W[ENDS[i] : ENDS[i + 1]].view(shape), bias)
            x = F.relu(x) if i < 2 else x
        return x

    def refresh(self) -> None:
        """Rank the weights anew."""
        score = self.W.abs()
        if self.o.rank == "v":
            score = self.V.abs()
        elif self.o.rank == "entry":  # the earlier in Gamma, the better; then by size
            early = torch.where(self.entered.isinf(), 0.0, self.age + 1 - self.entered)
            score = score / score.max() + early
        for first, last in itertools.pairwise(ENDS):
            layer = score[first:last]
            if self.o.rank == "layer":
                layer /= layer.square().mean().sqrt()
            kept = round(self.o.floor * len(layer))
            layer[layer.topk(kept).indices] = torch.inf
        self.score = score
        self.sorted = self.score.sort(descending=True).values

    def mask(self, density: float) -> Tensor | None:
        """The largest weights that a budget has room for; None: all."""
        assert self.score is not None
        k = max(1, round(density * len(self.W)))
        return self.score >= self.sorted[k - 1] if k < len(self.W) else None

    def draw(self, progress: float, step: int) -> float:
        """The budget of a step."""
        o = self.o
        chance = self.random.random
        if o.golden:
            place = (0.3719 * o.seed + 0.6180339887498949 * step) % 1
            rest = (place - o.full) / (1 - o.full)
            chance = iter((0.0 if place < o.full else 1.0, rest)).__next__
        if o.draw == "log":
            if chance() < o.full:
                return 1.0
            return math.exp(math.log(o.low) * chance() ** (1 / o.power))
        done = min(1.0, max(0.0, (progress - o.start) / (o.ramp - o.start)))
        lowest = o.low + (1 - o.low) * (1 - done) ** 3
        if o.draw == "lin":
            lowest = math.exp(math.log(o.low) * done)
        if chance() < o.full:
            return 1.0
        u = chance() ** (1 / o.power)
        highest = max(lowest, min(1.0, o.high)) if done >= 1 else 1.0
        return math.exp(math.log(lowest) * u + math.log(highest) * (1 - u))

    @torch.no_grad()
    def step(self, grad: Tensor, moves: Tensor | None, lr: float) -> None:
        """Momentum on what the loss moves, the coupling on all."""
        o, W = self.o, self.W
        carried = MOMENTUM * self.buffer + grad + o.wd * W
        if moves is not None:
            resting = self.buffer if o.frozenmom else MOMENTUM * self.buffer
            carried = torch.where(moves, carried, resting)
        self.buffer = carried
        new = W - lr * carried if moves is None else torch.where(moves, W - lr * carried, W)
        if o.coupling:
            Gamma = self.V.sign() * (self.V.abs() - o.lambd).clamp_min(0)
            C = (W - Gamma) / o.nu
            new = new - lr * C
            self.V += lr * C
            self.age += 1
            enters = (self.V.abs() > o.lambd) & self.entered.isinf()
            self.entered[enters] = self.age
        self.W = new
        for bias, buffer in zip(self.biases, self.bias_buffers, strict=True):
            assert bias.grad is not None
            buffer.mul_(MOMENTUM).add_(bias.grad + (0 if o.privbias else o.wd * bias))
            bias.sub_(lr * buffer)
            bias.grad = None


def rate(o: argparse.Namespace, step: int, per_epoch: int) -> float:
    share = step / (per_epoch * o.epochs)
    if o.sched == "cosine":
        return float(o.lr * 0.5 * (1 + math.cos(math.pi * share)))
    if o.sched == "linear":
        return float(o.lr * (1 - share))
    return float(o.lr * 0.1 ** ((share >= 1 / 3) + (share >= 2 / 3)))


def run(o: argparse.Namespace) -> list[float]:
    data = load_dataset("fashion-mnist", data_dir=o.data_dir, normalize=True, validation=10_000)
    assert isinstance(data.train, TensorSplit)
    assert isinstance(data.validation, TensorSplit)
    X, Y = data.train.tensors()
    X = X.flatten(1)
    net = Variant(o)
    taught, seen = torch.zeros(len(X), 10), torch.zeros(len(X), dtype=torch.bool)
    average: list[Tensor] | None = None
    generator = torch.Generator().manual_seed(1000 + o.seed)
    per_epoch = math.ceil(len(X) / BATCH)

    def loss(W: Tensor, index: Tensor, density: float) -> Tensor:
        out = net.forward(W, X[index], density)
        found = F.cross_entropy(out, Y[index], label_smoothing=o.smooth)
        if o.kd > 0 and density == 1:
            taught[index], seen[index] = out.detach(), True
        elif o.kd > 0 and seen[index].any():
            ours, theirs = (F.log_softmax(t / o.kdT, 1) for t in (out, taught[index]))
            distance = F.kl_div(ours, theirs, log_target=True, reduction="none").sum(1)
            found = (1 - o.kd) * found + o.kd * o.kdT**2 * (distance * seen[index]).mean()
        return found

    for step in range(per_epoch * o.epochs):
        batch = step % per_epoch
        if batch == 0:
            order = torch.randperm(len(X), generator=generator)
        index = order[batch * BATCH : (batch + 1) * BATCH]
        progress = step / (per_epoch * o.epochs)
        nested = progress >= o.start
        if nested and (net.score is None or (step % o.refresh == 0 and progress < o.fix)):
            net.refresh()
        grad, moves = torch.zeros_like(net.W), torch.zeros(len(net.W), dtype=torch.bool)
        density = 1.0
        for part in index.tensor_split(o.split if nested else 1):
            density = net.draw(progress, step) if nested else 1.0
            mask = net.mask(density) if nested else None
            W = (net.W.clone() if mask is None else net.W * mask).requires_grad_()
            (loss(W, part, density) * (len(part) / len(index))).backward()  # type: ignore[no-untyped-call]
            assert W.grad is not None
            grad += W.grad if mask is None else W.grad * mask
            moves |= torch.ones_like(moves) if mask is None else mask
        if o.ring and nested and progress >= o.ringstart and density / o.ring > o.low:
            inner = net.mask(density / o.ring)
            assert inner is not None
            moves, grad = moves & ~inner, grad * ~inner
        net.step(grad, None if bool(moves.all()) else moves, rate(o, step, per_epoch))
        if o.ema > 0 and progress > o.fix:
            present = [net.W, *(b.detach() for b in net.biases)]
            if average is None:
                average = [t.clone() for t in present]
            for mean, now in zip(average, present, strict=True):
                mean.lerp_(now, 1 - o.ema)

    with torch.no_grad():
        if average is not None:
            net.W = average[0]
            for bias, mean in zip(net.biases, average[1:], strict=True):
                bias.copy_(mean)
        if o.fix >= 1:
            net.refresh()
        images, labels = data.validation.tensors()
        accuracies = []
        for budget in BUDGETS:
            mask = net.mask(budget)
            out = net.forward(net.W if mask is None else net.W * mask, images.flatten(1), budget)
            accuracies.append(round(100 * float((out.argmax(1) == labels).float().mean()), 2))
    return accuracies


def main() -> None:
    parser = options()
    o = parser.parse_args()
    torch.set_num_threads(1)
    changed = {k: v for k, v in vars(o).items() if v != parser.get_default(k) and k != "data_dir"}
    print(json.dumps({"options": changed, "budgets": BUDGETS, "accuracy": run(o)}))


if __name__ == "__main__":
    main()

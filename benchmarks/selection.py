"""Which weights should stay? Ways to choose by the twin, beside gradual magnitude pruning.

    python benchmarks/selection.py --data-dir DIR [--seeds 3] [--methods gradual,quantile,...]

LeNet-300-100 on Fashion-MNIST, 12 epochs of SGD (momentum 0.9, weight decay 5e-4, cosine from 0.1,
batch 128); 50,000 images train, accuracy is of the 10,000 held out. Every method ends with exactly
the density that was asked for; seeds begin at --first-seed. The loop is written out: what is tried
here stands in these lines, and what the library has of it is compared with it.

- gradual: the smallest |W| leave along a cubic, from 1/12 to 2/3 of the steps;
- quantile: thresholds of V (relative to the layer's initial size) follow the quantile that lets the
  support grow linearly to the target at half time; it is then frozen and trained on;
- quantile-end: the same, grown until the last step and projected, nothing healed;
- leak-E: V also loses a share of itself a step, so that it forgets within E of the training;
- masked-A: V also follows A times the gradient at the projected network (a second pass);
- hyperbolic-B: W is multiplied by exp(-lr (|g| towards zero + B)) after each step, as in HAM;
- reweighted-D: thresholds shrink with the weight's size now, by 1 / (|W| / size + D);
- explore-N: between two explorations, N steps apart, only weights in the support are in the pass
  and move; the coupling acts in explorations only, N times as hard;
- final-w: coupling and threshold as quantile, but what stays is the largest |W| at half time.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from statistics import mean

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, relu

from dessilbi.lab.data.load import load_dataset
from dessilbi.lab.data.splits import TensorSplit

METHODS = (
    "gradual,quantile-end,quantile,leak-0.1,leak-0.3,masked-0.3,masked-1,hyperbolic-0,"
    "hyperbolic-0.01,reweighted-0.1,reweighted-1,explore-10,explore-100,final-w"
)
DENSITIES = (0.005, 0.02, 0.1)
EPOCHS, BATCH, LR, MOMENTUM, DECAY, TAU, EVERY = 12, 128, 0.1, 0.9, 5e-4, 10.0, 50
BEGIN, HALF, END = 1 / 12, 1 / 2, 2 / 3


def output(x: Tensor, weights: list[Tensor], biases: list[Tensor]) -> Tensor:
    """The network."""
    for W, b in zip(weights[:-1], biases[:-1], strict=True):
        x = relu(torch.addmm(b, x, W.T))
    return torch.addmm(biases[-1], x, weights[-1].T)


def threshold(strengths: list[Tensor], count: int) -> float:
    """What exactly ``count`` of all strengths lie above, or as good as."""
    if count == 0:
        return math.inf
    return float(torch.cat([s.flatten() for s in strengths]).topk(count + 1).values[-1])


class Twin:
    """V, its thresholds, and the coupling."""

    def __init__(self, weights: list[Tensor], steps: int, kind: str, number: float) -> None:
        self.kind, self.number = kind, number
        self.V = [torch.zeros_like(W) for W in weights]
        self.sizes = [W.square().mean().sqrt() for W in weights]
        self.theta = math.inf
        self.nu = LR * steps / 2 / TAU  # a cosine falls to half of its rate on average
        self.leak = 1 / (number * steps) if kind == "leak" else 0.0

    def strengths(self, weights: list[Tensor]) -> list[Tensor]:
        """What is compared with the threshold."""
        found = [V.abs() / s for V, s in zip(self.V, self.sizes, strict=True)]
        if self.kind == "reweighted":
            pairs = zip(found, weights, self.sizes, strict=True)
            return [f * (W.abs() / s + self.number) for f, W, s in pairs]
        return found

    def masks(self, weights: list[Tensor]) -> list[Tensor]:
        """The support of Gamma."""
        return [s > self.theta for s in self.strengths(weights)]

    def couple(self, weights: list[Tensor], lr: float) -> None:
        """W and V, one towards the other."""
        for W, V, strength in zip(weights, self.V, self.strengths(weights), strict=True):
            gamma = (1 - self.theta / strength.clamp(min=1e-12)).relu_() * V
            C = W.sub(gamma).mul_(lr / self.nu)
            W -= C
            V.mul_(1 - self.leak).add_(C)


def trained(
    method: str, density: float, seed: int, data: tuple[Tensor, Tensor, Tensor, Tensor]
) -> float:
    """Accuracy on the held-out images after one training."""
    kind, _, number = method.partition("-")
    x, y, held_x, held_y = data
    torch.manual_seed(seed)
    shapes = ((300, 784), (100, 300), (10, 100))
    weights = [(torch.randn(s) * math.sqrt(2 / s[1])).requires_grad_() for s in shapes]
    biases = [torch.zeros(s[0], requires_grad=True) for s in shapes]
    params = [*weights, *biases]
    raw, total = [W.detach() for W in weights], sum(W.numel() for W in weights)
    velocity = [torch.zeros_like(p) for p in params]
    steps = EPOCHS * (len(x) // BATCH)
    value = float(number) if number.replace(".", "").isdigit() else 0.0
    twin = None if kind == "gradual" else Twin(raw, steps, kind, value)
    masks: list[Tensor] | None = None
    grow_until = 1.0 if method == "quantile-end" else HALF
    for step in range(steps):
        if step % (len(x) // BATCH) == 0:
            order = torch.randperm(len(x))
        batch = order[(step * BATCH) % (len(x) - BATCH) :][:BATCH]
        progress, lr = step / steps, LR / 2 * (1 + math.cos(math.pi * step / steps))
        growing = twin is not None and masks is None
        explores = kind != "explore" or progress < BEGIN or step % int(value) == 0
        inside = twin.masks(raw) if twin and growing and not explores else None
        passed = (
            weights if inside is None else [W * m for W, m in zip(weights, inside, strict=True)]
        )
        loss = cross_entropy(output(x[batch], passed, biases), y[batch])
        grads = torch.autograd.grad(loss, params)
        with torch.no_grad():
            if twin and growing and explores:
                hard = value if kind == "explore" and progress >= BEGIN else 1
                twin.couple(raw, lr * hard)
            if kind == "masked" and twin and growing:
                support = [W * m for W, m in zip(raw, twin.masks(raw), strict=True)]
                with torch.enable_grad():
                    leaves = [s.requires_grad_() for s in support]
                    loss = cross_entropy(output(x[batch], leaves, biases), y[batch])
                    there = torch.autograd.grad(loss, leaves)
                for V, g in zip(twin.V, there, strict=True):
                    V.sub_(g, alpha=lr * value)
            for p, g, v in zip(params, grads, velocity, strict=True):
                v.mul_(MOMENTUM).add_(g + DECAY * p)
            for v, m in zip(velocity, inside or (), strict=False):
                v.mul_(m)
            for p, v in zip(params, velocity, strict=True):
                p.sub_(v, alpha=lr)
            if kind == "hyperbolic" and growing:
                for W, g in zip(raw, grads[: len(raw)], strict=True):
                    W.mul_(torch.exp(-lr * (W.sign() * g + value)))
            now = (step + 1) / steps
            due = (step + 1) % EVERY == 0
            if twin and growing and (due or now >= grow_until):
                share = min(1.0, max(0.0, (now - BEGIN) / (grow_until - BEGIN)))
                twin.theta = threshold(twin.strengths(raw), round(density * share * total))
                if now >= grow_until:
                    masks = twin.masks(raw)
                    if kind == "final":
                        sizes = [W.abs() for W in raw]
                        masks = [s > threshold(sizes, round(density * total)) for s in sizes]
            if twin is None and now >= BEGIN and (due or now >= END) and progress < END:
                left = max(0.0, 1 - (now - BEGIN) / (END - BEGIN)) ** 3
                part = density + (1 - density) * left
                sizes = [W.abs() for W in raw]
                masks = [s > threshold(sizes, round(part * total) - (part >= 1)) for s in sizes]
            for W, v, m in zip(raw, velocity, masks or (), strict=False):
                W.mul_(m)
                v.mul_(m)
    assert masks is not None
    assert sum(int(m.sum()) for m in masks) == round(density * total)
    with torch.no_grad():
        right = output(held_x, [W * m for W, m in zip(raw, masks, strict=True)], biases).argmax(1)
    return 100 * float((right == held_y).float().mean())


def main() -> None:
    """Print a line for each method."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--methods", default=METHODS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    fashion = load_dataset(
        "fashion-mnist", data_dir=given.data_dir, normalize=True, validation=10_000
    )
    assert isinstance(fashion.train, TensorSplit)
    assert isinstance(fashion.validation, TensorSplit)
    (x, y), (held_x, held_y) = fashion.train.tensors(), fashion.validation.tensors()
    data = x.flatten(1), y, held_x.flatten(1), held_y
    seeds = range(given.first_seed, given.first_seed + given.seeds)
    print(f"{'':16}" + "".join(f"{d:>24.1%}" for d in DENSITIES))
    for method in given.methods.split(","):
        found = [[trained(method, d, seed, data) for seed in seeds] for d in DENSITIES]
        cells = [f"{mean(f):.2f} ({min(f):.2f} to {max(f):.2f})" for f in found]
        print(f"{method:16}" + "".join(f"{cell:>24}" for cell in cells), flush=True)


if __name__ == "__main__":
    main()

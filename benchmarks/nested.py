"""What nested training costs: CPU time of a nested step against a plain one.

    python benchmarks/nested.py [--rounds 15] [--networks lenet-300-100,lenet-5,vgg-4,resnet-20]

One thread. Blocks of steps (forward, backward, fused optimizer; a ranking every hundred) take
turns, and the ratio is the median over pairs of neighbouring blocks. The linear network is the
worst case: it does the least arithmetic for each weight.
"""

from __future__ import annotations

import argparse
import statistics
import time
from contextlib import nullcontext
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import cross_entropy

from dessilbi import DessiLBI, split_parameters
from dessilbi.lab.models import make_model
from dessilbi.subnet import NestedTraining

if TYPE_CHECKING:
    from collections.abc import Callable

NETWORKS = {
    "lenet-300-100": (128, 1, 28, 200),
    "lenet-5": (128, 1, 28, 50),
    "vgg-4": (128, 3, 32, 10),
    "resnet-20": (128, 3, 32, 2),
}
"""Batch size, channels, pixels a side, and steps of a block."""


def blocks(network: str, *, nested: bool) -> Callable[[], float]:
    """A function that trains a block of steps and returns the CPU seconds of one of them."""
    images, channels, side, steps = NETWORKS[network]
    torch.manual_seed(0)
    model = make_model(network, num_classes=10, in_channels=channels, input_size=side)
    opt = DessiLBI(split_parameters(model), lr=0.01, nu=100, lambd=0.03, momentum=0.9, fused=True)
    x, y = torch.randn(images, channels, side, side), torch.randint(10, (images,))
    around = nullcontext()
    if nested:
        options = {"begin": 0.0, "descended": 0.0, "settled": 1.0, "refresh": 100}
        around = NestedTraining(model, opt, 10**9, **options)  # type: ignore[assignment,arg-type]

    def block() -> float:
        start = time.process_time()
        for _ in range(steps):
            opt.zero_grad()
            with around:
                cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
            opt.step()
        return (time.process_time() - start) / steps

    return block


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--networks", default=",".join(NETWORKS))
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, one thread, {args.rounds} rounds, fused optimizer, float32")
    print(f"{'':16}{'plain ms':>10}{'nested ms':>11}{'ratio':>8}{'quartiles':>16}")
    for network in args.networks.split(","):
        plain, nested = (blocks(network, nested=on) for on in (False, True))
        plain(), nested()
        times = []
        for turn in range(args.rounds):
            first, second = (plain, nested) if turn % 2 else (nested, plain)
            a, b = first(), second()
            times.append((a, b) if turn % 2 else (b, a))
        ratios = [n / p for p, n in times]
        low, middle, high = statistics.quantiles(ratios, n=4)
        p, n = (1e3 * statistics.median(column) for column in zip(*times, strict=True))
        print(f"{network:16}{p:10.2f}{n:11.2f}{middle:8.3f}{f'{low:.3f}-{high:.3f}':>16}")


if __name__ == "__main__":
    main()

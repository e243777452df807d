"""What the layout of the images is worth: forward and backward, channels last against first.

    python benchmarks/layout.py [--rounds 9] [--networks lenet-5,conv-2,...]

One thread, batch 128, CPU time; blocks of the two take turns, and the ratio is the median over
pairs of neighbouring blocks. The weights are the same tensors in both.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from dessilbi.lab.data.splits import Pixels
from dessilbi.lab.models import make_model

NETWORKS = {
    "lenet-5": (1, 28, 20),
    "conv-2": (1, 28, 2),
    "conv-4": (1, 28, 2),
    "vgg-4": (3, 32, 8),
    "resnet-20": (3, 32, 2),
    "vgg-16": (3, 32, 1),
    "resnet-56": (3, 32, 1),
}
"""Channels, pixels a side, steps of a block."""


def block(model: nn.Module, x: Tensor, y: Tensor, steps: int) -> float:
    """CPU seconds of a forward and backward pass."""
    start = time.process_time()
    for _ in range(steps):
        model.zero_grad()
        cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
    return (time.process_time() - start) / steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--networks", default=",".join(NETWORKS))
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, one thread, batch 128, {args.rounds} rounds, float32")
    print(f"{'':12}{'first ms':>10}{'last ms':>10}{'gain':>7}{'quartiles':>14}")
    for network in args.networks.split(","):
        channels, side, steps = NETWORKS[network]
        torch.manual_seed(0)
        model = make_model(network, num_classes=10, in_channels=channels, input_size=side)
        raw = torch.randint(256, (128, channels, side, side), dtype=torch.uint8)
        last, y = Pixels(255, torch.float32)(raw), torch.randint(10, (128,))
        first = last.clone(memory_format=torch.contiguous_format)
        block(model, first, y, 1), block(model, last, y, 1)
        times = [
            (block(model, first, y, steps), block(model, last, y, steps))
            for _ in range(args.rounds)
        ]
        low, middle, high = statistics.quantiles([a / b for a, b in times], n=4)
        a, b = (1e3 * statistics.median(column) for column in zip(*times, strict=True))
        print(f"{network:12}{a:10.1f}{b:10.1f}{middle:7.2f}{f'{low:.2f}-{high:.2f}':>14}")


if __name__ == "__main__":
    main()

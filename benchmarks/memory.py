"""What it is worth that a training process keeps the memory it frees.

    python benchmarks/memory.py [--rounds 5] [--networks lenet-5,vgg-4,...]

Whole steps of SGD, one thread, batch 128, CPU time. The setting holds for a process, so every
measurement is a process of its own; the two take turns, and the ratio is the median over pairs.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time

import torch
from torch.nn.functional import cross_entropy

from dessilbi.cli.memory import keep_freed_memory
from dessilbi.lab.data.splits import Pixels
from dessilbi.lab.models import make_model

NETWORKS = {
    "lenet-5": (1, 28, 60),
    "conv-2": (1, 28, 4),
    "vgg-4": (3, 32, 15),
    "resnet-8": (3, 32, 8),
    "resnet-20": (3, 32, 4),
}
"""Channels, pixels a side, steps."""


def measure(network: str, keep: bool) -> dict[str, float]:
    """Milliseconds and page faults of a step, and the largest memory of this process."""
    if keep:
        keep_freed_memory()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    channels, side, steps = NETWORKS[network]
    model = make_model(network, num_classes=10, in_channels=channels, input_size=side)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    raw = torch.randint(256, (128, channels, side, side), dtype=torch.uint8)
    x, y = Pixels(255, torch.float32)(raw), torch.randint(10, (128,))
    seconds: list[float] = []
    faults = 0
    for step in range(steps + 3):
        if step == 3:
            seconds, faults = [], resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        start = time.process_time()
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        seconds.append(time.process_time() - start)
    used = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "ms": 1e3 * statistics.median(seconds),
        "faults": (used.ru_minflt - faults) / steps,
        "megabytes": used.ru_maxrss / 1024,
    }


def in_a_process(network: str, keep: bool) -> dict[str, float]:
    """The same in a process of its own."""
    command = [sys.executable, __file__, "--measure", network, *(["--keep"] if keep else [])]
    found: dict[str, float] = json.loads(subprocess.check_output(command))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--measure", choices=NETWORKS, help=argparse.SUPPRESS)
    parser.add_argument("--keep", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        print(json.dumps(measure(args.measure, args.keep)))
        return
    print(f"torch {torch.__version__}, one thread, batch 128, {args.rounds} rounds")
    print(f"{'':12}{'ms':>16}{'page faults':>18}{'memory, MB':>14}   gain (range)")
    for network in args.networks.split(","):
        pairs = [
            (in_a_process(network, keep=False), in_a_process(network, keep=True))
            for _ in range(args.rounds)
        ]
        gains = [a["ms"] / b["ms"] for a, b in pairs]
        columns = []
        for key, digits in (("ms", 1), ("faults", 0), ("megabytes", 0)):
            a, b = (
                statistics.median(one[key] for one in side) for side in zip(*pairs, strict=True)
            )
            columns.append(f"{a:.{digits}f} > {b:.{digits}f}")
        print(
            f"{network:12}{columns[0]:>16}{columns[1]:>18}{columns[2]:>14}   "
            f"{statistics.median(gains):.2f} ({min(gains):.2f} to {max(gains):.2f})"
        )


if __name__ == "__main__":
    main()

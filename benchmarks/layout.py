"""What layout, precision and compiler are worth in a step.

    python benchmarks/layout.py [--rounds 9] [--networks lenet-5,conv-2,...]
    python benchmarks/layout.py --precision [--rounds 9] [--networks resnet-20,vgg-7,vgg-16]

One thread, batch 128, CPU time; blocks take turns, and a ratio is the median over rounds of the
ratio within a round. First: forward and backward, channels last against first, of the same weights.
Second: whole training steps with SGD, channels last, of four copies of a network, as `dessilbi
train` makes them with `--precision bf16`, with `--compile`, with both and with neither.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from dessilbi.cli.memory import keep_freed_memory
from dessilbi.lab.data.splits import Pixels
from dessilbi.lab.models import make_model
from dessilbi.lab.run.config import Config
from dessilbi.lab.training.precision import Precision

if TYPE_CHECKING:
    from collections.abc import Callable

NETWORKS = {
    "lenet-5": (1, 28, 20),
    "conv-2": (1, 28, 2),
    "conv-4": (1, 28, 2),
    "vgg-4": (3, 32, 8),
    "vgg-7": (3, 32, 2),
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


def layout(networks: list[str], rounds: int) -> None:
    print(f"{'':12}{'first ms':>10}{'last ms':>10}{'gain':>7}{'quartiles':>14}")
    for network in networks:
        model, last, y = task(network)
        first, steps = last.clone(memory_format=torch.contiguous_format), NETWORKS[network][2]
        block(model, first, y, 1), block(model, last, y, 1)
        times = [
            (block(model, first, y, steps), block(model, last, y, steps)) for _ in range(rounds)
        ]
        a, b = (1e3 * statistics.median(column) for column in zip(*times, strict=True))
        print(f"{network:12}{a:10.1f}{b:10.1f}{gain([x / z for x, z in times])}")


def precision(networks: list[str], rounds: int) -> None:
    keep_freed_memory()  # as the command does
    print(f"{'':12}{'':18}{'ms':>10}{'gain':>7}{'quartiles':>14}{'first step, s':>15}")
    for network in networks:
        model, x, y = task(network)
        ways = {
            "full": Config(),
            "bf16": Config(precision="bf16"),
            "compiled": Config(compile=True),
            "bf16, compiled": Config(precision="bf16", compile=True),
        }
        steps = {name: training_step(copy.deepcopy(model), x, y, c) for name, c in ways.items()}
        start = {name: first(step) for name, step in steps.items()}
        for step in steps.values():
            step()
        count = NETWORKS[network][2]
        times = [{n: seconds(step, count) for n, step in steps.items()} for _ in range(rounds)]
        for name in steps:
            middle = 1e3 * statistics.median(one[name] for one in times)
            found = gain([one["full"] / one[name] for one in times])
            print(f"{network:12}{name:18}{middle:10.1f}{found}{start[name]:15.1f}", flush=True)


def task(network: str) -> tuple[nn.Module, Tensor, Tensor]:
    """A network, images channels last, and labels."""
    channels, side, _ = NETWORKS[network]
    torch.manual_seed(0)
    model = make_model(network, num_classes=10, in_channels=channels, input_size=side)
    raw = torch.randint(256, (128, channels, side, side), dtype=torch.uint8)
    return model, Pixels(255, torch.float32)(raw), torch.randint(10, (128,))


def training_step(model: nn.Module, x: Tensor, y: Tensor, config: Config) -> Callable[[], None]:
    """A whole step of a network, as the lab makes it."""
    passes = Precision(config, x.device)
    net = torch.compile(model, dynamic=False) if config.compile else model
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, fused=True)

    def step() -> None:
        optimizer.zero_grad()
        with passes.autocast():
            torch.autograd.backward(cross_entropy(net(x), y))
        optimizer.step()

    return step


def seconds(step: Callable[[], None], count: int) -> float:
    """CPU seconds of a step."""
    start = time.process_time()
    for _ in range(count):
        step()
    return (time.process_time() - start) / count


def first(step: Callable[[], None]) -> float:
    """Seconds on the clock of the first step: the compiler works in processes of its own."""
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def gain(ratios: list[float]) -> str:
    """Median and quartiles."""
    low, middle, high = statistics.quantiles(ratios, n=4)
    return f"{middle:7.2f}{f'{low:.2f}-{high:.2f}':>14}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--precision", action="store_true")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--networks")
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, one thread, batch 128, {args.rounds} rounds")
    usual = ["resnet-20", "vgg-7", "vgg-16"] if args.precision else [*NETWORKS]
    networks = args.networks.split(",") if args.networks else usual
    (precision if args.precision else layout)(networks, args.rounds)


if __name__ == "__main__":
    main()

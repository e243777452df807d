"""What nested training costs: CPU time of its steps over that of a plain one, all by torch.

    python benchmarks/nested.py [--rounds 5] [--networks lenet-300-100,lenet-5,vgg-4,resnet-20]
                                [--batch 128]

LeNets by weight, the others by width. A step of one, two and three
budgets, once the smallest is reached; of two widths, and of the whole network with its branches;
and the mean over a whole training with the default schedule, with all that happens once in it.

One thread. Blocks of steps (forward, backward, optimizer) take turns, and a ratio is the median
over blocks that are neighbours.
"""

from __future__ import annotations

import argparse
import statistics
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import cross_entropy

from dessilbi import DessiLBI, NestedSchedule, NestedTraining, NestedWidths, split_parameters
from dessilbi.lab.models import make_model

if TYPE_CHECKING:
    from collections.abc import Callable

NETWORKS = {
    "lenet-300-100": (1, 28, 300, "fc3"),
    "lenet-5": (1, 28, 120, "fc.f7"),
    "vgg-4": (3, 32, 120, "classifier"),
    "resnet-20": (3, 32, 60, "fc"),
}
"""Channels, pixels a side, steps of a block, and the classifier."""
AT_ONCE: dict[str, Any] = {"ramp_start": 0.0, "ramp_end": 0.0, "freeze_ranking_at": 0.0}
NEVER_WHOLE = NestedSchedule(**AT_ONCE, full_fraction=0.0)
WIDTHS = NestedSchedule.for_widths(**AT_ONCE)
BY_WEIGHT: dict[str, dict[str, Any]] = {
    "one budget": {"schedule": NEVER_WHOLE, "budgets_per_step": 1},
    "two budgets": {"schedule": NEVER_WHOLE, "budgets_per_step": 2},
    "three budgets": {"schedule": NEVER_WHOLE, "budgets_per_step": 3},
    "a whole training": {},
}
BY_WIDTH: dict[str, dict[str, Any]] = {
    "two widths": {"schedule": WIDTHS, "branch_at": (1.0, 1.0), "small_fraction": 1.0},
    "with branches": {"schedule": WIDTHS, "branch_at": (0.0, 0.0)},
    "a whole training": {},
}


def blocks(network: str, images: int) -> dict[str, Callable[[], float]]:
    """By kind, a function that trains a block of steps: the CPU seconds of one of them."""
    channels, side, steps, classifier = NETWORKS[network]
    by_weight = network.startswith("lenet")  # as the recipes
    x = torch.randn(images, channels, side, side)
    if not by_weight:
        x = x.contiguous(memory_format=torch.channels_last)
    loss = partial(cross_entropy, target=torch.randint(10, (images,)))

    def block(kind: str) -> float:
        torch.manual_seed(0)
        model = make_model(network, num_classes=10, in_channels=channels, input_size=side)
        penalty = "lasso" if by_weight else "group_lasso"
        groups = split_parameters(model, {"*": {"penalty": penalty}}, exclude=(classifier,))
        opt = DessiLBI(groups, lr=0.01, nu=100, lambd=0.3, momentum=0.9, fused=True)
        nested: NestedTraining | NestedWidths | None = None
        if by_weight and kind in BY_WEIGHT:
            nested = NestedTraining(model, opt, steps, **BY_WEIGHT[kind])
        elif kind in BY_WIDTH:
            nested = NestedWidths(model, opt, steps, x, **BY_WIDTH[kind])
        start = time.process_time()
        for _ in range(steps):
            opt.zero_grad()
            if nested is not None:
                nested.backward(x, loss)
            else:
                torch.autograd.backward(loss(model(x)))
            opt.step()
        return (time.process_time() - start) / steps

    kinds = ["plain", *(BY_WEIGHT if by_weight else BY_WIDTH)]
    return {kind: partial(block, kind) for kind in kinds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--batch", type=int, default=128)
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(
        f"torch {torch.__version__}, one thread, batches of {args.batch}, {args.rounds} rounds, "
        "fused optimizer, float32"
    )
    print(f"{'':16}{'':18}{'ms':>8}{'of plain':>10}{'range':>16}")
    for network in args.networks.split(","):
        runs = blocks(network, args.batch)
        times: list[dict[str, float]] = []
        for turn in range(args.rounds):
            order = list(runs)[:: -1 if turn % 2 else 1]
            times.append({kind: runs[kind]() for kind in order})
        for kind in runs:
            ratios = [taken[kind] / taken["plain"] for taken in times]
            ms = 1e3 * statistics.median(taken[kind] for taken in times)
            spread = f"{min(ratios):.2f}-{max(ratios):.2f}"
            print(f"{network:16}{kind:18}{ms:8.2f}{statistics.median(ratios):10.2f}{spread:>16}")


if __name__ == "__main__":
    main()

"""What nested training costs: CPU time of a nested step against a plain one.

    python benchmarks/nested.py [--rounds 7] [--networks lenet-300-100,lenet-5,vgg-4,resnet-20]
                                [--batch 128] [--full 0.05] [--tilt 1]

Nested by weight (LeNets) or by filter that is masked, and by width: two and more networks a step. A
block is a whole short training, with all of its stages and with what happens once: the network is
read, and the system gives memory to its passes, as much time as ten steps of resnet-20 take.

One thread. Blocks of steps (forward, backward, fused optimizer) take turns, and the ratio is the
median over pairs of neighbouring blocks. The linear network is the worst case: it does the least
arithmetic for each weight.
"""

from __future__ import annotations

import argparse
import statistics
import time
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import cross_entropy

from dessilbi import DessiLBI, NestedSchedule, NestedTraining, NestedWidths, split_parameters
from dessilbi.cli.memory import keep_freed_memory
from dessilbi.lab.models import make_model

if TYPE_CHECKING:
    from collections.abc import Callable

NETWORKS = {
    "lenet-300-100": (1, 28, 1200, "fc3"),
    "lenet-5": (1, 28, 240, "fc.f7"),
    "vgg-4": (3, 32, 240, "classifier"),
    "resnet-20": (3, 32, 240, "fc"),
}
"""Channels, pixels a side, steps of a block, and the classifier."""
KINDS = ("plain", "nested", "widths")


def blocks(network: str, kind: str, images: int, full: float, tilt: float) -> Callable[[], float]:
    """A function that trains a block of steps and returns the CPU seconds of one of them."""
    channels, side, steps, classifier = NETWORKS[network]
    torch.manual_seed(0)
    model = make_model(network, num_classes=10, in_channels=channels, input_size=side)
    by_weight = kind == "nested" and network.startswith("lenet")  # as the recipes
    penalty = "lasso" if by_weight else "group_lasso"
    groups = split_parameters(model, {"*": {"penalty": penalty}}, exclude=(classifier,))
    opt = DessiLBI(groups, lr=0.01, nu=100, lambd=0.3, momentum=0.9, fused=True)
    x = torch.randn(images, channels, side, side).contiguous(memory_format=torch.channels_last)
    loss = partial(cross_entropy, target=torch.randint(10, (images,)))

    def block() -> float:
        now: NestedTraining | NestedWidths | None = None
        if kind == "nested":
            highest = 0.3 if by_weight else 1.0
            now = NestedTraining(
                model,
                opt,
                steps,
                schedule=NestedSchedule(max_density=highest, full_fraction=full, draw_power=tilt),
            )
        elif kind == "widths":
            now = NestedWidths(model, opt, steps, x)
        start = time.process_time()
        for _ in range(steps):
            opt.zero_grad()
            if now is not None:
                now.backward(x, loss)
            else:
                torch.autograd.backward(loss(model(x)))
            opt.step()
        taken = time.process_time() - start
        if now is not None:
            now.close()
        return taken / steps

    return block


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--full", type=float, default=0.05, help="of nested, not of widths")
    parser.add_argument("--tilt", type=float, default=1.0, help="of nested, not of widths")
    args = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()  # as training does
    print(
        f"torch {torch.__version__}, one thread, batches of {args.batch}, {args.rounds} rounds, "
        "fused optimizer, float32"
    )
    print(f"{'':16}{'':8}{'ms':>8}{'of plain':>10}{'quartiles':>16}")
    for network in args.networks.split(","):
        runs = [blocks(network, kind, args.batch, args.full, args.tilt) for kind in KINDS]
        for run in runs:
            run()
        times = []
        for turn in range(args.rounds):
            order = list(range(len(runs)))[:: -1 if turn % 2 else 1]
            taken = {which: runs[which]() for which in order}
            times.append([taken[which] for which in range(len(runs))])
        for which, kind in enumerate(KINDS):
            low, middle, high = statistics.quantiles([t[which] / t[0] for t in times], n=4)
            ms = 1e3 * statistics.median(t[which] for t in times)
            print(f"{network:16}{kind:8}{ms:8.2f}{middle:10.3f}{f'{low:.3f}-{high:.3f}':>16}")


if __name__ == "__main__":
    main()

"""One setting of tau and c on five networks: how much ends in Gamma, and what it is worth.

    python benchmarks/knobs.py --data-dir DIR [--seeds 3] [--runs DIR] [--networks digits-net,...]
                               [--tau 10] [--c 1]

Nothing but tau and c is said of the twin, and nothing is tuned: each network has the data, schedule
and rate of its recipe. "support" is the network with everything off the support of Gamma at zero,
without retraining, BatchNorm statistics measured anew.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from dessilbi.lab.run.config import Config, DataConfig, ModelConfig, OptimizerConfig, ScheduleConfig
from dessilbi.lab.run.files import PATH
from dessilbi.lab.run.options import RunOptions
from dessilbi.lab.run.recipes import char_gpt, digits, lenet_5_mnist, lenet_300_100_mnist_short
from dessilbi.lab.training.loop import train
from dessilbi.path import SolutionPath
from dessilbi.path.layers import tied_sets

if TYPE_CHECKING:
    from dessilbi.lab.run.directory import RunDir

RESNET_20 = Config(
    data=DataConfig(name="cifar10"),
    model=ModelConfig(name="resnet-20"),
    optimizer=OptimizerConfig(momentum=0.9, weight_decay=1e-4),
    schedule=ScheduleConfig(kind="cosine"),
    epochs=10,
    precision="bf16",
)
NETWORKS = {
    "digits-net": digits(),
    "lenet-300-100": lenet_300_100_mnist_short(),
    "lenet-5": lenet_5_mnist(),
    "resnet-20": RESNET_20,
    "char-gpt": char_gpt(),
}


def configured(network: str, tau: float, c: float, seed: int) -> Config:
    """The training of a network with these two numbers."""
    base = NETWORKS[network]
    options = replace(base.optimizer, nu=None, lambd=None, tau=tau, c=c)
    return replace(base, name=f"knobs-{network}", optimizer=options, seed=seed)


def in_gamma(run: RunDir) -> tuple[int, int]:
    """Groups in Gamma at the end, and all groups; tied ones count once."""
    path = SolutionPath.load(run.path / PATH)
    support = path.support(path.epochs[-1])
    first = [tied[0] for tied in tied_sets(path.layers)]
    inside = sum(int(layer.groups_in(support[layer.name]).sum()) for layer in first)
    return inside, sum(layer.groups for layer in first)


def main() -> None:
    """Train what is missing, print a line for each run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--tau", type=float, default=10.0)
    parser.add_argument("--c", type=float, default=1.0)
    given = parser.parse_args()
    torch.set_num_threads(1)
    options = RunOptions(runs=given.runs, data_dir=given.data_dir)
    print(f"tau {given.tau:g}, c {given.c:g}")
    for network in given.networks.split(","):
        for seed in range(given.seeds):
            run = train(configured(network, given.tau, given.c, seed), options)
            inside, groups = in_gamma(run)
            last = run.records()[-1]
            if "sparse_loss" in last and network == "char-gpt":
                whole, support, digits_after = last["loss"], last["sparse_loss"], 3
            else:
                whole, support, digits_after = last["accuracy"], last["recalibrated_accuracy"], 2
            print(
                f"{network:14} seed {seed}  in Gamma {inside / groups:6.1%} of {groups:,} groups, "
                f"{last['density']:6.1%} of the weights  whole {whole:.{digits_after}f}  "
                f"support {support:.{digits_after}f}",
                flush=True,
            )


if __name__ == "__main__":
    main()

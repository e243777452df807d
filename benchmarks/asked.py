"""Budgets that were asked for and what came out, counted in the compact network.

    python benchmarks/asked.py --data-dir DIR [--runs DIR] [--networks digits-net,...]

One training for each network and density (seed 0). The weights are those that may leave: of the
convolutions of the digits net and of ResNet-20 (a residual stream's filters leave together), all of
LeNet-300-100, weight by weight. What is left is counted in the network that ``compact`` makes, and
"one group" is what the cheapest group that could have come on top takes there.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import torch

from dessilbi import Mask, compact
from dessilbi.lab.analysis.networks import trained_network
from dessilbi.lab.run.config import Config, DataConfig, ModelConfig, OptimizerConfig, ScheduleConfig
from dessilbi.lab.run.methods import GradualPruning
from dessilbi.lab.run.options import RunOptions
from dessilbi.lab.run.recipes import digits, lenet_300_100_fashion_nested
from dessilbi.lab.training.build import example_inputs, input_shape
from dessilbi.lab.training.loop import train
from dessilbi.lab.training.optimizers import twin_groups
from dessilbi.path.layers import tied_sets
from dessilbi.path.twins import ranked_weights
from dessilbi.subnet.compact_size import CompactSize

DENSITIES = (0.5, 0.2, 0.1, 0.05, 0.02)
SGD = OptimizerConfig(name="sgd", momentum=0.9, weight_decay=5e-4)
NETWORKS = {
    "digits-net": (digits(), GradualPruning(exclude=("fc",))),
    "lenet-300-100": (lenet_300_100_fashion_nested(), GradualPruning()),
    "resnet-20": (
        Config(
            data=DataConfig(name="cifar10", images=5000, test_images=2000),
            model=ModelConfig(name="resnet-20"),
            schedule=ScheduleConfig(kind="cosine"),
            epochs=5,
        ),
        GradualPruning(exclude=("fc",), tied=True, every=10),
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--networks", default=",".join(NETWORKS))
    given = parser.parse_args()
    torch.set_num_threads(1)
    for name in given.networks.split(","):
        config, method = NETWORKS[name]
        for density in DENSITIES:
            pruned = replace(method, density=density)
            one = replace(config, name=f"asked-{name}", optimizer=SGD, method=pruned)
            run = train(one, RunOptions(runs=given.runs, data_dir=given.data_dir))
            model = trained_network(run)
            x = example_inputs(input_shape(one), torch.float32, 2)
            prunable = OptimizerConfig(exclude=method.exclude, tied=method.tied)
            groups = twin_groups(model, prunable, input_shape(one))
            params, layers = ranked_weights(model, torch.optim.SGD(groups), groups)
            kept = [layer.groups_in(params[layer.name] != 0) for layer in layers]
            size = CompactSize(model, layers, x)
            left = int(size(kept))
            numbers = {layer.name: i for i, layer in enumerate(layers)}
            more = []
            for tied in tied_sets(layers):
                members = [numbers[layer.name] for layer in tied]
                off = (~kept[members[0]]).nonzero()[:1]
                if len(off):
                    grown = [k.clone() for k in kept]
                    for i in members:
                        grown[i][off] = True
                    more.append(int(size(grown)) - left)
            nonzero = {n: p != 0 for n, p in model.named_parameters()}
            small = compact(model.eval(), Mask(nonzero), x, latency=False).model
            stored = sum(
                int(p.count_nonzero()) if layers[numbers[n]].group_dim is None else p.numel()
                for n, p in small.named_parameters()
                if n in numbers
            )
            whole = int(size.total)
            print(
                f"{name:14} asked {density:5.0%} = {int(density * whole + 1e-6):7,} of {whole:,}  "
                f"left {left:7,} ({left / whole:.3%})  in the compact network {stored:7,}  "
                f"one group {min(more):5,} more  {run.records()[-1]['accuracy']:.2f} %",
                flush=True,
            )


if __name__ == "__main__":
    main()

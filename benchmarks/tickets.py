"""Tickets from the path against magnitude and random ones, and one-shot pruning against SGD's.

    python benchmarks/tickets.py [--data-dir DIR] [--seeds 3] [--first-seed 10] [--runs DIR]

Fashion-MNIST, LeNet-300-100, 12 epochs (learning rate 0.1, dropped at 4 and 8), batch 128, momentum
0.9, weight decay 1e-4, judged on the test set. A ticket is a mask that is
retrained from the initialisation with SGD, all at the density that Gamma has after epoch 2:

- path: the support of Gamma after epoch 2 of DessiLBI;
- magnitude: the largest weights of SGD after all 12 epochs;
- random: drawn at random, layer by layer at the densities of the path's ticket;
- random-everywhere: drawn at random from all weights alike.

One-shot masks, without retraining, at 3 %: DessiLBI by the path's default order, SGD by magnitude.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from dessilbi import Mask, project
from dessilbi.lab.analysis.subnetworks import open_path
from dessilbi.lab.data import load_dataset
from dessilbi.lab.models import make_model
from dessilbi.lab.run.checkpoint import load_model
from dessilbi.lab.run.config import (
    Config,
    DataConfig,
    ModelConfig,
    OptimizerConfig,
    ScheduleConfig,
    StartConfig,
)
from dessilbi.lab.run.files import LAST
from dessilbi.lab.run.options import RunOptions
from dessilbi.lab.training.evaluate import evaluate
from dessilbi.lab.training.loop import train
from dessilbi.lab.training.start import write_start
from dessilbi.paper.optimizers import COMPETITORS

if TYPE_CHECKING:
    from torch import nn

    from dessilbi.lab.run.directory import RunDir

TICKET_EPOCH, ONE_SHOT = 2, 0.03
SGD = COMPETITORS["sgd-mom-wd"]


def config(name: str, optimizer: OptimizerConfig, seed: int) -> Config:
    return Config(
        name=name,
        data=DataConfig(name="fashion-mnist", normalize=True),
        model=ModelConfig(name="lenet-300-100"),
        optimizer=optimizer,
        schedule=ScheduleConfig(kind="multistep", milestones=(4, 8)),
        epochs=12,
        seed=seed,
    )


def trained(run: RunDir) -> nn.Module:
    model = make_model("lenet-300-100", num_classes=10, in_channels=1, input_size=28)
    last = run.load(LAST)
    assert last is not None
    load_model(model, last.part("model"))
    return model


def accuracy(run: RunDir) -> float:
    return float(run.records()[-1]["accuracy"])


def one_seed(seed: int, place: RunOptions) -> dict[str, float]:
    """Every figure for one seed."""
    twin = OptimizerConfig(momentum=0.9, weight_decay=1e-4, nu=10.0, lambd=0.3)
    dessilbi = train(config("dessilbi", twin, seed), place)
    sgd = train(config("sgd", SGD, seed), place)
    path, final = open_path(dessilbi), trained(sgd)
    ticket = path.mask(epoch=TICKET_EPOCH)
    masks = {
        "path": ticket,
        "magnitude": Mask.magnitude(final, ticket.density, names=ticket.names),
        "random": Mask.random(
            ticket,
            layer_densities=ticket.layer_densities(),
            generator=torch.Generator().manual_seed(seed),
        ),
        "random-everywhere": Mask.random(
            ticket, ticket.density, generator=torch.Generator().manual_seed(seed)
        ),
    }
    found = {
        "density of the tickets": 100 * ticket.density,
        "DessiLBI, dense": accuracy(dessilbi),
        "SGD, dense": accuracy(sgd),
    }
    init = dessilbi.read_tensors("init.safetensors")
    for name, mask in masks.items():
        start = StartConfig(parent=dessilbi.path.name, mask=name, weights="init")
        ready = write_start(config(f"ticket-{name}", SGD, seed), start, init, mask, place.runs)
        found[f"ticket, {name}"] = accuracy(train(ready, place))
    test = load_dataset("fashion-mnist", data_dir=place.data_dir, normalize=True).test
    with project(trained(dessilbi), path.mask(density=ONE_SHOT)) as model:
        found["one-shot, DessiLBI"] = evaluate(model, test).accuracy
    with project(final, Mask.magnitude(final, ONE_SHOT, names=ticket.names)) as model:
        found["one-shot, SGD"] = evaluate(model, test).accuracy
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    # 10 to 12 were written down here before any of them had been run.
    parser.add_argument("--first-seed", type=int, default=10)
    parser.add_argument("--runs", type=Path, default=Path("runs/tickets"))
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    place = RunOptions(runs=args.runs, data_dir=args.data_dir)
    last = args.first_seed + args.seeds - 1
    seeds = [one_seed(seed, place) for seed in range(args.first_seed, last + 1)]
    span = f"seeds {args.first_seed} to {last}"
    print(f"{'':26}{'mean':>8}{'lowest':>9}{'highest':>9}   ({span}, %)")
    for name in seeds[0]:
        values = [found[name] for found in seeds]
        print(f"{name:26}{statistics.mean(values):8.2f}{min(values):9.2f}{max(values):9.2f}")
    if args.json:
        args.json.write_text(json.dumps(seeds, indent=1))


if __name__ == "__main__":
    main()

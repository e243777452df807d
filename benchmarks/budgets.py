"""One nested run against a run for every budget: accuracy against density.

    python benchmarks/budgets.py TASK [--data-dir DIR] [--seeds 3] [--first-seed 0] [--runs DIR]
                                 [--methods nested,gradual,half,sgd] [--judge-on validation]
                                 [--picture FILE] [--axes density parameters macs nonzeros]

TASK is one of the keys of TASKS. All methods share data, network, initialisation, schedule, epochs
and batch size:

- nested: DessiLBI with --nested, ONE run for the whole curve;
- nested-long: the same for twice the epochs;
- gradual: SGD with gradual magnitude pruning (cubic, epochs 1 to 8 of 12), a run for every point;
- gradual-decayed: the same with five times the weight decay, its best on held-out images;
- gamma: DessiLBI with default tau and c and five times the weight decay, pruned by Gamma: its
  support grows to the budget until half time, and is then trained on; a run for every point;
- half: SGD, pruned by magnitude at half time and fine-tuned, a run for every point;
- sgd: SGD, the dense network, for the point at 100 %;
- plain, freeze, dense-classifier, own-classifier, init-scaled: ways to a sparser twin without
  nested training (task fashion): DessiLBI with nu 10, lambd 0.3; its support frozen after a third
  of the epochs; the classifier without a twin; the classifier at a tenth of the threshold;
  thresholds 5 x the initial size of a layer's weights.

Every finished run is kept in a run directory and found again, so the script can be stopped and
started, and several of them can work on different methods or seeds at the same time.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from dessilbi.lab.analysis.frontier import curves, frontier
from dessilbi.lab.analysis.frontier_picture import draw
from dessilbi.lab.run.config import Config, OptimizerConfig
from dessilbi.lab.run.methods import Dense, FrozenSupport, GradualPruning
from dessilbi.lab.run.options import RunOptions
from dessilbi.lab.run.recipes import (
    lenet_5_mnist_nested,
    lenet_300_100_fashion_nested,
    lenet_300_100_fashion_nested_drops,
    vgg_4_cifar10_nested,
)
from dessilbi.lab.training.loop import train
from dessilbi.paper.optimizers import COMPETITORS

SGD = COMPETITORS["sgd-mom-wd"]
WEIGHTS = (0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2)
FILTERS = (0.125, 0.25, 0.5)


def with_held_out(recipe: Config, validation: int, images: int | None = None) -> Config:
    """A recipe that leaves some training images to choose settings by."""
    return replace(recipe, data=replace(recipe.data, validation=validation, images=images))


FASHION = with_held_out(lenet_300_100_fashion_nested_drops(), validation=10_000)
FASHION_COSINE = with_held_out(lenet_300_100_fashion_nested(), validation=10_000)
MNIST = with_held_out(lenet_5_mnist_nested(), validation=10_000)
CIFAR = with_held_out(vgg_4_cifar10_nested(), validation=5_000, images=10_000)
NEURONS = replace(
    FASHION_COSINE,
    optimizer=replace(CIFAR.optimizer, lr=0.1, nu=300.0, penalty="group_lasso", exclude=("fc3",)),
    method=CIFAR.method,
)
TASKS: dict[str, tuple[Config, tuple[float, ...]]] = {
    "fashion": (FASHION, WEIGHTS),
    "fashion-cosine": (FASHION_COSINE, WEIGHTS),
    "mnist": (MNIST, WEIGHTS),
    "cifar": (CIFAR, FILTERS),
    "neurons": (NEURONS, FILTERS),
}
NAMES = {
    "nested": "nested training (dessilbi)",
    "nested-long": "nested training (dessilbi), twice the epochs",
    "gradual": "gradual magnitude pruning",
    "gradual-decayed": "gradual pruning, weight decay 5e-4",
    "gamma": "the support of Gamma, grown to the budget",
    "half": "prune at half time, fine-tune",
    "sgd": "SGD, nothing pruned",
}
"""In a picture; other methods have their own."""
PLAIN = OptimizerConfig(momentum=0.9, weight_decay=1e-4, nu=10.0, lambd=0.3)


def one_run(method: str, base: Config) -> Config:
    """A method whose single run gives the whole curve."""
    if method == "nested":
        return base
    if method == "nested-long":
        return replace(base, epochs=2 * base.epochs)
    lr = base.optimizer.lr
    base = replace(base, method=Dense(), optimizer=PLAIN)
    if method == "freeze":
        return replace(base, method=FrozenSupport(epoch=base.epochs // 3))
    changed = {
        "plain": PLAIN,
        "dense-classifier": replace(PLAIN, exclude=("fc3",)),
        "own-classifier": replace(PLAIN, classifier_lambd=0.03),
        "init-scaled": replace(PLAIN, lambd=None, c=5.0),
        "sgd": replace(SGD, lr=lr),
    }
    return replace(base, optimizer=changed[method])


def configs(task: str, method: str, seed: int, densities: tuple[float, ...]) -> list[Config]:
    """The runs of a method, its curve."""
    base, widths = TASKS[task][0], TASKS[task][1] is FILTERS
    named = replace(base, name=f"{task}-{method}", seed=seed)
    if method not in ("gradual", "gradual-decayed", "gamma", "half"):
        return [one_run(method, named)]
    prune = GradualPruning(penalty=base.optimizer.penalty, exclude=base.optimizer.exclude)
    if method == "half":
        prune = replace(prune, begin=0.5, end=0.5)
    optimizer = replace(SGD, lr=base.optimizer.lr)
    if method == "gamma":
        own = base.optimizer
        optimizer = OptimizerConfig(
            lr=own.lr, momentum=0.9, penalty=own.penalty, exclude=own.exclude
        )
        prune = GradualPruning(by="gamma", end=0.5)
    if method in ("gradual-decayed", "gamma"):
        optimizer = replace(optimizer, weight_decay=5e-4)
    budget = "groups" if widths else "density"  # widths are those of nested training
    budgets: list[dict[str, Any]] = [{budget: value} for value in densities]
    pruned = replace(named, optimizer=optimizer)
    return [replace(pruned, method=replace(prune, **one)) for one in budgets]


def named_in_picture(run: str, task: str) -> str:
    """What a reader calls the method of a run."""
    method = run.removeprefix(f"{task}-")
    return NAMES.get(method, method)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--methods", default="nested,gradual,half,sgd")
    parser.add_argument("--judge-on", choices=("test", "validation"), default="test")
    parser.add_argument("--densities", nargs="+", type=float, help="by default the task's own")
    parser.add_argument("--runs", type=Path, default=Path("runs/budgets"))
    parser.add_argument("--picture", type=Path)
    axes = ("density", "parameters", "macs")
    more = ("nonzeros", "nonzero_macs")
    parser.add_argument(
        "--axes", nargs="+", choices=axes + more, default=axes, help="of the picture"
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    place = RunOptions(runs=args.runs, data_dir=args.data_dir)
    densities = tuple(args.densities or TASKS[args.task][1])
    found = []
    for seed in range(args.first_seed, args.first_seed + args.seeds):
        for method in args.methods.split(","):
            for config in configs(args.task, method, seed, densities):
                run = train(config, place)
                found.append((run, *frontier(run, place, (*densities, 1.0), args.judge_on)))
    drawn = curves(found)
    print(f"accuracy in % on the {args.judge_on} images, mean (lowest to highest) over seeds")
    for curve in drawn:
        print(f"\n{curve.name}: {curve.runs} run(s) of {curve.epochs // curve.runs} epochs a seed")
        for k, at in enumerate(curve.points):
            middle, low, high = curve.spread(k)
            density = sum(p.density for p in at) / len(at)
            print(f"  {density:7.2%}  {middle:6.2f}  ({low:.2f} to {high:.2f})")
    if args.picture:
        model, data = found[0][0].config().model.name, found[0][0].config().data.name
        named = [replace(curve, name=named_in_picture(curve.name, args.task)) for curve in drawn]
        draw(named, args.picture, f"{model} on {data}", args.axes)


if __name__ == "__main__":
    main()

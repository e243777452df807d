"""Which order of the path gives the best subnetwork without retraining?

    python benchmarks/orders.py [--data-dir DIR] [--seeds 3] [--runs runs/orders] [--json out.json]

Trains DessiLBI once a seed, on 50,000 images of Fashion-MNIST (LeNet-300-100, weight by weight) and
on 20,000 (a small BatchNorm conv net, filter by filter), and scores every order and scale of
``path.mask(density=...)`` on images held out of the training set, one-shot, BatchNorm recalibrated.
The test set is not looked at.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import torch
from torch import nn

from dessilbi import project
from dessilbi.lab.analysis.subnetworks import open_path
from dessilbi.lab.data import load_dataset
from dessilbi.lab.models import make_model
from dessilbi.lab.run.checkpoint import load_model
from dessilbi.lab.run.config import Config, DataConfig, ModelConfig, OptimizerConfig, ScheduleConfig
from dessilbi.lab.run.files import LAST
from dessilbi.lab.run.options import RunOptions
from dessilbi.lab.training.evaluate import evaluate, evaluate_recalibrated
from dessilbi.lab.training.loop import train
from dessilbi.path import ORDERS
from dessilbi.path.orders import Scale

if TYPE_CHECKING:
    from dessilbi.lab.run.directory import RunDir

DENSITIES = {
    "lenet-300-100": (0.005, 0.01, 0.02, 0.03, 0.05, 0.1),
    "conv-net": (0.2, 0.3, 0.5, 0.7),
}

JUDGED = {"lenet-300-100": 10_000, "orders:conv_net": 1_500}
"""Held-out images that are looked at."""


def conv_net(num_classes: int, in_channels: int) -> nn.Module:
    """Four convolutions with BatchNorm, 16-32-64-64 filters."""
    layers: list[nn.Module] = []
    channels = in_channels
    for width, pool in ((16, True), (32, True), (64, False), (64, True)):
        layers += [nn.Conv2d(channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)]
        layers += [nn.ReLU(), nn.MaxPool2d(2)] if pool else [nn.ReLU()]
        channels = width
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 9, num_classes))


def configs(seed: int) -> dict[str, Config]:
    """One run of each network."""
    drops = ScheduleConfig(kind="multistep", milestones=(4, 8))
    return {
        "lenet-300-100": Config(
            name="orders-lenet",
            data=DataConfig(name="fashion-mnist", validation=10_000, normalize=True),
            model=ModelConfig(name="lenet-300-100"),
            optimizer=OptimizerConfig(momentum=0.9, weight_decay=1e-4, nu=10.0, lambd=0.3),
            schedule=drops,
            epochs=12,
            seed=seed,
        ),
        "conv-net": Config(
            name="orders-conv",
            data=DataConfig(name="fashion-mnist", validation=40_000, normalize=True),
            model=ModelConfig(name="orders:conv_net", init="he"),
            optimizer=OptimizerConfig(
                momentum=0.9, weight_decay=1e-4, nu=20.0, c=1.5, exclude=("16",)
            ),
            schedule=ScheduleConfig(kind="multistep", milestones=(5, 7)),
            epochs=8,
            seed=seed,
        ),
    }


def score(
    run: RunDir, densities: tuple[float, ...], data_dir: Path | None
) -> dict[str, list[float]]:
    """Accuracy on held-out images by order and scale, at each density."""
    config = run.config()
    data = load_dataset(
        config.data.name,
        data_dir=data_dir,
        validation=config.data.validation,
        normalize=config.data.normalize,
    )
    assert data.validation is not None
    judged = data.validation.take(torch.arange(JUDGED[config.model.name]))
    few = data.train.take(torch.arange(500))  # enough to recalibrate so small a net
    model = make_model(config.model.name, num_classes=10, in_channels=1, input_size=28)
    last = run.load(LAST)
    assert last is not None
    load_model(model, last.part("model"))
    path = open_path(run)
    rows = {"dense": [evaluate(model, judged).accuracy] * len(densities)}
    for order in sorted(set(ORDERS) - {"nested"}):  # which needs a nested run
        for scale in get_args(Scale):
            accuracies = []
            for density in densities:
                with project(model, path.mask(density=density, order=order, scale=scale)):
                    accuracies.append(evaluate_recalibrated(model, judged, few).accuracy)
            rows[f"{order}, {scale}"] = accuracies
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--runs", type=Path, default=Path("runs/orders"))
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    sys.path.insert(0, str(Path(__file__).parent))  # the conv net is named by its import path
    results: dict[str, dict[str, list[list[float]]]] = {name: {} for name in DENSITIES}
    for seed in range(args.seeds):
        for name, config in configs(seed).items():
            run = train(config, RunOptions(runs=args.runs, data_dir=args.data_dir))
            for row, values in score(run, DENSITIES[name], args.data_dir).items():
                results[name].setdefault(row, []).append(values)
    for name, rows in results.items():
        print(f"\n{name}: held-out accuracy, mean over {args.seeds} seeds (largest deviation)")
        print(
            f"{'order, scale':28}" + "".join(f"{d:>14.1%}" for d in DENSITIES[name]) + "     mean"
        )
        means = {row: [statistics.mean(c) for c in zip(*v, strict=True)] for row, v in rows.items()}
        for row in sorted(means, key=lambda r: -statistics.mean(means[r])):
            cells = "".join(
                f"{mean:8.1f} ({max(abs(x - mean) for x in column):3.1f})"
                for mean, column in zip(means[row], zip(*rows[row], strict=True), strict=True)
            )
            print(f"{row:28}{cells}{statistics.mean(means[row]):9.2f}")
    if args.json:
        args.json.write_text(json.dumps(results))


if __name__ == "__main__":
    main()

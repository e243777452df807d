"""Small run directories for the tests of the report, and a browser to open its pages in."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import nn

from dessilbi.lab.analysis.choice import Choice, Retrain
from dessilbi.lab.analysis.subnetworks import prepare
from dessilbi.lab.run.config import Config, ModelConfig, OptimizerConfig
from dessilbi.lab.run.files import Frontier, FrontierPoint
from dessilbi.lab.run.options import RunOptions
from dessilbi.lab.training.loop import train

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from dessilbi.lab.run.directory import RunDir

CONV = Config(
    name="conv",
    model=ModelConfig(name="digits-net"),
    optimizer=OptimizerConfig(lr=0.1, momentum=0.9, weight_decay=1e-4, nu=5.0, c=1.0),
    epochs=4,
    batch_size=128,
    keep=(0, 2),
)
"""Filters and single weights, some of which enter; a second of training."""


def conv_run(runs: Path, **changes: Any) -> RunDir:
    return train(replace(CONV, **changes), RunOptions(runs=runs))


def sgd_run(runs: Path) -> RunDir:
    sgd = OptimizerConfig(name="sgd", lr=0.1, momentum=0.9)
    return train(replace(CONV, name="sgd", optimizer=sgd, keep=()), RunOptions(runs=runs))


class ResidualNet(nn.Module):
    """The filters of ``stem`` and ``write`` are the same channels, those of ``read`` are not."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 8, 3, padding=1)
        self.read = nn.Conv2d(8, 8, 3, padding=1)
        self.write = nn.Conv2d(8, 8, 3, padding=1)
        self.fc = nn.Linear(8, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).relu()
        x = x + self.write(self.read(x).relu())
        logits: Tensor = self.fc(x.mean((2, 3)))
        return logits


def tied_run(runs: Path, **thresholds: float) -> RunDir:
    """Filters of two layers enter together, at the norm of both."""
    config = replace(
        CONV, name="tied", model=ModelConfig(name="report_runs:ResidualNet"),
        optimizer=OptimizerConfig(lr=0.1, momentum=0.9, nu=2.0, tied=True, **thresholds),
        epochs=2, keep=(1,),
    )  # fmt: skip
    return train(config, RunOptions(runs=runs))


def subnet_run(parent: RunDir, how: str | None, **changes: Any) -> RunDir:
    """What `dessilbi subnet --density 0.3` makes."""
    runs = parent.path.parent / "subnets"
    config = prepare(parent, Choice(density=0.3), Retrain.parse(how), runs, **changes)
    return train(config, RunOptions(runs=runs))


def add_budgets(run: RunDir) -> None:
    """What `dessilbi frontier` and `dessilbi compact` would leave."""
    points = tuple(
        FrontierPoint(d, d, int(9872 * d), 3e5 * d, int(9872 * d), 3e5 * d, a)
        for d, a in ((0.05, 30.0), (0.2, 90.0), (1.0, 95.0))
    )
    Frontier(4, "test", points).write(run)
    size = {"parameters": 2000, "macs": 6e4, "bytes": 8000}
    whole = {"parameters": 9978, "macs": 3e5, "bytes": 40000}
    times = {"batch": 1, "dense": {"median": 0.2}, "compact": {"median": 0.1}}
    report = {
        "chosen": "density 0.2 by magnitude, 20.00% of the weights",
        "density": 0.2, "accuracy": 88.0, "judged_on": "test", "recalibrated": False,
        "dense": whole, "compact": size, "latency": [times], "largest_difference": 1e-7,
    }  # fmt: skip
    run.write("compact-0.2/report.json", json.dumps(report).encode())


def find_browser() -> str | None:
    """The Chromium of the system; `make test` installs Debian's where it may."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    return next((found for name in names if (found := shutil.which(name))), None)

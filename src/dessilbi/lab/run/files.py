"""File names and records of a run directory: what lies in it, written and read by these names only.

config.json            the configuration; its hash is in the directory's name
environment.json       versions, machine and the command
init.safetensors       the weights before the first step
metrics.jsonl          an EpochRecord a line; the same for the same configuration, bit for bit
timing.jsonl           a TimingRecord a line: seconds, which are not
path.safetensors       the path of Gamma (runs of DessiLBI)
mask.safetensors       the mask that is held, and
start.safetensors      the weights it started from (runs of `dessilbi subnet`)
checkpoint-last/       where a run continues; also checkpoint-best/ and checkpoint-<epoch>/
frontier.json          a Frontier (`dessilbi frontier`)
compact-.../           a compact network with its CompactRecord (`dessilbi compact`)
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, NotRequired, TypedDict

if TYPE_CHECKING:
    from pathlib import Path

    from dessilbi.lab.run.directory import RunDir

CONFIG: Final = "config.json"
ENVIRONMENT: Final = "environment.json"
INIT: Final = "init.safetensors"
METRICS: Final = "metrics.jsonl"
TIMING: Final = "timing.jsonl"
PATH: Final = "path.safetensors"
MASK: Final = "mask.safetensors"
START: Final = "start.safetensors"
LOCK: Final = ".lock"
EVENTS: Final = "tensorboard"
"""Folder of TensorBoard's events."""

LAST: Final = "checkpoint-last"
BEST: Final = "checkpoint-best"
STATE: Final = "state.json"
"""The file of a checkpoint that makes it count."""

FRONTIER: Final = "frontier.json"
FRONTIER_PICTURE: Final = "frontier.png"
COST: Final = "cost.json"
COMPACT_REPORT: Final = "report.json"
COMPACT_EXPORT: Final = "export.json"
COMPACT_ONNX: Final = "model.onnx"
REPORT: Final = "report.html"
FIGURES: Final = "figures"


def checkpoint_name(epoch: int) -> str:
    """Folder of the checkpoint that is kept of an epoch."""
    return f"checkpoint-{epoch}"


def kept_epochs(run: RunDir) -> list[int]:
    """Epochs whose checkpoints a run kept, in order."""
    found = (re.fullmatch(r"checkpoint-(\d+)", f.parent.name) for f in run.path.glob(f"*/{STATE}"))
    return sorted(int(name[1]) for name in found if name)


def compact_folder(choice: str) -> str:
    """Folder of a compact network, by how its mask was chosen."""
    return f"compact-{choice}"


class EpochRecord(TypedDict):
    """A line of metrics.jsonl: what was measured after an epoch. Accuracies are in percent."""

    epoch: int
    """Epochs done; 0 is a subnetwork before its training."""
    judged_on: str
    """Which images the accuracies are of: test or validation."""
    loss: float
    """Cross entropy on them."""
    accuracy: float
    """Of a text, of the next character."""
    flipped_accuracy: NotRequired[float]
    """Of the mean of an image's logits and its mirror image's."""
    train_loss: NotRequired[float]
    train_accuracy: NotRequired[float]
    lr: NotRequired[float]
    """Learning rate of the last step."""
    nu: NotRequired[float]
    """How loosely Gamma is coupled to the weights."""
    sparse_loss: NotRequired[float]
    sparse_accuracy: NotRequired[float]
    """Of the weights on the support of Gamma."""
    recalibrated_accuracy: NotRequired[float]
    """The same with BatchNorm statistics of its own."""
    density: NotRequired[float]
    """Fraction of the weights in that support, or in the mask."""
    densities: NotRequired[dict[str, float]]
    """The same by parameter."""


class TimingRecord(TypedDict):
    """A line of timing.jsonl."""

    epoch: int
    images: int
    """Trained on in these seconds: fewer than an epoch's after a resume."""
    train_seconds: float
    evaluate_seconds: NotRequired[float]


@dataclass(frozen=True)
class FrontierPoint:
    """One network of a size."""

    budget: float
    """The density that was asked for; that of the network itself is at most this, floors apart."""
    density: float
    """Fraction of the weights that can be left out at all."""
    parameters: int
    """Of the network that ``dessilbi compact`` makes of it."""
    macs: float
    """Its multiply-adds for an image."""
    nonzeros: int
    """Its parameters without the weights that are zero."""
    nonzero_macs: float
    accuracy: float
    """In percent, BatchNorm recalibrated for this network."""
    loss: float | None = None
    """Cross entropy, likewise; ``None`` in files that did not record it."""
    refused: str = ""
    """Why the network cannot be compacted, if so: its size is then that of the whole one."""


@dataclass(frozen=True)
class Frontier:
    """Accuracy for every budget of a run."""

    epoch: int
    """Epochs trained when it was evaluated."""
    judged_on: str
    points: tuple[FrontierPoint, ...]

    def write(self, run: RunDir) -> None:
        """Leave it in the run directory."""
        content = {"epoch": self.epoch, "judged_on": self.judged_on}
        points = [asdict(point) for point in self.points]
        run.write_json(FRONTIER, {**content, "points": points})


def read_frontier(run: RunDir) -> Frontier | None:
    """The frontier of a run; ``None`` if none was made.

    Raises:
        ValueError: the file cannot be read; it can be made again.
    """
    file = run.path / FRONTIER
    if not file.exists():
        return None
    try:
        found = json.loads(file.read_text())
        points = tuple(FrontierPoint(**p) for p in found["points"])
        return Frontier(int(found["epoch"]), str(found["judged_on"]), points)
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{file} cannot be read ({error!r}); make it again with `dessilbi frontier`"
        ) from error


@dataclass(frozen=True)
class CompactRecord:
    """One compact network, next to the dense one."""

    chosen: str
    """How the subnetwork was chosen, in words."""
    density: float | None
    accuracy: float | None
    """In percent."""
    judged_on: str
    recalibrated: bool
    """Whether BatchNorm was measured anew for it, as it is for every point of a frontier."""
    parameters: int
    macs: float
    bytes: int
    dense_parameters: int
    dense_macs: float
    dense_bytes: int
    latency: tuple[tuple[int, float, float], ...]
    """Batch size, and milliseconds of the dense and of the compact network."""
    difference: float | None
    """Largest relative one to the masked network."""


def read_compact(file: Path) -> CompactRecord:
    """What stands in the ``report.json`` of a compact network's folder.

    Raises:
        ValueError: the file cannot be read; it can be made again.
    """
    try:
        found = json.loads(file.read_text())
        small, dense = found["compact"], found["dense"]
        return CompactRecord(
            chosen=str(found.get("chosen", "")),
            density=_number(found.get("density")),
            accuracy=_number(found.get("accuracy")),
            judged_on=str(found.get("judged_on", "")),
            recalibrated=bool(found.get("recalibrated", False)),
            parameters=int(small["parameters"]),
            macs=float(small["macs"]),
            bytes=int(small["bytes"]),
            dense_parameters=int(dense["parameters"]),
            dense_macs=float(dense["macs"]),
            dense_bytes=int(dense["bytes"]),
            latency=tuple(
                (int(one["batch"]), float(one["dense"]["median"]), float(one["compact"]["median"]))
                for one in found["latency"]
            ),
            difference=_number(found.get("largest_difference")),
        )
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{file} cannot be read ({error!r}); make it again with `dessilbi compact`"
        ) from error


def compact_reports(run: RunDir) -> list[Path]:
    """The report file of every compact network in a run directory."""
    return sorted(run.path.glob(f"compact*/{COMPACT_REPORT}"))


def _number(value: Any) -> float | None:
    return None if value is None else float(value)

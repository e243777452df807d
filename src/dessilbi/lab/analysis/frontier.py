"""Accuracy against size: a network for every budget out of one run, or a point for a run."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from statistics import mean
from typing import TYPE_CHECKING

import torch

from dessilbi.graph.names import named_weights
from dessilbi.lab.analysis.networks import trained_network, weights_under
from dessilbi.lab.analysis.sizes import size_under
from dessilbi.lab.analysis.subnetworks import open_path
from dessilbi.lab.run.checkpoint import load_model
from dessilbi.lab.run.directory import RunError
from dessilbi.lab.run.files import FRONTIER, LAST, PATH
from dessilbi.lab.training.build import evaluated_split, load_data
from dessilbi.lab.training.evaluate import evaluate_recalibrated
from dessilbi.path import Mask
from dessilbi.subnet import project

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from torch import nn

    from dessilbi.lab.run.config import Config
    from dessilbi.lab.run.directory import RunDir
    from dessilbi.lab.training.loop import Place

DENSITIES = (0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0)


@dataclass(frozen=True)
class Point:
    """One network of a size."""

    budget: float
    """The density that was asked for; that of the network itself is at most this, floors apart."""
    density: float
    """Fraction of the weights that can be left out at all."""
    parameters: int
    """All numbers of the compact network that are not zero, biases and BatchNorm included."""
    macs: float
    """Multiply-adds of an image, of these weights."""
    accuracy: float
    """In percent, BatchNorm recalibrated for this network."""


@dataclass(frozen=True)
class Curve:
    """What a run, or several alike, can offer."""

    name: str
    runs: int
    """Runs that a whole curve takes: one, or one a point."""
    epochs: int
    """Epochs of all of them."""
    seeds: tuple[int, ...]
    judged_on: str
    points: tuple[tuple[Point, ...], ...]
    """By size; in each, one point a seed."""

    def spread(self, at: int) -> tuple[float, float, float]:
        """Mean, lowest and highest accuracy at a place of the curve."""
        values = [p.accuracy for p in self.points[at]]
        return mean(values), min(values), max(values)


def frontier(
    run: RunDir,
    place: Place,
    densities: Sequence[float] = DENSITIES,
    judge_on: str | None = None,
    told: Callable[[str], None] = lambda _: None,
) -> tuple[list[Point], str]:
    """The points of a run, and what they are judged on.

    A run with a path offers a network for each density. Any other run is one point: its weights as
    they are, those that are exactly zero left out. The points are kept in the run directory, and
    only what is not there is evaluated.

    Args:
        run: a run directory.
        place: where the data lies.
        densities: the budgets.
        judge_on: ``"test"`` or ``"validation"``; by default what the run was judged on.
        told: is given a line about every point that is done.
    """
    last = run.load(LAST)
    if last is None:
        raise RunError(f"{run.path} has no {LAST}; train it first")
    has_path = (run.path / PATH).is_file()
    data = load_data(run.config(), place.data_dir, place.download)
    split, judged_on = evaluated_split(data, judge_on)
    path = open_path(run) if has_path else None
    known = _known(run, epoch=int(last.state["epoch"]), judged_on=judged_on)
    if path is not None:  # not those of a mask that an earlier version made another way
        known = [p for p in known if path.mask(density=p.budget).density == p.density]
    wanted = sorted(set(densities)) if has_path else []
    if known and all(any(p.budget == d for p in known) for d in wanted):
        return [p for p in known if not has_path or p.budget in wanted], judged_on
    model = trained_network(run, data)
    image = torch.zeros(1, *data.shape, dtype=next(model.parameters()).dtype)
    points = list(known)
    for density in wanted or [1.0]:
        if any(p.budget == density for p in points):
            continue
        mask = _nonzero(model) if path is None else path.mask(density=density)
        budget = density if path is not None else mask.density
        same = next((p for p in points if p.density == mask.density), None)
        if same is not None:  # between two widths of a ladder there is none
            points.append(replace(same, budget=budget))
            continue
        load_model(model, weights_under(last, mask))
        with project(model, mask):
            accuracy = evaluate_recalibrated(model, split, data.train).accuracy
        points.append(Point(budget, mask.density, *size_under(model, mask, image), accuracy))
        told(f"{run.path.name}: {mask.density:.2%} of the weights evaluated")
    points.sort(key=lambda p: p.budget)
    content = {
        "epoch": last.state["epoch"],
        "judged_on": judged_on,
        "points": [asdict(p) for p in points],
    }
    run.write(FRONTIER, (json.dumps(content, indent=1) + "\n").encode())
    return [p for p in points if not has_path or p.budget in wanted], judged_on


def curves(found: Iterable[tuple[RunDir, list[Point], str]]) -> list[Curve]:
    """Runs that differ in nothing but the seed, or the density they were pruned to, are a curve.

    A curve has the name of its runs, or that of its first run's directory if others have it, too.
    """
    by_method: dict[str, list[tuple[RunDir, list[Point], str]]] = {}
    for one in found:
        by_method.setdefault(_method(one[0].config()), []).append(one)
    names = Counter(alike[0][0].config().name for alike in by_method.values())
    result = []
    for alike in by_method.values():
        name = alike[0][0].config().name
        if names[name] > 1:
            name = alike[0][0].path.name
        seeds = sorted({run.config().seed for run, _, _ in alike})
        by_size: dict[float, list[Point]] = {}
        for run, points, _ in alike:
            target = run.config().prune.density
            for p in points:
                # Pruned runs end a weight or so apart from seed to seed.
                by_size.setdefault(p.budget if target is None else target, []).append(p)
        sizes = sorted(by_size)
        for smaller, size in pairwise(sizes):  # budgets that give the same network are one point
            if [p.density for p in by_size[smaller]] == [p.density for p in by_size[size]]:
                del by_size[smaller]
        judged = {on for _, _, on in alike}
        if len(judged) > 1:
            raise RunError(f"runs of {name} are judged on different images: {', '.join(judged)}")
        result.append(
            Curve(
                name=name,
                runs=len(alike) // len(seeds),
                epochs=sum(run.config().epochs for run, _, _ in alike) // len(seeds),
                seeds=tuple(seeds),
                judged_on=judged.pop(),
                points=tuple(tuple(by_size[size]) for size in sorted(by_size)),
            )
        )
    return result


def _method(config: Config) -> str:
    """What seeds, and runs for several densities, have in common."""
    config = replace(config, seed=0)
    if config.prune.density is not None:
        config = replace(config, prune=replace(config.prune, density=0.0))
    if config.start is not None:  # subnetworks of several seeds have parents of several seeds
        config = replace(config, start=replace(config.start, parent="", digest=""))
    return config.hash


def _known(run: RunDir, epoch: int, judged_on: str) -> list[Point]:
    try:
        content = json.loads((run.path / FRONTIER).read_text())
        if (content["epoch"], content["judged_on"]) != (epoch, judged_on):
            return []
        return [Point(**p) for p in content["points"]]
    except (OSError, ValueError, KeyError, TypeError):
        return []  # it can be made anew


def _nonzero(model: nn.Module) -> Mask:
    """The weights of a pruned network; of one that was not pruned, all."""
    return Mask({n: p.detach() != 0 for n, p in named_weights(model).items() if p.ndim > 1})

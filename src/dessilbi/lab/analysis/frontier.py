"""Accuracy against size: a network for every budget out of one run, or a point for a run."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import mean
from typing import TYPE_CHECKING, Any

import torch

from dessilbi.graph.names import named_weights
from dessilbi.lab.analysis.choice import DENSITIES
from dessilbi.lab.analysis.networks import network_at, shipped, trained_network
from dessilbi.lab.analysis.subnetworks import open_path
from dessilbi.lab.run.directory import RunError
from dessilbi.lab.run.files import LAST, PATH, Frontier, FrontierPoint, read_frontier
from dessilbi.lab.run.methods import GradualPruning
from dessilbi.lab.training.build import evaluated_split, example_inputs, load_data
from dessilbi.lab.training.evaluate import evaluate
from dessilbi.path import Mask

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from dessilbi.lab.data import Dataset
    from dessilbi.lab.run.config import Config
    from dessilbi.lab.run.directory import RunDir
    from dessilbi.lab.run.options import RunOptions


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
    points: tuple[tuple[FrontierPoint, ...], ...]
    """By size; in each, one point a seed."""

    def spread(self, at: int) -> tuple[float, float, float]:
        """Mean, lowest and highest accuracy at a point of the curve."""
        values = [p.accuracy for p in self.points[at]]
        return mean(values), min(values), max(values)


def frontier(
    run: RunDir,
    options: RunOptions,
    densities: Sequence[float] = DENSITIES,
    judge_on: str | None = None,
    told: Callable[[str], None] = lambda _: None,
) -> tuple[list[FrontierPoint], str]:
    """The points of a run, and what they are judged on.

    A run with a path offers a network for each density. Any other run is one point: its weights as
    they are, those that are exactly zero left out. The points are kept in the run directory, and
    only what is not there is evaluated.

    The options are those of ``dessilbi frontier``; ``told`` is given a line about every point.
    """
    last = run.load(LAST)
    if last is None:
        raise RunError(f"{run.path} has no {LAST}; train it first")
    epoch = int(last.state["epoch"])
    data = load_data(run.config(), options.data_dir, options.download)
    split, judged_on = evaluated_split(data, judge_on)
    masks = _masks(run, densities, data)
    image = example_inputs(data.shape, getattr(torch, run.config().dtype))
    known = {p.budget: p for p in _known(run, epoch, judged_on)}
    points: list[FrontierPoint] = []
    for budget, mask in masks.items():
        candidates = [*points, *([known[budget]] if budget in known else [])]
        same = next((p for p in candidates if p.density == mask.density), None)
        if same is not None:  # evaluated before, or between two widths, where there is no other
            points.append(replace(same, budget=budget))
            continue
        model, size, refused = shipped(network_at(run, mask, data), mask, image)
        score = evaluate(model, split)
        points.append(
            FrontierPoint(
                budget=budget,
                density=mask.density,
                parameters=size.parameters,
                macs=size.macs,
                nonzeros=size.nonzeros,
                nonzero_macs=size.nonzero_macs,
                accuracy=score.accuracy,
                loss=score.mean_loss,
                refused=refused,
            )
        )
        told(f"{run.path.name}: {mask.density:.2%} of the weights evaluated")
    all_of_them = sorted((known | {p.budget: p for p in points}).values(), key=lambda p: p.budget)
    Frontier(epoch, judged_on, tuple(all_of_them)).write(run)
    return points, judged_on


def _masks(run: RunDir, densities: Sequence[float], data: Dataset) -> dict[float, Mask]:
    """The masks of a run by budget, the smallest first."""
    if (run.path / PATH).is_file() and not isinstance(run.config().method, GradualPruning):
        path = open_path(run)
        return {density: path.mask(density=density) for density in sorted(set(densities))}
    weights = named_weights(trained_network(run, data))
    mask = Mask({n: p.detach() != 0 for n, p in weights.items() if p.ndim > 1})
    return {mask.density: mask}  # of a run that was not pruned, all


def curves(found: Iterable[tuple[RunDir, list[FrontierPoint], str]]) -> list[Curve]:
    """Runs that differ in nothing but the seed, or the density they were pruned to, are a curve.

    A curve has the name of its runs, or that of its first run's directory if others have it, too.
    """
    by_method: dict[str, list[tuple[RunDir, list[FrontierPoint], str]]] = {}
    for one in found:
        by_method.setdefault(_method(one[0].config()), []).append(one)
    names = Counter(alike[0][0].config().name for alike in by_method.values())
    result = []
    for alike in by_method.values():
        name = alike[0][0].config().name
        if names[name] > 1:
            name = alike[0][0].path.name
        seeds = sorted({run.config().seed for run, _, _ in alike})
        by_size: dict[float, list[FrontierPoint]] = {}
        for run, points, _ in alike:
            method = run.config().method
            target = method.budget if isinstance(method, GradualPruning) else None
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
    if isinstance(config.method, GradualPruning):
        nothing: dict[str, Any] = {config.method.unit: 0.0}
        config = replace(config, method=replace(config.method, **nothing))
    if config.start is not None:  # subnetworks of several seeds have parents of several seeds
        config = replace(config, start=replace(config.start, parent="", digest=""))
    return config.hash


def _known(run: RunDir, epoch: int, judged_on: str) -> list[FrontierPoint]:
    try:
        found = read_frontier(run)
    except ValueError:
        return []  # it can be made anew
    if found is None or (found.epoch, found.judged_on) != (epoch, judged_on):
        return []
    return [p for p in found.points if p.loss is not None]

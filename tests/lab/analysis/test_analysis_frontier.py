"""Accuracy against size: points of runs, kept and grouped to curves, and the command."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
import torch

from dessilbi.cli import main
from dessilbi.compaction import CompactError, compact
from dessilbi.lab.analysis.frontier import curves, frontier
from dessilbi.lab.analysis.networks import trained_network
from dessilbi.lab.analysis.subnetworks import open_path
from dessilbi.lab.run.directory import RunDir, RunError
from dessilbi.lab.run.methods import Dense
from dessilbi.lab.run.options import RunOptions
from dessilbi.lab.training.build import evaluated_split, load_data
from dessilbi.lab.training.evaluate import evaluate_recalibrated
from dessilbi.subnet import project
from lab_runs import NESTED, PRUNED, uninterrupted

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor


def what_takes_part(layers: list[Tensor]) -> tuple[int, int]:
    """Weights and neurons of masked linear layers on a way from an input to an output."""
    for _ in range(len(layers)):
        for one, following in pairwise(layers):
            dead = ~(one.any(1) & following.any(0))
            one[dead], following[:, dead] = False, False
    hidden = sum(int(one.any(1).sum()) for one in layers[:-1])
    return sum(int(one.sum()) for one in layers), hidden + len(layers[-1])


@pytest.mark.filterwarnings("ignore:nothing was removed")
def test_points_are_what_projecting_and_judging_gives(nested: RunDir) -> None:
    place = RunOptions()
    points, judged_on = frontier(nested, place, (0.05, 0.3, 1.0))
    assert judged_on == "test"
    data = load_data(NESTED, None, download=False)
    split, _ = evaluated_split(data)
    model, path = trained_network(nested, data), open_path(nested)
    image = torch.zeros(1, 1, 8, 8, dtype=next(model.parameters()).dtype)
    for point, density in zip(points, (0.05, 0.3, 1.0), strict=True):
        mask = path.mask(density=density)
        with project(model, mask):
            assert point.accuracy == evaluate_recalibrated(model, split, data.train).accuracy
        assert point.density == mask.density
        weights, neurons = what_takes_part([mask[f"fc{i}.weight"].clone() for i in (1, 2, 3)])
        assert point.nonzeros == weights + neurons
        assert point.nonzero_macs == weights  # a linear weight is used once
        size = compact(model, mask, image, latency=False).report.compact
        assert (point.parameters, point.macs) == (size.parameters, size.macs)
    assert points[-1].parameters == sum(p.numel() for p in model.parameters())


def test_points_are_kept_and_only_new_ones_evaluated(
    nested: RunDir,
) -> None:
    first, _ = frontier(nested, RunOptions(), (0.1, 0.2))
    told: list[str] = []
    again, _ = frontier(nested, RunOptions(), (0.1, 0.15, 0.2), told=told.append)
    assert len(told) == 1
    assert "15.00% of the weights" in told[0]
    assert [p for p in again if p.budget != 0.15] == first
    (nested.path / "frontier.json").write_text("{broken")
    assert frontier(nested, RunOptions(), (0.1, 0.2))[0] == first


def test_a_run_without_a_path_is_one_point(pruned: RunDir) -> None:
    points, _ = frontier(pruned, RunOptions())
    (point,) = points
    assert point.density == pytest.approx(0.1, abs=0.001)
    assert point.accuracy == pruned.records()[-1]["accuracy"]
    assert frontier(pruned, RunOptions())[0] == points


def test_a_network_that_cannot_be_compacted_is_said_to_be_whole(
    nested: RunDir, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise CompactError("the forward cannot be traced")

    monkeypatch.setattr("dessilbi.lab.analysis.networks.compact", refuse)
    main(["frontier", str(nested.path), "--densities", "0.04"])
    said = capsys.readouterr().out
    assert "not compacted, sizes are the whole network's: the forward cannot be traced" in said
    (point,), _ = frontier(nested, RunOptions(), (0.04,))
    assert point.parameters == sum(p.numel() for p in trained_network(nested).parameters())
    assert point.nonzeros < 0.1 * point.parameters


def test_runs_of_one_name_are_a_curve(tmp_path: Path) -> None:
    short = replace(PRUNED, epochs=1)
    found = []
    for seed in (0, 1):
        for density in (0.3, 0.1):
            method = replace(short.method, density=density)
            run = uninterrupted(replace(short, seed=seed, method=method), tmp_path)
            found.append((run, *frontier(run, RunOptions())))
    (curve,) = curves(found)
    assert (curve.runs, curve.epochs, curve.seeds) == (2, 2, (0, 1))
    assert [len(at) for at in curve.points] == [2, 2]
    values = [p.accuracy for p in curve.points[0]]
    assert curve.spread(0) == (sum(values) / 2, min(values), max(values))
    assert curve.points[0][0].density < curve.points[1][0].density


def test_runs_of_one_name_that_differ_are_curves_of_their_own(tmp_path: Path) -> None:
    short = replace(NESTED, name="one-name", epochs=1)
    plain = replace(short, method=Dense())
    runs = [uninterrupted(config, tmp_path) for config in (short, plain)]
    found = [(run, *frontier(run, RunOptions(), (0.3, 1.0))) for run in runs]
    first, second = curves(found)
    assert (first.name, second.name) == tuple(run.path.name for run in runs)
    assert first.points == tuple((p,) for p in found[0][1])
    assert second.points == tuple((p,) for p in found[1][1])
    assert [curve.name for curve in curves(found[:1])] == ["one-name"]


def test_the_command_prints_and_draws(
    nested: RunDir, pruned: RunDir, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "picture.svg"
    arguments = ["--densities", "0.05", "0.3", "--picture", str(picture)]
    main(["frontier", str(nested.path), str(pruned.path), *arguments])
    said = capsys.readouterr().out
    assert "small-nested: 1 run(s), 3 epochs in all" in said
    assert "small-pruned: 1 run(s), 3 epochs in all" in said
    accuracy = json.loads((nested.path / "frontier.json").read_text())["points"][0]["accuracy"]
    assert f"{accuracy:.2f}" in said
    drawn = picture.read_text()
    assert "<svg" in drawn
    assert not drawn.count("Traceback")


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (["nowhere"], "is not a run directory"),
        (["RUN", "--densities", "1.5"], r"densities must lie in \(0, 1\], got 1.5"),
        (["RUN", "--picture", "x.gif"], "picture must end in .png, .svg or .pdf"),
        (["RUN", "--judge-on", "validation"], "there are no validation images"),
    ],
)
def test_faults_of_the_command(
    nested: RunDir, arguments: list[str], fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["frontier", *(str(nested.path) if a == "RUN" else a for a in arguments)])
    assert re.search(fault, capsys.readouterr().err)


def test_a_run_that_was_never_trained(tmp_path: Path) -> None:
    run = RunDir.of(NESTED, tmp_path)
    with pytest.raises(RunError, match="train it first"):
        frontier(run, RunOptions())

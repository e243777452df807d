"""What a run of a language model offers: its path, every budget, and small networks."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch

from dessilbi.cli import main
from dessilbi.lab.analysis.choice import Choice, Retrain
from dessilbi.lab.analysis.deployment import deploy
from dessilbi.lab.analysis.frontier import frontier
from dessilbi.lab.analysis.networks import network_at
from dessilbi.lab.analysis.subnetworks import open_path, prepare
from dessilbi.lab.run.directory import RunDir
from dessilbi.lab.run.files import FRONTIER, read_frontier
from dessilbi.lab.run.options import RunOptions
from dessilbi.lab.training.build import load_data
from dessilbi.lab.training.evaluate import evaluate
from dessilbi.lab.training.loop import train
from lab_runs import TEXT, weights_of

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def run(text_run: RunDir, tmp_path: Path) -> RunDir:
    """To write into."""
    shutil.copytree(text_run.path, tmp_path / text_run.path.name)
    return RunDir(tmp_path / text_run.path.name)


def test_every_budget_has_a_loss_and_whole_neurons_leave(run: RunDir, texts: Path) -> None:
    points, judged_on = frontier(run, RunOptions(data_dir=texts), (0.25, 0.5, 1.0))
    assert judged_on == "validation"
    assert [p.refused for p in points] == ["", "", ""]
    data = load_data(TEXT, texts, download=False)
    neuron = 2 * 16
    for p in points:
        mask = open_path(run).mask(density=p.budget)
        score = evaluate(network_at(run, mask, data), data.test)
        assert p.loss == pytest.approx(score.mean_loss, rel=1e-5)
        assert p.accuracy == pytest.approx(score.accuracy, abs=0.1)
        assert p.parameters == points[-1].parameters - (128 - mask.kept // neuron) * neuron
        assert p.parameters == p.nonzeros
    assert points[-1].loss == pytest.approx(run.records()[-1]["loss"], rel=1e-5)
    assert read_frontier(run) is not None


def test_points_without_a_loss_are_evaluated_again(run: RunDir, texts: Path) -> None:
    options = RunOptions(data_dir=texts)
    points, judged_on = frontier(run, options, (0.5,))
    (point,) = points
    found = read_frontier(run)
    assert found is not None
    replace(found, points=(replace(point, loss=None, accuracy=1.0),)).write(run)
    assert frontier(run, options, (0.5,)) == (points, judged_on)
    assert (run.path / FRONTIER).exists()


def test_a_compact_language_model_is_the_same_function(run: RunDir, texts: Path) -> None:
    made = deploy(run, Choice(density=0.5), data_dir=texts)
    assert made.scores["compact"].mean_loss == pytest.approx(
        made.scores["masked"].mean_loss, rel=1e-5
    )
    fc = made.small.model.get_submodule("blocks.0.mlp.fc")
    proj = made.small.model.get_submodule("blocks.0.mlp.proj")
    assert fc.out_features == proj.in_features < 64
    x = torch.randint(97, 107, (3, 8))
    torch.testing.assert_close(made.small.model(x), made.masked(x))


def test_a_subnetwork_keeps_its_neurons(run: RunDir, texts: Path, tmp_path: Path) -> None:
    config = prepare(run, Choice(density=0.25), Retrain.parse("scratch"), tmp_path)
    trained = train(config, RunOptions(runs=tmp_path, data_dir=texts))
    before, *_, last = trained.records()
    assert last["loss"] < before["loss"]
    mask = open_path(run).mask(density=0.25)
    assert before["density"] == mask.density
    weights = weights_of(trained)
    for name, keep in mask.items():
        assert torch.equal(weights[name] != 0, keep)


def test_the_path_is_printed_with_losses(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    main(["path", str(run.path)])
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["epoch", "density", "dense", "sparse", "gap"]
    for line, record in zip(lines[3:], run.records(), strict=False):
        assert line.split()[2:4] == [f"{record['loss']:.4f}", f"{record['sparse_loss']:.4f}"]


def test_the_table_of_budgets_has_losses(
    run: RunDir, texts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["frontier", str(run.path), "--data-dir", str(texts), "--densities", "0.5"])
    said = capsys.readouterr().out
    (point,) = frontier(run, RunOptions(data_dir=texts), (0.5,))[0]
    assert re.search(rf"accuracy +loss\n.*{point.accuracy:.2f} +{point.loss:.4f}", said)


def test_the_report_of_a_language_model_speaks_of_no_images(
    run: RunDir, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["report", str(run.path)])
    assert "report.html" in capsys.readouterr().out
    page = (run.path / "report.html").read_text()
    assert f"{run.records()[-1]['accuracy']:.2f}" in page
    assert "of the validation set right" in page
    assert "cross entropy, nats" in page

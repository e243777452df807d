"""``dessilbi compact`` and ``dessilbi export``: from a run to the files that are deployed."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch

from dessilbi import project
from dessilbi.cli import main
from dessilbi.compaction import Timing, load_compact
from dessilbi.lab.analysis.choice import Choice, Retrain
from dessilbi.lab.analysis.networks import trained_network
from dessilbi.lab.analysis.subnetworks import open_path, prepare
from dessilbi.lab.data import load_dataset
from dessilbi.lab.run.config import ModelConfig
from dessilbi.lab.run.options import RunOptions
from dessilbi.lab.training.build import load_data
from dessilbi.lab.training.evaluate import evaluate, evaluate_recalibrated
from dessilbi.lab.training.loop import train
from lab_runs import SMALL, uninterrupted

if TYPE_CHECKING:
    from pathlib import Path

    from dessilbi.lab.run.directory import RunDir

FILTERS = replace(SMALL, model=ModelConfig(name="digits-net"), epochs=2, keep=())


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    torch.set_num_threads(1)
    return uninterrupted(FILTERS, tmp_path_factory.mktemp("runs"))


@pytest.fixture
def run(trained: RunDir, tmp_path: Path) -> RunDir:
    copy = tmp_path / trained.path.name
    shutil.copytree(trained.path, copy)
    return type(trained)(copy)


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    main([*arguments, "--threads", "1"])
    return capsys.readouterr().out


def test_compact_leaves_a_network_that_scores_the_same(
    run: RunDir, capsys: pytest.CaptureFixture[str]
) -> None:
    text = said(capsys, "compact", str(run.path), "--density", "0.4", "--no-recalibrate")
    folder = run.path / "compact-0.4"
    assert {f.name for f in folder.iterdir()} == {"plan.json", "model.safetensors", "report.json"}
    report = json.loads((folder / "report.json").read_text())
    assert report["chosen"].startswith("density 0.4")
    assert report["compact"]["parameters"] < report["dense"]["parameters"]
    assert {d["inputs"] for d in report["differences"]} == {"random", "given"}
    small = load_compact(folder)
    test = load_dataset("digits").test
    model = trained_network(run, load_data(run.config(), None, False))
    with project(model, open_path(run).mask(density=0.4)):
        wanted = evaluate(model, test).accuracy
    assert evaluate(small, test).accuracy == pytest.approx(wanted, abs=0.3)  # a tie may turn
    assert (report["accuracy"], report["judged_on"]) == (evaluate(small, test).accuracy, "test")
    assert (report["density"], report["recalibrated"]) == (
        open_path(run).mask(density=0.4).density,
        False,
    )
    assert f"masked: {wanted:.2f} %" in text
    assert "compact: " in text
    assert str(folder) in text.replace("\n", "")


@pytest.mark.filterwarnings("ignore:grad and param do not obey")  # of torch, about speed
@pytest.mark.parametrize("density", ["0.3", "1.0"])
def test_frontier_promises_what_compact_ships(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], density: str
) -> None:
    """Accuracy, parameters and multiply-adds: the two commands print the same figures."""
    main(["train", "digits", "--nested", "--epochs", "3", "--runs", str(tmp_path)])
    (folder,) = tmp_path.iterdir()
    capsys.readouterr()
    lines = said(capsys, "frontier", str(folder), "--densities", density).splitlines()
    head = next(i for i, line in enumerate(lines) if line.split()[:1] == ["density"])
    promised = dict(zip(lines[head].split(), lines[head + 1].split(), strict=True))

    text = said(capsys, "compact", str(folder), "--density", density)
    rows = {line.split()[0]: line.split() for line in text.splitlines() if line.strip()}
    assert promised["parameters"] == rows["parameters"][2]
    assert promised["MACs"] == rows["macs"][2]
    assert promised["nonzeros"] == rows["nonzeros:"][1]
    assert f"compact: {promised['accuracy']} % on the test set" in text
    assert f"masked: {promised['accuracy']} % on the test set" in text


def test_other_choices_and_places(
    run: RunDir, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "deep" / "out"
    options = ["--epoch", "1", "--sparse", "-o", str(out)]
    text = said(capsys, "compact", str(run.path), *options)
    assert "epoch 1" in text
    assert "BatchNorm recalibrated" in text
    assert "batch: way (ratio to dense)" in text
    assert (out / "plan.json").is_file()
    report = json.loads((out / "report.json").read_text())
    assert report["recalibrated"] is True
    assert f"compact: {report['accuracy']:.2f} % on the {report['judged_on']} set" in text


def test_new_statistics_are_those_of_the_compact_network(
    run: RunDir, capsys: pytest.CaptureFixture[str]
) -> None:
    text = said(capsys, "compact", str(run.path), "--density", "0.6")
    report = json.loads((run.path / "compact-0.6" / "report.json").read_text())
    data = load_data(run.config(), None, False)
    model = trained_network(run, data)
    with project(model, open_path(run).mask(density=0.6)):
        as_it_is = evaluate(model, data.test).accuracy
        wanted = evaluate_recalibrated(model, data.test, data.train).accuracy
    assert abs(wanted - as_it_is) > 1, "recalibration matters here"
    assert report["accuracy"] == pytest.approx(wanted, abs=0.3)
    assert f"masked: {wanted:.2f} %" in text


def test_a_subnetworks_run_has_its_own_mask(
    run: RunDir, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = prepare(run, Choice(density=0.4), Retrain.parse("finetune"), tmp_path / "sub")
    child = train(config, RunOptions(runs=tmp_path / "sub"))
    text = said(capsys, "compact", str(child.path))
    assert "its own mask" in text
    assert (child.path / "compact-own" / "model.safetensors").is_file()


def test_export_compares_onnxruntime_with_torch(
    run: RunDir, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def quick(calls: list[object]) -> list[Timing]:
        return [Timing(0.00996, 0.00996, 0.00996) for _ in calls]  # as wide as a time is printed

    monkeypatch.setattr("dessilbi.lab.analysis.deployment.side_by_side", quick)
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package, reason="export needs dessilbi[compact]")
    text = said(capsys, "export", str(run.path), "--onnx", "--density", "0.4")
    folder = run.path / "compact-0.4"
    rows = {row["network"]: row for row in json.loads((folder / "export.json").read_text())}
    assert rows["compact, onnxruntime"]["bytes"] == (folder / "model.onnx").stat().st_size
    assert rows["compact, onnxruntime"]["bytes"] < rows["dense, onnxruntime"]["bytes"]
    assert rows["compact, onnxruntime"]["difference to masked"] <= 1e-5
    assert rows["compact, onnxruntime"]["difference to compact"] <= 1e-5
    for name, row in rows.items():
        (line,) = (line for line in text.splitlines() if line.startswith(name))
        cells = line.removeprefix(name).replace(" ms", "").split()  # no two run into each other
        assert cells[0] == f"{row['bytes']:,}"
        assert cells[1:5] == ["0.00996", "1.00x", "0.00996", "1.00x"]


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (["compact", "RUN"], "no weight of this run is zero: choose one of --density"),
        (["compact", "RUN", "--density", "0.4", "--epoch", "1"], "choose one of --density"),
        (["compact", "RUN", "--density", "0.4", "--threads", "0"], "threads must be >= 1, got 0"),
        (["compact", "nowhere", "--density", "0.4"], "is not a run directory"),
        (["export", "RUN", "--density", "0.4"], "say which format: --onnx"),
    ],
)
def test_mistakes_are_one_message(
    run: RunDir, arguments: list[str], fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main([str(run.path) if a == "RUN" else a for a in arguments])
    assert stop.value.code == 1
    error = capsys.readouterr().err
    assert fault in error
    assert "Traceback" not in error


def test_a_missing_package_is_named_with_its_extra(
    run: RunDir, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(*_: object) -> None:
        raise ModuleNotFoundError("No module named 'onnxruntime'", name="onnxruntime")

    monkeypatch.setattr("dessilbi.cli.compact._deploy", missing)
    assert "dessilbi.cli.compact" in sys.modules
    with pytest.raises(SystemExit):
        main(["export", str(run.path), "--onnx"])
    error = capsys.readouterr().err
    assert "needs the package 'onnxruntime': pip install 'dessilbi[compact]'" in error


def test_no_room_on_the_disk_is_said(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    (run.path / "compact-0.4").write_text("a file where the folder should be")
    with pytest.raises(SystemExit):
        main(["compact", str(run.path), "--density", "0.4", "--threads", "1"])
    assert "cannot write" in capsys.readouterr().err

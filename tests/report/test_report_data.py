"""What is read of a run directory: faithful where it is whole, clear where it is not."""

from __future__ import annotations

import base64
import json
import shutil
import zlib
from io import BytesIO
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from PIL import Image
from report_runs import subnet_run

from dessilbi.lab.run.config import OptimizerConfig
from dessilbi.lab.run.directory import RunDir, RunError
from dessilbi.lab.run.files import LAST, PATH
from dessilbi.path.layers import make_layers
from dessilbi.report import read_run
from dessilbi.report.checkpoint_images import gamma_of, twins_of
from dessilbi.report.payload import Block, make_payload
from dessilbi.report.pictures import NEGATIVE, POSITIVE, coloured, draw, png
from dessilbi.report.summary import headline, summary

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def copy(run: RunDir, tmp_path: Path) -> RunDir:
    shutil.copytree(run.path, tmp_path / run.path.name)
    return RunDir(tmp_path / run.path.name)


# ---------------------------------------------------------------------- a whole run


def test_rows_agree_with_the_path(run: RunDir) -> None:
    data = read_run(run.path)
    path, filters = data.path, data.filters
    assert path is not None
    assert filters is not None
    for layer in path.layers:
        rows = filters.rows(layer.name)
        for place, epoch in enumerate(path.epochs):
            norms = path.norms(epoch, layer.name)
            assert np.array_equal(filters.W[place, rows], norms.W.numpy())
            support = path.support(epoch)[layer.name].flatten(1)
            assert np.array_equal(filters.inside[place, rows] > 0, support.any(1).numpy())
            assert np.array_equal(filters.inside[place, rows] == 255, support.all(1).numpy())
        if layer.exact:
            assert np.array_equal(filters.entry[rows], path.entry_steps(layer.name).numpy())


def test_gamma_of_a_kept_epoch_has_the_recorded_norms_and_support(run: RunDir) -> None:
    data = read_run(run.path)
    path = data.path
    assert path is not None
    checkpoint = run.load("checkpoint-2")
    assert checkpoint is not None
    for layer in path.layers:
        Gamma = gamma_of(layer, twins_of(checkpoint, path)[layer.name], path, 2)
        torch.testing.assert_close(layer.norms(Gamma), path.norms(2, layer.name).Gamma)
        assert torch.equal(Gamma != 0, path.support(2)[layer.name])
    assert [kept.epoch for kept in data.checkpoints] == [0, 2, 4], "the last one counts as kept"
    assert all(kept.images.keys() == {one.name for one in path.layers} for kept in data.checkpoints)
    opacity = data.checkpoints[0].images["conv1.weight"]["Gamma"][..., 3]
    assert not opacity.any(), "nothing has entered yet"


def test_the_story_is_that_of_the_numbers(run: RunDir, plain: RunDir) -> None:
    data = read_run(run.path)
    assert headline(data) == "digits-net on digits, 4 epochs of DessiLBI"
    last = data.last
    text = " ".join(summary(data)).replace("\u00a0", " ")
    assert f"{100 * last['density']:.1f} % of the weights" in text
    assert f"{last['recalibrated_accuracy']:.2f} % of the test set" in text
    assert "filters of" in text
    assert data.path is not None
    settled = data.path.stable_epoch()
    assert ("has not settled" if settled is None else f"settled at epoch {settled}") in text
    assert f"{read_run(plain.path).last['accuracy']:.2f}" in summary(read_run(plain.path))[0]


def test_a_compact_network_has_its_own_accuracy(run: RunDir, copy: RunDir) -> None:
    """Not that of the budget of its density, which is recalibrated and may be another mask."""
    data = read_run(run.path)
    assert data.frontier is not None
    assert [p.accuracy for p in data.frontier.points] == [30.0, 90.0, 95.0]
    (compact,) = data.compacts
    assert compact.latency == ((1, 0.2, 0.1),)
    assert (compact.accuracy, compact.judged_on, compact.recalibrated) == (88.0, "test", False)
    values, _ = make_payload([read_run(run.path)])
    (shown,) = (one for one in values["charts"]["budgets"][0]["series"] if one["mark"] == "square")
    assert (shown["x"], shown["y"]) == ([20.0], [88.0])

    file = copy.path / "compact-0.2" / "report.json"
    older = json.loads(file.read_text())
    del older["accuracy"], older["judged_on"], older["recalibrated"], older["density"]
    file.write_text(json.dumps(older))
    (compact,) = read_run(copy.path).compacts
    assert compact.accuracy is None, "a file from before does not say"


# ---------------------------------------------------------------------- tied filters


def test_tied_filters_are_compared_by_their_joint_norm(tied: RunDir) -> None:
    data = read_run(tied.path)
    path, filters = data.path, data.filters
    assert path is not None
    assert filters is not None
    assert filters.partners == {"stem.weight": ("write.weight",), "write.weight": ("stem.weight",)}
    stem, read, write = (filters.rows(f"{name}.weight") for name in ("stem", "read", "write"))
    assert np.array_equal(filters.joint[:, stem], filters.joint[:, write])
    together = np.hypot(filters.V[:, stem], filters.V[:, write])
    np.testing.assert_allclose(filters.joint[:, stem], together, rtol=1e-6)
    np.testing.assert_allclose(filters.joint[:, read], filters.V[:, read])
    for rows in (stem, read, write):
        above = filters.joint[:, rows] > filters.threshold[rows]
        assert np.array_equal(above, filters.inside[:, rows] > 0)
    assert 0 < (filters.inside[-1, stem] > 0).sum() < 8, "some are in, some are next"
    alone = filters.V[:, stem] > filters.threshold[stem]
    assert not np.array_equal(alone, filters.inside[:, stem] > 0), "the case is a case"


def test_gamma_of_tied_filters_is_the_recorded_one(tied: RunDir) -> None:
    data = read_run(tied.path)
    assert data.path is not None
    for name, epoch in (("checkpoint-1", 1), (LAST, 2)):
        checkpoint = tied.load(name)
        assert checkpoint is not None
        for layer in data.path.layers:
            V = twins_of(checkpoint, data.path)[layer.name]
            Gamma = gamma_of(layer, V, data.path, epoch)
            torch.testing.assert_close(
                layer.norms(Gamma), data.path.norms(epoch, layer.name).Gamma, rtol=1e-4, atol=1e-6
            )
            assert torch.equal(Gamma != 0, data.path.support(epoch)[layer.name])
    values, _ = make_payload([data])
    layers = {one["short"]: one for one in values["runs"][0]["path"]["layers"]}
    assert layers["stem"]["partners"] == ["write"]


# ---------------------------------------------------------------------- subnetworks


def test_the_story_of_a_subnetwork_is_that_of_its_mask(run: RunDir, retrained: RunDir) -> None:
    data = read_run(retrained.path)
    before = retrained.records()[0]
    (text,) = (sentence.replace("\u00a0", " ") for sentence in summary(data))
    assert text == (
        f"After 2 epochs the subnetwork ({100 * before['density']:.1f} % of the weights, chosen in "
        f"{run.path.name}: density 0.3 by magnitude) gets {data.last['accuracy']:.2f} % of the "
        f"test set right; before training it was {before['accuracy']:.2f} %, "
        f"{before['recalibrated_accuracy']:.2f} % with BatchNorm recalibrated."
    )
    values, _ = make_payload([data])
    shown = values["runs"][0]
    assert (shown["whole"], shown["mask_density"]) == ("the subnetwork", before["density"])
    assert shown["records"]["recalibrated_accuracy"][0] is None, "the mask is not the support"
    assert shown["records"]["density"][0] is None


def test_a_subnetwork_as_it_is(run: RunDir) -> None:
    (text,) = summary(read_run(subnet_run(run, None).path))
    assert text.startswith("As it is, the subnetwork (")
    assert "Gamma" not in text


def test_a_subnetwork_without_a_twin_keeps_the_density_of_its_mask(run: RunDir) -> None:
    sgd = OptimizerConfig(name="sgd", lr=0.01)
    made = subnet_run(run, "finetune", epochs=1, optimizer=sgd)
    before = made.records()[0]
    data = read_run(made.path)
    assert [r["density"] for r in data.records] == [before["density"]] * 2
    assert "of the weights, chosen in" in summary(data)[0]


# ---------------------------------------------------------------------- pictures and packing


@pytest.mark.parametrize(
    ("shape", "dim", "size"),
    [
        ((16, 1, 3, 3), 0, (3, 3, 1)),
        ((8, 3, 5, 5), 0, (5, 5, 3)),
        ((32, 16, 3, 3), 0, (12, 12, 1)),
        ((4, 6, 2, 2), 1, (4, 4, 1)),
        ((300, 784), None, (28, 28, 1)),
        ((10, 7), None, (3, 3, 1)),
    ],
)
def test_pictures_hold_every_weight(
    shape: tuple[int, ...], dim: int | None, size: tuple[int, int, int]
) -> None:
    (layer,) = make_layers([("x", shape, dim)])
    weights = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    pictures = draw(weights, layer)
    assert pictures.shape == (layer.rows, *size)
    assert np.array_equal(np.sort(pictures[pictures != 0]), np.sort(weights.ravel()))


def test_colours_of_weights_say_sign_and_size() -> None:
    pictures = np.array([-2.0, -1.0, 0.0, 1.0, 2.0], dtype=np.float32).reshape(5, 1, 1, 1)
    colours = coloured(pictures).reshape(5, 4)
    assert [tuple(one) for one in colours[[0, 4], :3]] == [NEGATIVE, POSITIVE]
    opacity = colours[:, 3].astype(int)
    assert opacity[[0, 2, 4]].tolist() == [255, 0, 255]
    assert 120 < opacity[1] == opacity[3] < 140
    assert coloured(np.zeros((1, 2, 2, 3), dtype=np.float32))[..., :3].tolist() == [
        [[[127, 127, 127]] * 2] * 2
    ]


def test_a_png_gives_back_its_pixels() -> None:
    rng = np.random.default_rng(0)
    for colours in (rng.integers(0, 256, (9, 4)), rng.integers(0, 256, (999, 4))):
        pixels = colours[rng.integers(0, len(colours), (40, 30))].astype(np.uint8)
        with Image.open(BytesIO(base64.b64decode(png(pixels)))) as image:
            assert np.array_equal(np.asarray(image.convert("RGBA")), pixels)


def test_arrays_of_the_page_begin_where_a_typed_array_may() -> None:
    norms = np.array([0.5, np.nan, 1e9, np.inf, 0.1], dtype=np.float32)
    block = Block()
    block.add(np.arange(3, dtype=np.uint8))
    entry = block.add_rounded(norms)
    assert (entry["kind"], entry["at"], entry["size"]) == ("Float16Array", 4, 5)
    raw = zlib.decompress(base64.b64decode(block.text()))
    found = np.frombuffer(raw, dtype=np.float16, count=5, offset=4)
    np.testing.assert_allclose(found, [0.5, 0, 65504, 65504, 0.1], rtol=1e-3)


def test_the_payload_is_json_even_of_a_run_that_diverged(copy: RunDir) -> None:
    lines = (copy.path / "metrics.jsonl").read_text().splitlines()
    broken = json.loads(lines[-1]) | {"loss": float("nan"), "train_loss": float("inf")}
    (copy.path / "metrics.jsonl").write_text("\n".join([*lines[:-1], json.dumps(broken)]) + "\n")
    values, _ = make_payload([read_run(copy.path)])
    assert values["runs"][0]["records"]["train_loss"][-1] is None
    json.dumps(values, allow_nan=False)


# ---------------------------------------------------------------------- broken, half, foreign


def test_a_folder_that_is_no_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"is not a run directory: it has no config\.json"):
        read_run(tmp_path)
    (tmp_path / "config.json").write_text('{"colour": "blue"}')
    with pytest.raises(RunError, match=r"cannot read .*config\.json: .*colour"):
        read_run(tmp_path)


def test_a_run_without_an_epoch_says_how_to_train_it(copy: RunDir) -> None:
    for name in ("metrics.jsonl", PATH):
        (copy.path / name).unlink()
    with pytest.raises(RunError, match="no finished epoch yet; train it first: dessilbi train"):
        read_run(copy.path)


def test_a_damaged_path_is_refused(copy: RunDir) -> None:
    content = (copy.path / PATH).read_bytes()
    (copy.path / PATH).write_bytes(content[: len(content) // 2])
    with pytest.raises(RunError, match=r"cannot show .*path\.safetensors is damaged"):
        read_run(copy.path)


@pytest.mark.parametrize("content", [b'{"loss": 1}\n', b"[1, 2]\n", b"\xff\xfe\n"])
def test_records_of_something_else_are_refused(copy: RunDir, content: bytes) -> None:
    (copy.path / "metrics.jsonl").write_bytes(content)
    with pytest.raises(RunError, match=r"metrics\.jsonl is"):
        read_run(copy.path)


def test_a_line_that_was_cut_short_is_left_out(copy: RunDir) -> None:
    text = (copy.path / "metrics.jsonl").read_text()
    (copy.path / "metrics.jsonl").write_text(text[: -len(text) // 8])
    assert [r["epoch"] for r in read_run(copy.path).records] == [1, 2, 3]


def test_what_can_be_done_without_is_noted(copy: RunDir) -> None:
    (copy.path / "environment.json").write_text("{")
    (copy.path / "frontier.json").write_text('{"points": [{"density": "x"}]}')
    next((copy.path / "checkpoint-2").glob("*.safetensors")).write_bytes(b"short")
    (copy.path / LAST / "state.json").write_text("[]")
    data = read_run(copy.path)
    assert [kept.epoch for kept in data.checkpoints] == [0]
    notes = "\n".join(data.notes)
    for part in ("environment.json", "frontier.json", "weights of epoch 2"):
        assert part in notes

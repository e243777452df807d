"""Compact models on disk: no pickle, and no file that is not what it says it is."""

from __future__ import annotations

import json
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from compaction_nets import NETS, Tied, filter_mask, lab_net, outputs, randomize, tied_mask
from dessilbi import Mask
from dessilbi.compaction import Compact, CompactError, compact, load_compact
from dessilbi.path import FormatError

if TYPE_CHECKING:
    from pathlib import Path

MAKE = "dessilbi.lab.models:make_model"
DIGITS = {"name": "digits-net", "num_classes": 10, "in_channels": 1, "input_size": 8}

pytestmark = pytest.mark.filterwarnings("ignore:nothing was removed")


@pytest.fixture
def small() -> Compact:
    model = randomize(lab_net("digits-net", 8, 1))
    return compact(model, filter_mask(model, 0.5), torch.zeros(1, 1, 8, 8), latency=False)


@pytest.fixture
def folder(small: Compact, tmp_path: Path) -> Path:
    small.save(tmp_path / "small", MAKE, DIGITS)
    return tmp_path / "small"


@pytest.mark.parametrize("name", NETS)
def test_every_network_comes_back_as_it_was(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, shape = NETS[name]
    module = ModuleType("compact_test_model")
    module.make = lambda: make()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    model = randomize(make()).double()
    small = compact(
        model, filter_mask(model, 0.6), torch.zeros(1, *shape).double(), streams="scatter",
        latency=False,
    )  # fmt: skip
    size = small.save(tmp_path, "compact_test_model:make")
    assert size == sum(f.stat().st_size for f in tmp_path.iterdir())
    assert {f.name for f in tmp_path.iterdir()} == {"plan.json", "model.safetensors"}
    again = load_compact(tmp_path)
    x = torch.randn(3, *shape).double()
    with torch.no_grad():
        pairs = zip(outputs(small.model(x)), outputs(again(x)), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)


def test_branches_that_vanished_stay_away(tmp_path: Path) -> None:
    arguments = {"name": "resnet-20", "num_classes": 10, "in_channels": 3, "input_size": 8}
    model = randomize(lab_net("resnet-20", 8, 3))
    off = torch.zeros(16, 16, 3, 3).bool()
    mask = Mask({f"stage1.{i}.conv2.weight": off for i in range(2)})
    small = compact(model, mask, torch.zeros(1, 3, 8, 8), latency=False, channels_last=True)
    small.model.get_parameter("fc.bias").requires_grad_(False)
    small.save(tmp_path, MAKE, arguments)
    again = load_compact(tmp_path)
    x = torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        assert torch.equal(small.model(x), again(x))
    frozen = [name for name, p in again.named_parameters() if not p.requires_grad]
    assert frozen == ["fc.bias"]
    assert again.get_parameter("conv1.weight").is_contiguous(memory_format=torch.channels_last)


def test_tied_weights_come_back_tied(tmp_path: Path) -> None:
    small = compact(Tied().double(), tied_mask(), torch.zeros(2, 4).long(), latency=False)
    small.save(tmp_path, "compaction_nets:Tied")
    again = load_compact(tmp_path)
    assert again.get_parameter("decode.weight") is again.get_parameter("embed.weight")
    assert again.get_parameter("decode.weight").dtype == torch.float64  # the file's
    sizes = [sum(p.numel() for p in m.parameters()) for m in (small.model, again)]
    assert sizes[0] == sizes[1]
    x = torch.arange(20)[None]
    with torch.no_grad():
        assert torch.equal(small.model(x), again(x))


def test_what_was_trained_since_is_saved(small: Compact, tmp_path: Path) -> None:
    with torch.no_grad():
        small.model.get_parameter("fc.bias").add_(1)
    small.save(tmp_path, MAKE, DIGITS)
    found = load_compact(tmp_path, lambda: lab_net("digits-net", 8, 1))
    assert torch.equal(found.get_parameter("fc.bias"), small.model.get_parameter("fc.bias"))


def test_the_plan_can_be_read(folder: Path, small: Compact) -> None:
    plan = json.loads((folder / "plan.json").read_text())
    assert (plan["format"], plan["version"]) == ("dessilbi-compact", 2)
    assert plan["constructor"] == {"target": MAKE, "arguments": DIGITS}
    assert plan["plan"]["form"] == "modules"
    assert set(plan["plan"]["tensors"]["conv1.weight"]["stays"]) == {"0"}
    assert plan["report"]["compact"]["parameters"] == small.report.compact.parameters


@pytest.mark.parametrize(
    ("constructor", "arguments", "message"),
    [
        ("dessilbi.lab.models", {}, "must read package.module:function"),
        ("nowhere_at_all:make", {}, "cannot import the constructor 'nowhere_at_all:make'"),
        ("dessilbi.lab.models:no_model", {}, "cannot import the constructor"),
        (MAKE, {}, "cannot call dessilbi.lab.models:make_model"),
        ("builtins:dict", {}, "gave a dict, not a torch.nn.Module"),
        (MAKE, DIGITS | {"name": "lenet-300-100"}, "made for another network"),
        (MAKE, DIGITS | {"num_classes": 11}, "made for another network"),
    ],
)
def test_a_constructor_that_does_not_fit_is_refused_when_saving(
    small: Compact, tmp_path: Path, constructor: str, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(CompactError, match=message):
        small.save(tmp_path / "x", constructor, arguments)
    assert not (tmp_path / "x").exists()


def test_arguments_must_be_plain(small: Compact, tmp_path: Path) -> None:
    with pytest.raises(CompactError, match="must be plain values"):
        small.save(tmp_path, MAKE, DIGITS | {"dtype": torch.float32})


def change(folder: Path, **values: Any) -> None:
    plan = json.loads((folder / "plan.json").read_text())
    (folder / "plan.json").write_text(json.dumps(plan | values))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"format": "other"}, "not the plan of a compact model"),
        ({"version": 1}, "written by dessilbi 0.1"),
        ({"version": 3}, "of version 3; this dessilbi reads version 2"),
        ({"plan": {}}, "is damaged"),
        ({"weights": {"file": "model.safetensors", "crc32": 1}}, "checksum does not match"),
        ({"weights": {"file": "gone.safetensors", "crc32": 1}}, "missing or damaged"),
        ({"constructor": None}, "is damaged"),
    ],
)
def test_foreign_and_newer_plans(folder: Path, values: dict[str, Any], message: str) -> None:
    change(folder, **values)
    with pytest.raises(FormatError, match=message):
        load_compact(folder)


def test_damaged_files(folder: Path) -> None:
    weights = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(weights[:-9])
    with pytest.raises(FormatError, match="checksum"):
        load_compact(folder)
    (folder / "plan.json").write_text("{")
    with pytest.raises(FormatError, match="not JSON"):
        load_compact(folder)
    (folder / "plan.json").unlink()
    with pytest.raises(FileNotFoundError, match="holds no compact model"):
        load_compact(folder)


def test_a_plan_with_impossible_indices(folder: Path) -> None:
    plan = json.loads((folder / "plan.json").read_text())
    plan["plan"]["tensors"]["conv1.weight"]["stays"]["0"] = "0-99"
    change(folder, plan=plan["plan"])
    with pytest.raises(CompactError, match=r"slices that a tensor of shape \(16, 1, 3, 3\) does"):
        load_compact(folder)
    plan["plan"]["tensors"]["conv1.weight"]["stays"]["0"] = "zero"
    change(folder, plan=plan["plan"])
    with pytest.raises(FormatError, match="damaged"):
        load_compact(folder)


def test_a_weights_file_outside_the_folder_is_not_read(folder: Path) -> None:
    change(folder, weights={"file": "../../model.safetensors", "crc32": 0})
    with pytest.raises(FormatError, match="checksum"):  # the folder's own was read
        load_compact(folder)


def test_a_constructor_of_another_network_when_loading(folder: Path) -> None:
    def other() -> nn.Module:
        return lab_net("lenet-300-100", 8, 1)

    with pytest.raises(CompactError, match="made for another network"):
        load_compact(folder, other)

"""The README's Python runs, block after block, as a reader would paste it."""

import re
from pathlib import Path

import pytest
import torch
from torch import nn

README = Path(__file__).parents[1] / "README.md"


def blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)


def test_the_blocks_run_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    model = nn.Sequential()
    model.add_module("conv", nn.Conv2d(1, 4, 3, bias=False))
    model.add_module("bn", nn.BatchNorm2d(4))
    model.add_module("flatten", nn.Flatten())
    model.add_module("fc1", nn.Linear(4 * 36, 8))
    model.add_module("head", nn.Linear(8, 2))
    x, y = torch.randn(16, 1, 8, 8), torch.randint(2, (16,))
    seen: list[nn.Module] = []
    names = {
        "torch": torch,
        "model": model,
        "loader": [(x, y)] * 150,  # until filters have entered
        "epochs": 2,
        "loss_fn": nn.CrossEntropyLoss(),
        "inputs": [x],
        "epoch": 2,
        "loss": 0.5,
        "evaluate": seen.append,
    }
    found = blocks()
    assert len(found) >= 4
    for block in found:
        exec(compile(block, str(README), "exec"), names)
        names |= {"epoch": 2, "loss": 0.5}
    assert capsys.readouterr().out.count("of the weights are in Gamma") == 2
    assert set(names["support"]) == {"conv.weight", "fc1.weight", "head.weight"}
    assert seen == [model]
    assert (tmp_path / "path.safetensors").stat().st_size > 0


def test_files_that_it_links_to_exist() -> None:
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", README.read_text())
    assert links
    for link in links:
        assert (README.parent / link).exists(), link

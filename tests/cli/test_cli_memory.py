"""A training process keeps the memory that it frees."""

from __future__ import annotations

import platform
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from dessilbi.cli import main, memory
from dessilbi.lab.run.config import to_json
from dessilbi.lab.run.options import RunOptions
from dessilbi.lab.training.loop import train
from lab_runs import SMALL

if TYPE_CHECKING:
    from pathlib import Path

COUNT = """
import resource, sys
import torch
from dessilbi.cli.memory import keep_freed_memory

def step():
    activations = [torch.ones(2**20) for _ in range(8)]  # 4 MB each
    gradient = torch.ones(2**24)

if sys.argv[1] == "keep":
    assert keep_freed_memory()
for _ in range(4):
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(4):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="about the GNU C library")
def test_no_page_is_cleared_twice() -> None:
    faults = {
        word: int(subprocess.check_output([sys.executable, "-c", COUNT, word], text=True))
        for word in ("keep", "default")
    }
    pages = 4 * (8 * 2**20 + 2**24) * 4 // 4096
    assert faults["default"] > pages / 2, "nothing to gain here: the test has lost its point"
    assert faults["keep"] < pages / 20


def test_other_libraries_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory.ctypes, "CDLL", lambda _name: object())
    assert not memory.keep_freed_memory()


def test_train_as_a_library_call_leaves_the_allocator_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the command line changes the process, which is its own."""
    asked: list[object] = []
    load = memory.ctypes.CDLL

    def watched(name: str | None) -> object:
        asked.append(name)
        return load(name)

    monkeypatch.setattr(memory.ctypes, "CDLL", watched)
    config = replace(SMALL, epochs=1, keep=())
    train(config, RunOptions(runs=tmp_path / "library"))
    assert None not in asked, "the process itself was asked for its allocator"
    (tmp_path / "config.json").write_text(to_json(config))
    main(["train", str(tmp_path / "config.json"), "--runs", str(tmp_path / "command")])
    assert None in asked

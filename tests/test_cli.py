"""The command line: every fault that a user can mend is one message, no traceback."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from dessilbi import __version__
from dessilbi.cli import main
from dessilbi.lab.data import places

QUICK = ["--model.name", "lenet-300-100", "--epochs", "1", "--batch-size", "512"]


class Said(NamedTuple):
    """What a command printed, and its exit code."""

    code: str | int | None
    out: str
    err: str


class Shell:
    """Runs commands in an empty directory."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys

    def __call__(self, *arguments: str) -> Said:
        code: str | int | None = 0
        try:
            main(list(arguments))
        except SystemExit as stop:
            code = stop.code
        said = Said(code, *self.capsys.readouterr())
        assert "Traceback" not in said.err
        return said


@pytest.fixture
def dessilbi(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Shell:
    monkeypatch.chdir(tmp_path)
    return Shell(capsys)


def only_run(folder: Path = Path("runs")) -> Path:
    (run,) = folder.iterdir()
    return run


# ---------------------------------------------------------------------- asking


def test_help_names_the_commands(dessilbi: Shell) -> None:
    for argument in ("--help", "-h", "help"):
        said = dessilbi(argument)
        assert said.code == 0
        assert "usage: dessilbi COMMAND" in said.out
        assert {"demo", "train"} <= set(said.out.split())


def test_nothing_is_answered_with_help_and_a_fault(dessilbi: Shell) -> None:
    said = dessilbi()
    assert said.code == 2
    assert "usage" in said.out


def test_version(dessilbi: Shell) -> None:
    assert dessilbi("--version") == Said(0, f"dessilbi {__version__}\n", "")


def test_help_of_train_lists_recipes_and_options(dessilbi: Shell) -> None:
    said = dessilbi("train", "--help")
    assert said.code == 0
    assert "lenet-300-100-mnist" in said.out
    said = dessilbi("train", "digits", "--help")
    assert said.code == 0
    for option in ("--epochs", "--optimizer.nu", "--runs", "--tensorboard"):
        assert option in said.out


# ---------------------------------------------------------------------- typing errors


@pytest.mark.parametrize(
    ("arguments", "code", "fault"),
    [
        (["trian"], 2, "unknown command 'trian'; did you mean 'train'?"),
        (["train"], 2, "name a recipe first"),
        (["train", "--epochs", "3"], 2, "name a recipe first, then its options"),
        (["train", "digit"], 1, "error: unknown recipe 'digit'; did you mean 'digits'?"),
        (["train", "none.json"], 1, "error: there is no configuration file none.json"),
        (["train", "digits", "--epochs", "-1"], 1, "error: epochs must be >= 0, got -1"),
        (["train", "digits", "--epochs", "ten"], 2, "--epochs"),
        (["train", "digits", "--epoch", "3"], 2, "--epoch"),
        (["train", "digits", "--model.name", "lenet"], 1, "did you mean"),
        (["train", "digits", "--data.name", "digit"], 1, "did you mean 'digits'?"),
        (["train", "digits", "--threads", "0"], 1, "error: threads must be >= 1, got 0"),
        (["train", "digits", "--device", "gpu"], 1, "error: device must be auto, cpu"),
        (["train", "digits", "--optimizer.nu", "-1"], 1, "nu"),
        (["demo", "--fast"], 2, "--fast"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_is_one_message(
    dessilbi: Shell, arguments: list[str], code: int, fault: str
) -> None:
    said = dessilbi(*arguments)
    assert said.code == code
    assert fault in " ".join((said.out + said.err).split())


def test_a_missing_data_set_says_where_it_was_looked_for(
    dessilbi: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DESSILBI_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("DESSILBI_DATA", raising=False)
    monkeypatch.setattr(places, "SYSTEM_DATASETS", tmp_path / "nothing")
    said = dessilbi("train", "lenet-300-100-mnist", "--data-dir", str(tmp_path / "here"))
    assert said.code == 1
    assert said.err.startswith("error: ")
    assert str(tmp_path / "here") in said.err
    assert "--download" in said.err


def test_an_unwritable_folder_is_a_clear_error(dessilbi: Shell, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    said = dessilbi("train", "digits", *QUICK, "--runs", "file")
    assert said.code == 1
    assert "error: cannot write file/" in said.err
    assert "choose another folder with --runs" in said.err


def test_a_loss_of_nan_is_a_clear_error(dessilbi: Shell) -> None:
    said = dessilbi("train", "digits", *QUICK, "--optimizer.lr", "1e6", "--batch-size", "128")
    assert said.code == 1
    assert "error: the loss is not finite at step" in said.err
    assert "Lower the learning rate" in said.err


@pytest.mark.parametrize("package", ["tyro", "sklearn"])
def test_a_missing_extra_is_named(package: str, tmp_path: Path) -> None:
    """In a process of its own: an import that failed half-way must not meet other tests."""
    code = (
        f"import sys; sys.modules[{package!r}] = None\n"
        "from dessilbi.cli import main; main(['train', 'digits', '--epochs', '1'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 1
    assert "pip install 'dessilbi[lab]'" in done.stderr
    assert "Traceback" not in done.stderr


# ---------------------------------------------------------------------- training


def test_train_then_again_then_from_its_config(dessilbi: Shell) -> None:
    first = dessilbi("train", "digits", *QUICK, "--optimizer.nu", "3")
    assert first.code == 0
    run = only_run()
    config = json.loads((run / "config.json").read_text())
    assert (config["optimizer"]["nu"], config["epochs"]) == (3.0, 1)
    assert "done: 1 epochs" in first.out
    assert f"run directory: {run}" in first.out

    before = (run / "metrics.jsonl").read_bytes()
    for arguments in (["digits", *QUICK, "--optimizer.nu", "3"], [str(run / "config.json")]):
        again = dessilbi("train", *arguments)
        assert again.code == 0
        assert "training images" not in again.out, "nothing is trained"
        assert again.out.startswith("done: 1 epochs")
    assert only_run() == run
    assert (run / "metrics.jsonl").read_bytes() == before


def test_a_configuration_file_with_an_unknown_key_is_refused(
    dessilbi: Shell, tmp_path: Path
) -> None:
    (tmp_path / "mine.json").write_text('{"epochs": 1, "optimizer": {"learning_rate": 1}}')
    said = dessilbi("train", "mine.json")
    assert said.code == 1
    assert "mine.json is not a valid configuration: optimizer.learning_rate" in said.err
    assert not Path("runs").exists()


def test_a_damaged_checkpoint_is_a_clear_error(dessilbi: Shell) -> None:
    dessilbi("train", "digits", *QUICK)
    state = only_run() / "checkpoint-last" / "state.json"
    state.write_bytes(b"\x80garbage")
    said = dessilbi("train", "digits", *QUICK)
    assert said.code == 1
    assert f"error: {state} is damaged" in said.err


def test_demo_tells_the_story_and_names_its_files(dessilbi: Shell) -> None:
    said = dessilbi("demo", "--runs", "shown")
    assert said.code == 0
    run = only_run(Path("shown"))
    lines = said.out.splitlines()

    (start,) = (i for i, line in enumerate(lines) if line.startswith("layer"))
    table = {line.split()[0]: line for line in lines[start + 1 : start + 4]}
    assert table.keys() == {"conv1.weight", "conv2.weight", "fc.weight"}
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    entered = {}
    for layer, line in table.items():
        densities = [r["densities"][layer] for r in records]
        entered[layer] = next(e for e, d in enumerate(densities, start=1) if d > 0)
        assert f"{densities[-1]:.1%}" in line
        assert line.endswith(f"epoch {entered[layer]}")
    for kind, value in (("sparse", "recalibrated_accuracy"), ("dense", "accuracy")):
        (line,) = (line for line in lines if line.startswith(f"{kind} accuracy"))
        assert f"{records[-1][value]:.1f}%" in line
    earliest = min(entered, key=lambda layer: (entered[layer], layer))
    assert f"Entered first: {earliest}." in said.out
    assert records[-1]["accuracy"] > 90

    named = [line.split()[0] for line in lines[lines.index("To look at:") + 1 :]]
    assert len(named) >= 4
    assert all(Path(name).exists() for name in named)

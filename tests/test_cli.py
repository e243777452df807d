"""The command line: every fault that a user can mend is one message, no traceback."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from dessilbi import __version__, cli
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
        assert {"demo", "train", "path", "subnet"} <= set(said.out.split())


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


@pytest.mark.parametrize("command", ["path", "subnet", "compact", "export", "frontier", "theory"])
def test_help_of_a_command_needs_no_torch(command: str) -> None:
    code = (
        "import sys; from dessilbi.cli import main\n"
        f"try: main([{command!r}, '--help'])\n"
        "except SystemExit as stop: assert stop.code == 0\n"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert f"usage: dessilbi {command}" in done.stdout


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
        (["frontier", "run", "--threads", "0"], 1, "error: threads must be >= 1, got 0"),
        (["frontier", "run", "--densities"], 1, "error: name at least one density"),
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


def test_extras_hold_what_the_command_line_says() -> None:
    """A package is imported by its name, but for scikit-learn."""
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    for extra, modules in cli._EXTRAS.items():
        packages = {re.split(r"\W*>=", one)[0] for one in project["optional-dependencies"][extra]}
        assert {"scikit-learn" if m == "sklearn" else m for m in modules} == packages


@pytest.mark.parametrize(
    ("module", "said"),
    [
        ("onnxruntime.capi", "pip install 'dessilbi[compact]'"),
        ("matplotlib", "pip install 'dessilbi[report]'"),
        ("torchvision", "pip install 'dessilbi[imagenet]'"),
        ("my_models", "a module that is not installed: No module named 'my_models'"),
        ("fcntl", "the command line needs Linux or macOS"),
    ],
)
def test_only_an_extra_that_helps_is_suggested(
    dessilbi: Shell, monkeypatch: pytest.MonkeyPatch, module: str, said: str
) -> None:
    def missing() -> None:
        raise ModuleNotFoundError(f"No module named {module!r}", name=module)

    monkeypatch.setattr("dessilbi.cli.subnet.path", missing)
    found = dessilbi("path")
    assert found.code == 1
    assert said in found.err
    assert ("pip install" in found.err) == ("pip install" in said)


def test_a_closed_pipe_is_no_fault(dessilbi: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def closed() -> None:
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr("dessilbi.cli.subnet.path", closed)
    assert dessilbi("path") == Said(1, "", "")


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


def test_demo_shows_the_path_and_what_the_support_alone_scores(dessilbi: Shell) -> None:
    said = dessilbi("demo", "--runs", "shown")
    assert said.code == 0
    run = only_run(Path("shown"))
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    last = records[-1]
    assert last["accuracy"] > 90
    path = dessilbi("path", str(run)).out
    assert path in said.out
    for layer in ("conv1.weight", "conv2.weight", "fc.weight"):
        assert f"  {layer}: " in path
    near = next(r for r in records if r["recalibrated_accuracy"] >= last["accuracy"] - 1)
    sentence = f"At epoch {near['epoch']} the support of Gamma holds {near['density']:.0%}"
    assert sentence in said.out
    assert said.out.rstrip().endswith(f"dessilbi report {run}")


# ---------------------------------------------------------------------- paths and subnetworks


TRAIN = ["train", "digits", *QUICK, "--optimizer.nu", "2", "--optimizer.c", "0.1"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = tmp_path_factory.mktemp("trained")
    main([*TRAIN, "--epochs", "2", "--keep", "1", "--runs", str(runs)])
    return only_run(runs)


@pytest.fixture
def run(trained: Path, dessilbi: Shell) -> str:
    """A run of two epochs whose first is kept."""
    dessilbi.capsys.readouterr()
    return str(shutil.copytree(trained, Path("runs") / trained.name))


def child(word: str) -> Path:
    (found,) = Path("runs").glob(f"*-{word}-*")
    return found


def records(run: Path | str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (Path(run) / "metrics.jsonl").read_text().splitlines()]


def test_path_prints_a_line_an_epoch_and_a_line_a_layer(dessilbi: Shell, run: str) -> None:
    said = dessilbi("path", run)
    assert said.code == 0
    lines = said.out.splitlines()
    assert lines[0].split() == ["epoch", "density", "dense", "sparse", "recal.", "gap"]
    rows = [line.split() for line in lines[1:4]]
    assert [row[0] for row in rows] == ["0", "1", "2"]
    assert rows[0][1:5] == ["0.0000", "-", "-", "-"]
    for row, record in zip(rows[1:], records(run), strict=True):
        kinds = ("accuracy", "sparse_accuracy", "recalibrated_accuracy")
        assert row[1:5] == [f"{record['density']:.4f}", *(f"{record[k]:.2f}" for k in kinds)]
    assert "settled" not in said.out
    for layer in ("fc1.weight", "fc2.weight", "fc3.weight"):
        assert f"  {layer}: " in said.out


def test_path_marks_the_epoch_at_which_the_run_settled(dessilbi: Shell) -> None:
    rule = ["--stop-when-stable", "--stop.window", "1", "--stop.tolerance", "0.6"]
    said = dessilbi(*TRAIN, "--epochs", "9", *rule)
    assert said.code == 0
    epochs = len(records(only_run()))
    assert 9 > epochs > 1
    assert f"done: {epochs} epochs" in said.out
    again = dessilbi(*TRAIN, "--epochs", "9", *rule)
    assert again.out.startswith(f"done: {epochs} epochs")
    shown = dessilbi("path", str(only_run())).out
    (line,) = (line for line in shown.splitlines() if line.endswith("   settled"))
    assert line.split()[0] == str(epochs)
    said = dessilbi("subnet", str(only_run()), "--stable")
    assert said.code == 0
    assert f"settled at epoch {epochs}: " in said.out


def test_subnet_as_it_is(dessilbi: Shell, run: str) -> None:
    said = dessilbi("subnet", run, "--density", "0.3")
    assert said.code == 0
    (record,) = records(child("one-shot"))
    assert record["density"] == pytest.approx(0.3, abs=1e-4)
    assert "done: 0 epochs" in said.out
    told = " ".join(said.out.split())
    assert f"30.00% of the weights, values of last; before training {record['accuracy']:.2f} %" in (
        told
    )
    again = dessilbi("subnet", run, "--density", "0.3")
    assert again.code == 0
    assert again.out.startswith("done: 0 epochs"), "nothing is done again"


def test_subnet_retrained_with_another_optimizer(dessilbi: Shell, run: str) -> None:
    options = ["--density", "0.3", "--retrain", "finetune", "--with", "sgd-mom-wd"]
    said = dessilbi("subnet", run, *options)
    assert said.code == 0
    config = json.loads((child("finetune") / "config.json").read_text())
    assert (config["optimizer"]["name"], config["optimizer"]["momentum"]) == ("sgd", 0.9)
    assert config["optimizer"]["lr"] == records(run)[-1]["lr"]
    assert config["schedule"]["kind"] == "constant"
    assert [r["epoch"] for r in records(child("finetune"))] == [0, 1]
    assert "done: 1 epochs" in said.out
    assert not (child("finetune") / "path.safetensors").exists()


def test_subnet_rewound_and_continued_by_train(dessilbi: Shell, run: str) -> None:
    assert dessilbi("subnet", run, "--parameters", "900", "--retrain", "rewind:1").code == 0
    config = child("rewind") / "config.json"
    again = dessilbi("train", str(config))
    assert again.code == 0
    assert again.out.startswith("done: 1 epochs")


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ([], "choose one of --density, --parameters, --epoch and --stable"),
        (["--density", "0.3", "--stable"], "choose one of --density, --parameters"),
        (["--density", "3"], "density"),
        (["--epoch", "7"], "epoch 7 was not recorded; recorded epochs: 0, 1, 2"),
        (["--stable"], "the support did not settle within"),
        (["--density", "0.3", "--retrain", "rewind:2"], "no checkpoint-2; train it with --keep 2"),
        (["--density", "0.3", "--retrain", "again"], "retrain must be scratch, scratch-b"),
        (["--density", "0.3", "--with", "sdg"], "--with must name one of sgd-naive"),
        (["--density", "0.3", "--retrain", "scratch", "--epochs", "-1"], "epochs must be >= 0"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_about_a_subnetwork(
    dessilbi: Shell, run: str, options: list[str], fault: str
) -> None:
    said = dessilbi("subnet", run, *options)
    assert said.code == 1
    assert said.err.startswith("error: ")
    assert fault in said.err
    assert str(only_run()) == run, "nothing is left behind"


@pytest.mark.parametrize("command", [["path"], ["subnet", "--density", "0.3"]], ids=lambda c: c[0])
def test_what_is_not_a_run_with_a_path_is_refused(dessilbi: Shell, command: list[str]) -> None:
    said = dessilbi(*command, "nowhere")
    assert said.code == 1
    assert "error: nowhere is not a run directory: it has no config.json" in said.err
    dessilbi("train", "digits", "--with", "sgd-mom", *QUICK)
    said = dessilbi(*command, str(only_run()))
    assert said.code == 1
    assert "has no path.safetensors: only runs of DessiLBI record one" in said.err


@pytest.mark.parametrize("option", [["--with", "adam"], ["--with=adam"]], ids=" ".join)
def test_train_with_another_optimizer(dessilbi: Shell, option: list[str]) -> None:
    said = dessilbi("train", "digits", *QUICK, *option, "--optimizer.lr", "0.002")
    assert said.code == 0
    config = json.loads((only_run() / "config.json").read_text())
    assert config["name"] == "digits-adam"
    assert (config["optimizer"]["name"], config["optimizer"]["lr"]) == ("adam", 0.002)
    assert not (only_run() / "path.safetensors").exists()


@pytest.mark.parametrize("option", [["--with", "adamm"], ["--with"]], ids=" ".join)
def test_an_unknown_optimizer_is_refused(dessilbi: Shell, option: list[str]) -> None:
    said = dessilbi("train", "digits", *QUICK, *option)
    assert said.code == 1
    assert "error: --with must name one of sgd-naive, " in said.err
    assert not Path("runs").exists()


def test_train_until_the_support_has_settled(dessilbi: Shell) -> None:
    """One epoch is less than the rule compares."""
    said = dessilbi("train", "digits", *QUICK, "--stop-when-stable")
    assert said.code == 0
    config = json.loads((only_run() / "config.json").read_text())
    assert config["stop"]["when_stable"] is True
    assert "done: 1 epochs" in said.out

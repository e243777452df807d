"""A run directory: whole files or none, clear errors, nothing lost, nothing unpickled."""

from __future__ import annotations

import ast
import errno
import os
import pickle
import shutil
import subprocess
import sys
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

import dessilbi
from dessilbi.lab.run.config import to_json
from dessilbi.lab.run.directory import Checkpoint, RunDir, RunError
from dessilbi.lab.run.files import LAST
from dessilbi.lab.run.options import RunOptions
from dessilbi.lab.training.loop import train
from lab_runs import SMALL, Crash, CrashAt, assert_same_run, uninterrupted, weights_of

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    return uninterrupted(SMALL, tmp_path_factory.mktemp("reference"))


@pytest.fixture
def begun(tmp_path: Path) -> RunDir:
    """A run that crashed in its second epoch."""
    with pytest.raises(Crash):
        train(SMALL, RunOptions(runs=tmp_path), CrashAt(8))
    return RunDir(tmp_path / SMALL.run_name)


# ---------------------------------------------------------------------- disks that refuse


class Failing:
    """``os.fsync`` that fails from its n-th call on: by then the bytes should be on the disk."""

    def __init__(self, good_calls: int, code: int) -> None:
        self.left, self.code, self.fsync = good_calls, code, os.fsync

    def __call__(self, fd: int) -> None:
        if self.left == 0:
            raise OSError(self.code, os.strerror(self.code))
        self.left -= 1
        self.fsync(fd)


def test_a_full_disk_at_any_write_loses_nothing(
    reference: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One run, out of space again and again; every time what was saved before can be loaded."""
    epoch = 0
    for good_calls in count(0, 3):
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", Failing(good_calls, errno.ENOSPC))
            try:
                train(SMALL, RunOptions(runs=tmp_path))
                break
            except RunError as error:
                assert "the disk is full; free some space and run the same" in str(error)  # noqa: PT017
                assert "Earlier checkpoints are kept" in str(error)  # noqa: PT017
        last = RunDir(tmp_path / SMALL.run_name).load(LAST)
        assert last is not None or epoch == 0
        if last is not None:
            assert last.state["epoch"] >= epoch
            epoch = last.state["epoch"]
    assert good_calls > 9
    assert_same_run(RunDir(tmp_path / SMALL.run_name), reference)


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of a megabyte, where this user may mount one."""
    if not os.environ.get("DESSILBI_SYSTEM_TESTS"):
        pytest.skip("mounts a file system: set DESSILBI_SYSTEM_TESTS=1 to allow it")
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = shutil.which("mount")
    if mount is None or os.geteuid() != 0:
        pytest.skip("only root can mount a small file system")
    made = subprocess.run(
        [mount, "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], capture_output=True
    )
    if made.returncode:
        pytest.skip("no permission to mount a small file system")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_disk_that_is_really_full(tiny_disk: Path, reference: RunDir) -> None:
    """A checkpoint of 0.6 MB fits once, and the next does not."""
    place = RunOptions(runs=tiny_disk)
    config = replace(SMALL, keep=())
    with pytest.raises(RunError, match="the disk is full"):
        train(config, place)
    run = RunDir(tiny_disk / config.run_name)
    assert all(w.isfinite().all() for w in weights_of(run).values())
    assert not list(run.path.rglob("*.tmp"))
    subprocess.run(["mount", "-o", "remount,size=64m", str(tiny_disk)], check=True)
    train(config, place)
    assert (run.path / "metrics.jsonl").read_bytes() == (
        reference.path / "metrics.jsonl"
    ).read_bytes()


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (errno.EACCES, "no permission; choose another folder with --runs"),
        (errno.EROFS, "the file system is read-only; choose another folder with --runs"),
        (errno.EDQUOT, "the disk quota is used up"),
        (errno.EIO, "Input/output error"),
    ],
)
def test_what_the_system_refuses_is_said_in_words(
    begun: RunDir, monkeypatch: pytest.MonkeyPatch, code: int, words: str
) -> None:
    before = weights_of(begun)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", Failing(0, code))
        with pytest.raises(RunError, match=f"cannot write {begun.path}") as caught:
            train(SMALL, RunOptions(runs=begun.path.parent))
    assert words in str(caught.value)
    assert all(torch.equal(w, before[name]) for name, w in weights_of(begun).items())


def test_a_folder_below_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="a part of the path is a file; choose another folder"):
        train(SMALL, RunOptions(runs=tmp_path / "file"))


def test_a_folder_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(RunError, match="no permission; choose another folder with --runs"):
        train(SMALL, RunOptions(runs=tmp_path / "locked"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_is_read_only(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(RunError, match="no permission; choose another folder with --runs"):
        train(SMALL, RunOptions(runs=tmp_path / "runs"))


# ---------------------------------------------------------------------- damage


def _tensor_file(run: RunDir) -> Path:
    (file,) = (run.path / LAST).glob("*.safetensors")
    return file


def _flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-5] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize(
    "damage",
    [
        lambda file: file.write_bytes(file.read_bytes()[:-100]),
        lambda file: file.write_bytes(b""),
        lambda file: file.unlink(),
        _flip,
    ],
    ids=["cut short", "empty", "missing", "one bit"],
)
def test_damaged_tensors_are_refused_with_a_way_out(begun: RunDir, damage: Any) -> None:
    file = _tensor_file(begun)
    damage(file)
    with pytest.raises(RunError) as caught:
        train(SMALL, RunOptions(runs=begun.path.parent))
    assert str(file) in str(caught.value)
    assert f"remove {file.parent} to start from the beginning" in str(caught.value)


@pytest.mark.parametrize(
    "content",
    [b"", b'{"tensors": "0', b"{}", b"[]", b"null", b'{"tensors": "x", "crc32": 1}', b"\x80\xff"],
)
def test_a_damaged_state_is_refused_with_a_way_out(begun: RunDir, content: bytes) -> None:
    state = begun.path / LAST / "state.json"
    state.write_bytes(content)
    with pytest.raises(RunError) as caught:
        train(SMALL, RunOptions(runs=begun.path.parent))
    assert f"{state} is damaged" in str(caught.value)
    assert f"remove {state.parent} to start from the beginning" in str(caught.value)


def test_the_way_out_works(begun: RunDir, reference: RunDir) -> None:
    _flip(_tensor_file(begun))
    shutil.rmtree(begun.path / LAST)
    assert_same_run(train(SMALL, RunOptions(runs=begun.path.parent)), reference)


def test_a_line_that_was_cut_short_is_forgotten(begun: RunDir, reference: RunDir) -> None:
    with (begun.path / "metrics.jsonl").open("a") as file:
        file.write('{"epoch": 2, "lr": 0.')
    assert [r["epoch"] for r in begun.records()] == [1]
    assert_same_run(train(SMALL, RunOptions(runs=begun.path.parent)), reference)


def test_lines_of_a_later_epoch_than_the_checkpoint_are_written_anew(
    begun: RunDir, reference: RunDir
) -> None:
    begun.append("metrics.jsonl", {"epoch": 2, "accuracy": 0.0})
    assert_same_run(train(SMALL, RunOptions(runs=begun.path.parent)), reference)


# ---------------------------------------------------------------------- whose directory is it


def test_a_directory_of_another_configuration_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / SMALL.run_name
    folder.mkdir()
    (folder / "config.json").write_text(to_json(replace(SMALL, seed=7)))
    with pytest.raises(RunError, match="holds another configuration under the same name; move it"):
        RunDir.of(SMALL, tmp_path)


def test_what_is_no_run_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"is not a run directory: it has no config\.json"):
        RunDir.open(tmp_path)


def test_the_configuration_is_found_again(tmp_path: Path) -> None:
    run = RunDir.of(SMALL, tmp_path)
    assert RunDir.open(run.path).config() == SMALL
    assert RunDir.of(SMALL, tmp_path) == run


def test_two_processes_cannot_share_a_run(tmp_path: Path) -> None:
    run = RunDir.of(SMALL, tmp_path)
    with run.lock(), pytest.raises(RunError, match="is in use by another process"):
        train(SMALL, RunOptions(runs=tmp_path))
    with run.lock():  # given back
        pass


def test_a_lock_dies_with_its_process(tmp_path: Path) -> None:
    run = RunDir.of(SMALL, tmp_path)
    hold = (
        "import fcntl, sys; file = open(sys.argv[1], 'w'); fcntl.flock(file, fcntl.LOCK_EX);"
        "print('held', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", hold, str(run.path / ".lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    with pytest.raises(RunError, match="is in use by another process"), run.lock():
        pass
    holder.kill()
    holder.communicate()
    with run.lock():
        pass


# ---------------------------------------------------------------------- checkpoints


def test_a_checkpoint_is_kept_until_the_next_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunDir.of(SMALL, tmp_path)
    old = Checkpoint({"model/w": torch.zeros(3)}, {"epoch": 1, "batch": 0})
    new = Checkpoint({"model/w": torch.ones(3)}, {"epoch": 2, "batch": 0})
    run.save(LAST, old)
    for good_calls in (0, 1):  # the tensors, then the state that names them
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", Failing(good_calls, errno.ENOSPC))
            with pytest.raises(RunError):
                run.save(LAST, new)
        assert weights_of(run)["w"].tolist() == [0, 0, 0]
    run.save(LAST, new)
    assert weights_of(run)["w"].tolist() == [1, 1, 1]
    assert len(list((run.path / LAST).iterdir())) == 2


def test_no_checkpoint_is_none(tmp_path: Path) -> None:
    assert RunDir.of(SMALL, tmp_path).load(LAST) is None


# ---------------------------------------------------------------------- nothing is unpickled


class Malicious:
    """Leaves a file when it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.trace),)


@pytest.mark.parametrize("save", [pickle.dumps, "torch"], ids=["pickle", "torch.save"])
@pytest.mark.parametrize("name", ["tensors", "state.json"])
def test_a_pickle_in_the_place_of_a_checkpoint_is_refused(
    begun: RunDir, tmp_path: Path, name: str, save: Any
) -> None:
    file = _tensor_file(begun) if name == "tensors" else begun.path / LAST / name
    trace = tmp_path / "executed"
    if save == "torch":
        torch.save({"model/w": Malicious(trace)}, file)
    else:
        file.write_bytes(save(Malicious(trace)))
    with pytest.raises(RunError, match="damaged"):
        train(SMALL, RunOptions(runs=begun.path.parent))
    assert not trace.exists()


def test_tensors_without_a_checksum_are_not_unpickled_either(begun: RunDir, tmp_path: Path) -> None:
    (begun.path / "init.safetensors").write_bytes(pickle.dumps(Malicious(tmp_path / "executed")))
    with pytest.raises(RunError, match=r"init\.safetensors is missing or damaged"):
        begun.read_tensors("init.safetensors")
    assert not (tmp_path / "executed").exists()


UNSAFE_MODULES = {"pickle", "cPickle", "_pickle", "dill", "joblib", "shelve", "marshal"}


def _unsafe(tree: ast.AST) -> list[str]:
    """Imports and calls that can execute what a file says."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [a.name for a in node.names if a.name.split(".")[0] in UNSAFE_MODULES]
        elif isinstance(node, ast.ImportFrom):
            if (node.module or "").split(".")[0] in UNSAFE_MODULES:
                found.append(str(node.module))
            elif node.module == "torch":
                found += [f"torch.{a.name}" for a in node.names if a.name == "load"]
        elif isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called == "torch.load" or any(k.arg == "allow_pickle" for k in node.keywords):
                found.append(called)
    return found


@pytest.mark.parametrize(
    "line",
    [
        "import pickle",
        "from joblib import load",
        "from torch import load",
        "torch.load(f, weights_only=False)",
        "np.load(f, allow_pickle=True)",
    ],
)
def test_what_unpickles_would_be_noticed(line: str) -> None:
    assert _unsafe(ast.parse(line))


def test_no_source_file_unpickles() -> None:
    root = Path(dessilbi.__file__).parent
    files = {str(f.relative_to(root)): f for f in root.rglob("*.py")}
    found = {name: _unsafe(ast.parse(f.read_text())) for name, f in files.items()}
    assert "lab/run/checkpoint.py" in found
    assert {name: calls for name, calls in found.items() if calls} == {}

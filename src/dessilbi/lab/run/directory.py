"""A run directory: written so that no interruption can spoil it; :mod:`.files` says what is in it.

Every file is written to a temporary name, flushed, and renamed. A checkpoint is a tensor file and a
``state.json`` that names it: the rename of ``state.json`` is the moment it counts.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import zlib
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dessilbi._disk import write_whole
from dessilbi.errors import DessilbiError
from dessilbi.lab.run.config import Config, from_json, to_json
from dessilbi.lab.run.files import CONFIG, LAST, LOCK, METRICS, STATE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import Tensor


class RunError(DessilbiError, RuntimeError):
    """A run directory that cannot be read or written; the message says what to do."""


class Busy(RunError):  # noqa: N818 - nothing is wrong with the run
    """Another process works on the run."""


@dataclass(frozen=True)
class Checkpoint:
    """Tensors by name, and plain values."""

    tensors: dict[str, Tensor]
    state: dict[str, Any]

    def part(self, name: str) -> dict[str, Tensor]:
        """The tensors below ``name/``: ``model``, ``optimizer`` or ``random``."""
        start = f"{name}/"
        return {k.removeprefix(start): t for k, t in self.tensors.items() if k.startswith(start)}

    def add(self, name: str, tensors: Mapping[str, Tensor]) -> None:
        """Add tensors below ``name/``."""
        self.tensors.update({f"{name}/{k}": t.cpu().contiguous() for k, t in tensors.items()})


@dataclass(frozen=True)
class RunDir:
    """One run directory."""

    path: Path

    @classmethod
    def of(cls, config: Config, runs: Path) -> RunDir:
        """The directory of a configuration, made if needed, with its ``config.json``."""
        run = cls(runs / config.run_name)
        with clear_errors(run.path):
            run.path.mkdir(parents=True, exist_ok=True)
        if not (run.path / CONFIG).exists():
            run.write(CONFIG, to_json(config).encode())
        elif run.config() != from_json(to_json(config)):
            raise RunError(
                f"{run.path} holds another configuration under the same name; "
                "move it away or choose another --runs folder"
            )
        return run

    @classmethod
    def open(cls, path: str | Path) -> RunDir:
        """An existing run directory."""
        path = Path(path)
        if not (path / CONFIG).is_file():
            raise RunError(f"{path} is not a run directory: it has no {CONFIG}")
        return cls(path)

    def config(self) -> Config:
        """The configuration that the run was started with."""
        file = self.path / CONFIG
        return from_json(file.read_text(), file)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the run against other processes; released even by kill -9.

        Raises:
            Busy: another process holds it.
            RunError: it cannot be locked at all.
        """
        with clear_errors(self.path):
            file = (self.path / LOCK).open("w")
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise Busy(f"{self.path} is in use by another process") from error
            except OSError as error:
                raise RunError(
                    f"{self.path} cannot be locked against other processes: {error.strerror}; "
                    "choose a folder on another file system with --runs"
                ) from error
            for stale in self.path.rglob(".*.tmp"):  # of a write that was killed
                stale.unlink(missing_ok=True)
            yield

    # ------------------------------------------------------------------ files

    def write(self, name: str, content: bytes) -> None:
        """Write a file whole or not at all."""
        path = self.path / name
        with clear_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, content)

    def write_json(self, name: str, content: Any) -> None:
        """Write plain values as readable JSON."""
        self.write(name, (json.dumps(content, indent=1) + "\n").encode())

    def write_tensors(self, name: str, tensors: dict[str, Tensor]) -> int:
        """Write a safetensors file; returns the checksum of its bytes."""
        from safetensors.torch import save

        content = save(tensors)
        self.write(name, content)
        return zlib.crc32(content)

    def read_tensors(self, name: str, checksum: int | None = None) -> dict[str, Tensor]:
        """Read a safetensors file, refusing a damaged one."""
        from safetensors import SafetensorError
        from safetensors.torch import load

        path = self.path / name
        try:
            content = path.read_bytes()
            if checksum is not None and zlib.crc32(content) != checksum:
                raise SafetensorError("checksum does not match")
            return load(content)
        except (OSError, SafetensorError) as error:
            raise RunError(
                f"{path} is missing or damaged ({error}); "
                f"remove {path.parent} to start from the beginning"
            ) from error

    # ------------------------------------------------------------------ epoch records

    def append(self, name: str, record: dict[str, Any]) -> None:
        """Add a line to a .jsonl file."""
        with clear_errors(self.path / name), (self.path / name).open("a") as file:
            file.write(json.dumps(record) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def records(self, name: str = METRICS) -> list[dict[str, Any]]:
        """The lines of a .jsonl file, epochs by default; a last line cut short is left out."""
        path = self.path / name
        if not path.exists():
            return []
        found = []
        for line in path.read_text().splitlines():
            try:
                found.append(json.loads(line))
            except json.JSONDecodeError:
                break
        return found

    def forget_after(self, name: str, epoch: int) -> None:
        """Drop the records of epochs that the checkpoint does not know."""
        lines = [json.dumps(r) + "\n" for r in self.records(name) if r["epoch"] <= epoch]
        self.write(name, "".join(lines).encode())

    # ------------------------------------------------------------------ checkpoints

    def save(self, name: str, checkpoint: Checkpoint) -> None:
        """Write a checkpoint; the one it replaces stays whole until this one is."""
        state = checkpoint.state
        tensors = f"{state['epoch']:06d}-{state['batch']:09d}.safetensors"
        checksum = self.write_tensors(f"{name}/{tensors}", checkpoint.tensors)
        content = {"tensors": tensors, "crc32": checksum, **state}
        self.write(f"{name}/{STATE}", json.dumps(content, indent=1).encode())
        for old in (self.path / name).glob("*.safetensors"):
            if old.name != tensors:
                old.unlink(missing_ok=True)

    def load(self, name: str = LAST) -> Checkpoint | None:
        """Read a checkpoint; ``None`` if there is none."""
        path = self.path / name / STATE
        if not path.exists():
            return None
        try:
            state = json.loads(path.read_text())
            file, checksum, _ = state["tensors"], state["crc32"], state["epoch"]
        except (ValueError, KeyError, TypeError) as error:  # no text, no JSON, or another's
            raise RunError(
                f"{path} is damaged ({error!r}); remove {path.parent} to start from the beginning"
            ) from error
        return Checkpoint(self.read_tensors(f"{name}/{file}", checksum), state)


@contextmanager
def clear_errors(path: Path, option: str = "--runs") -> Iterator[None]:
    """Say in words what the operating system refuses, and which option leads around it."""
    try:
        yield
    except OSError as error:
        elsewhere = f"choose another folder with {option}"
        reason = {
            errno.ENOSPC: "the disk is full; free some space and run the same command again",
            errno.EDQUOT: "the disk quota is used up; free some space and run the same command",
            errno.EACCES: f"no permission; {elsewhere}",
            errno.EPERM: f"no permission; {elsewhere}",
            errno.EROFS: f"the file system is read-only; {elsewhere}",
            errno.ENOTDIR: f"a part of the path is a file; {elsewhere}",
            errno.EEXIST: f"a part of the path is a file; {elsewhere}",
        }.get(error.errno or 0, f"{error.strerror or error}; {elsewhere}")
        kept = " Earlier checkpoints are kept." if option == "--runs" else ""
        raise RunError(f"cannot write {path}: {reason}.{kept}") from error

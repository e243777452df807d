"""The C++ kernel of the fused step: built in two seconds on first use, then cached.

A plain C interface and no torch headers, so that any C++17 compiler does it quickly and one build
serves every version of torch. torch.compile needs the same compiler on CPU, takes longer and gives
a slower step (``docs/speed.md``).
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

from dessilbi._disk import cache_dir
from dessilbi.errors import DessilbiError

FLAGS = ("-std=c++17", "-O3", "-fopenmp-simd", "-fno-math-errno", "-shared", "-fPIC", "-pthread")


class KernelBuildError(DessilbiError, RuntimeError):
    """The C++ kernel could not be built or loaded."""


@functools.cache
def library() -> ctypes.CDLL:
    """The kernel of the fused step."""
    lib = load_kernel(Path(__file__).with_name("_kernel.cpp"))
    for function in (lib.dessilbi_step_f32, lib.dessilbi_step_f64):
        function.restype = None
        function.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64]
    return lib


def load_kernel(source: Path) -> ctypes.CDLL:
    """The library made of a C++ file with a plain C interface; built once on this machine."""
    tuned = "-mcpu=native" if platform.machine() in {"arm64", "aarch64"} else "-march=native"
    compiler = _compiler()
    options = [*compiler, *FLAGS, tuned]
    command = [*options, str(source)]
    # A home directory may be shared by machines with different processors and compilers.
    version = _output([*compiler, "--version"])
    key = "\n".join([source.read_text(), *options, version, _processor()])
    name = f"{source.stem}-{hashlib.sha256(key.encode()).hexdigest()[:16]}.so"
    with contextlib.suppress(OSError):
        return _load(cache_dir("kernels") / name, command)
    # Built for this process alone: in a folder that all users share, whoever knows its name could
    # have put a library of his own there.
    try:
        with tempfile.TemporaryDirectory(prefix="dessilbi-", ignore_cleanup_errors=True) as folder:
            return _load(Path(folder) / name, command)
    except OSError as error:
        raise KernelBuildError(
            f"cannot write the fused kernel to {cache_dir('kernels')} or to the temporary folder; "
            "set DESSILBI_CACHE to a writable folder, or leave fused=None"
        ) from error


def _load(path: Path, command: list[str]) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(str(path))
    except OSError:  # not there yet, or damaged
        _build(path, command)
        return ctypes.CDLL(str(path))


def _build(path: Path, command: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    # Several processes may build at once: each writes its own file, the rename is atomic.
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        built = Path(scratch) / path.name
        _output([*command, "-o", str(built)])
        built.replace(path)


def _compiler() -> list[str]:
    if chosen := os.environ.get("CXX"):
        return shlex.split(chosen)
    for candidate in ("g++", "c++", "clang++"):
        if found := shutil.which(candidate):
            return [found]
    raise KernelBuildError(
        "fused=True on CPU needs a C++17 compiler: looked for $CXX, g++, c++ and clang++; "
        "install one, or leave fused=None"
    )


def _output(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except FileNotFoundError as error:
        raise KernelBuildError(
            f"compiler {command[0]!r} not found; set CXX, or leave fused=None"
        ) from error
    except subprocess.CalledProcessError as error:
        raise KernelBuildError(
            f"building the fused kernel failed: {shlex.join(command)}\n{error.stderr}"
            "set CXX to another compiler, or leave fused=None"
        ) from error
    return done.stdout


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return "\n".join(
        sorted({s for s in lines if s.startswith(("model name", "flags", "Features"))})
    )

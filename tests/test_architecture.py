"""Rooms and what they may import; an instant ``--help``; public names."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import dessilbi

ROOT = Path(dessilbi.__file__).parent

# The rooms of the design, from the ground up, and the rooms that each may open.
ROOMS: dict[str, set[str]] = {
    "_disk": set(),
    "optim": set(),
    "theory": {"optim"},
    "path": {"optim"},
    "lean": {"optim"},
    "subnet": {"path", "lean"},
    # Not `compact`: that is the name of its function, which `from dessilbi import compact` gives.
    "compaction": {"subnet"},
    "lab": {"theory", "compaction"},
    "paper": {"lab"},
    "report": {"path", "subnet", "lab.rundir", "paper.published"},
    "cli": {"paper", "report"},
    "__main__": {"cli"},
    "__init__": {"cli"},
}
# May be imported from everywhere.
GROUND = "_disk"


def allowed(room: str) -> set[str]:
    """What a room may import: the rooms named in the table, theirs, and itself."""
    opened = {room, GROUND}
    for other in ROOMS[room]:
        # Of a room that is not open as a whole, one module is; nothing follows from that.
        opened |= {other} if "." in other else allowed(other)
    return opened


def imported(source: str, module: str) -> set[str]:
    """Modules of this package that a source text imports, anywhere and for whatever reason."""
    found = set()
    package = module.split(".")[:-1]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*start, *filter(None, [node.module])])
            # 'from dessilbi.lab import train' may name a module or something in one.
            found |= {base} | {f"{base}.{alias.name}" for alias in node.names}
    return {name for name in found if name == "dessilbi" or name.startswith("dessilbi.")}


def module_of(file: Path) -> str:
    return ".".join(["dessilbi", *file.relative_to(ROOT).with_suffix("").parts])


def upward(source: str, module: str) -> set[str]:
    """Imports of a module that its room does not allow."""
    room = module.split(".")[1]
    names = {name.removeprefix("dessilbi").removeprefix(".") for name in imported(source, module)}
    good = allowed(room)

    def fine(name: str) -> bool:
        parts = name.split(".")
        if not name:  # the package itself: its attributes are looked at one by one
            return True
        if parts[0] not in ROOMS:  # a public name, which the package takes from any room
            return room in ("cli", "__main__", "__init__")
        return any(".".join(parts[: len(g.split("."))]) == g for g in good) or any(
            g.startswith(f"{name}.") for g in good
        )

    return {name for name in names if not fine(name)}


@pytest.mark.parametrize("file", sorted(ROOT.rglob("*.py")), ids=module_of)
def test_imports_point_downwards(file: Path) -> None:
    module = module_of(file)
    assert module.split(".")[1] in ROOMS, "a new room needs a line in the table of rooms"
    assert upward(file.read_text(), module) == set()


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("dessilbi.optim.optimizer", "from dessilbi.lab.config import Config"),
        ("dessilbi.optim.optimizer", "import dessilbi.path"),
        ("dessilbi.optim.optimizer", "from ..subnet import mask"),
        ("dessilbi.optim.optimizer", "def f():\n    from dessilbi import lab"),
        ("dessilbi.optim.optimizer", "if TYPE_CHECKING:\n    from dessilbi.theory import x"),
        ("dessilbi.optim.optimizer", "from dessilbi import DessiLBI"),
        ("dessilbi.path.recorder", "from dessilbi.theory.bounds import step_bound"),
        ("dessilbi.subnet.mask", "from dessilbi.compaction import compact"),
        ("dessilbi.lab.train", "from dessilbi.paper.recipes import table"),
        ("dessilbi.lab.data.load", "from ...cli import main"),
        ("dessilbi.report.page", "from dessilbi.lab.train import train"),
        ("dessilbi.report.page", "from dessilbi.lab import train"),
        ("dessilbi._disk", "from dessilbi.optim import DessiLBI"),
    ],
)
def test_an_upward_import_would_be_noticed(module: str, line: str) -> None:
    assert upward(line, module)


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("dessilbi.lab.train", "from dessilbi.optim import DessiLBI"),
        ("dessilbi.lab.data.load", "from dessilbi._disk import cache_dir"),
        ("dessilbi.lab.data.load", "from .mnist import read"),
        ("dessilbi.report.page", "from dessilbi.lab.rundir import RunDir"),
        ("dessilbi.report.page", "from dessilbi.lab import rundir"),
        ("dessilbi.compaction.check", "from dessilbi.optim import DessiLBI"),
        ("dessilbi.cli", "from dessilbi import __version__"),
        ("dessilbi.optim.groups", "import torch"),
    ],
)
def test_a_downward_import_is_fine(module: str, line: str) -> None:
    assert upward(line, module) == set()


def test_every_room_rests_on_the_ground() -> None:
    """The table has no circle: allowed() ends, and nobody reaches a room above."""
    order = list(ROOMS)
    for room in ROOMS:
        reached = {name.split(".")[0] for name in allowed(room)}
        assert all(order.index(other) <= order.index(room) for other in reached)


def modules_after(statement: str) -> set[str]:
    code = f"import sys\ntry:\n    {statement}\nexcept SystemExit:\n    pass\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize("argument", ["--help", "--version", "demmo"])
def test_torch_is_not_imported_for(argument: str) -> None:
    loaded = modules_after(f"from dessilbi.cli import main; main([{argument!r}])")
    assert "dessilbi.cli" in loaded
    assert loaded.isdisjoint({"torch", "numpy", "tyro", "rich", "pydantic", "sklearn"})


def test_the_package_itself_is_light() -> None:
    assert "torch" not in modules_after("import dessilbi; dir(dessilbi)")


def test_the_library_needs_no_extra() -> None:
    """Plain ``pip install`` brings torch, numpy and safetensors."""
    loaded = modules_after("from dessilbi import *")
    assert "torch" in loaded
    assert loaded.isdisjoint({"tyro", "rich", "pydantic", "sklearn", "pooch", "tensorboard"})
    assert loaded.isdisjoint({"onnx", "onnxscript", "onnxruntime", "scipy"})


@pytest.mark.parametrize("name", dessilbi.__all__)
def test_public_names_can_be_imported(name: str) -> None:
    assert getattr(dessilbi, name) is not None
    assert name in dir(dessilbi)


def test_unknown_names_are_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'dessilbi' has no attribute 'Dessilbi'"):
        _ = dessilbi.Dessilbi  # type: ignore[attr-defined]
    with pytest.raises(ImportError):
        importlib.import_module("dessilbi.nowhere")


def test_a_room_does_not_hide_the_function_of_its_name() -> None:
    importlib.import_module("dessilbi.compaction.plan")
    assert callable(dessilbi.compact)
    assert "compact" not in vars(dessilbi)

"""Rooms and what they may import; an instant ``--help``; public names."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import dessilbi
from dessilbi.errors import DessilbiError

ROOT = Path(dessilbi.__file__).parent

# The rooms of the design by floor, and what each may open beside its own and the ground. A room
# that is named may be opened as a whole; rooms of one floor do not open each other.
LIBRARY = {"graph", "optim", "path", "theory", "subnet", "nested", "compaction"}
ROOMS: dict[str, set[str]] = {
    "_disk": set(),
    "_style": set(),
    "_text": set(),
    "errors": set(),
    "graph": set(),
    "optim": {"graph"},
    "path": {"optim", "graph"},
    "theory": {"optim", "graph"},
    "subnet": {"path", "theory", "optim", "graph"},
    "nested": {"subnet", "path", "theory", "optim", "graph"},
    # Not `compact`: that is the name of its function, which `from dessilbi import compact` gives.
    "compaction": {"subnet", "path", "theory", "optim", "graph"},
    "integrations": LIBRARY,
    "lab.data": {"optim", "graph"},
    "lab.models": {"optim", "graph"},
    "lab.run": LIBRARY,
    "lab.training": LIBRARY | {"lab.run", "lab.data", "lab.models"},
    "lab.analysis": LIBRARY | {"lab.run", "lab.data", "lab.models", "lab.training"},
    "paper": LIBRARY | {"lab"},
    "report": LIBRARY | {"lab.run", "paper.published"},
    "cli": LIBRARY | {"lab", "paper", "report"},
    "__main__": {"cli"},
    "__init__": LIBRARY | {"cli"},
}
# May be imported from everywhere.
GROUND = {"_disk", "_style", "_text", "errors"}


def room_of(name: str) -> str | None:
    """The room of a module or name, given without the package's own name."""
    parts = name.split(".")
    return next((r for r in (".".join(parts[:2]), parts[0]) if r in ROOMS), None)


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
    room = room_of(module.removeprefix("dessilbi."))
    assert room is not None, f"{module}: a new room needs a line in the table of rooms"
    opened = {room} | GROUND | ROOMS[room]

    def fine(name: str) -> bool:
        if not name or (name == "lab" and f"{name}." in "".join(names)):
            return True  # a package itself: its attributes are looked at one by one
        if name.split(".")[0] not in {r.split(".")[0] for r in ROOMS}:
            # A public name, which the package takes from any room.
            return room in ("cli", "__main__", "__init__")
        return any(f"{name}.".startswith(f"{one}.") for one in opened)

    names = {name.removeprefix("dessilbi").removeprefix(".") for name in imported(source, module)}
    return {name for name in names if not fine(name)}


@pytest.mark.parametrize("room", ROOMS)
def test_imports_point_downwards(room: str) -> None:
    found = {}
    for file in sorted(ROOT.rglob("*.py")):
        module = module_of(file)
        if room_of(module.removeprefix("dessilbi.")) == room:
            found[module] = upward(file.read_text(), module)
    assert {module: up for module, up in found.items() if up} == {}


def private(source: str, module: str) -> set[str]:
    """Imports of what another room keeps to itself: modules and names that begin with ``_``."""
    room = room_of(module.removeprefix("dessilbi."))
    names = {name.removeprefix("dessilbi.") for name in imported(source, module)}
    return {
        name
        for name in names
        if room_of(name) not in {room, *GROUND}
        and any(part.startswith("_") and not part.startswith("__") for part in name.split("."))
    }


def by_string(source: str, module: str) -> set[str]:
    """Modules of other rooms that a source text names in strings, as for ``import_module``."""
    strings = [node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant)]
    names = {one for one in strings if isinstance(one, str)}
    names = {name for name in names if re.fullmatch(r"(dessilbi|\.)\.[\w.]*", name)}
    room = room_of(module.removeprefix("dessilbi."))
    return {name for name in names if room_of(name.removeprefix("dessilbi.")) != room}


def test_rooms_keep_their_private_modules_to_themselves() -> None:
    files = {module_of(file): file.read_text() for file in ROOT.rglob("*.py")}
    found = {module: private(text, module) for module, text in files.items()}
    assert {module: names for module, names in found.items() if names} == {}


def test_modules_are_imported_by_import() -> None:
    """A string would hide from the tests above; the lazy names of the package are all there is."""
    files = {module_of(file): file.read_text() for file in ROOT.rglob("*.py")}
    found = {module: by_string(text, module) for module, text in files.items()}
    assert {module for module, names in found.items() if names} == {"dessilbi.__init__"}


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("dessilbi.path.recorder", "from dessilbi.optim._step import Item"),
        ("dessilbi.path.recorder", "from dessilbi.optim import _step"),
        ("dessilbi.path.recorder", "import dessilbi.optim._step"),
        ("dessilbi.path.recorder", "from ..optim._step import Item"),
        ("dessilbi.lab.run.files", "from ..data._cache import read"),
        ("dessilbi.subnet.project", "from dessilbi.path.mask import _check_shapes"),
    ],
)
def test_a_private_import_would_be_noticed(module: str, line: str) -> None:
    assert private(line, module)


@pytest.mark.parametrize(
    "line",
    [
        "import_module('dessilbi.nested.widths')",
        "importlib.import_module('..nested', __package__)",
        "import_module(f'dessilbi.{room}')",
        "HOME = {'compact': 'dessilbi.compaction'}",
        "__import__('dessilbi.lab.run')",
    ],
)
def test_an_import_by_string_would_be_noticed(line: str) -> None:
    assert by_string(line, "dessilbi.optim.ties")


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("dessilbi.path.recorder", "from ._events import Events"),
        ("dessilbi.path.recorder", "from dessilbi._disk import write_whole"),
        ("dessilbi.cli", "from dessilbi import __version__"),
    ],
)
def test_what_is_private_may_be_used_at_home(module: str, line: str) -> None:
    assert private(line, module) == set()


def test_every_module_has_a_room() -> None:
    modules = [module_of(file).removeprefix("dessilbi.") for file in ROOT.rglob("*.py")]
    assert [m for m in modules if room_of(m) is None] == ["lab.__init__"]


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("dessilbi.optim.optimizer", "from dessilbi.lab.run.config import Config"),
        ("dessilbi.optim.optimizer", "import dessilbi.path"),
        ("dessilbi.optim.optimizer", "from ..subnet import project"),
        ("dessilbi.optim.optimizer", "def f():\n    from dessilbi import lab"),
        ("dessilbi.optim.optimizer", "if TYPE_CHECKING:\n    from dessilbi.theory import x"),
        ("dessilbi.optim.optimizer", "from dessilbi import DessiLBI"),
        ("dessilbi.path.recorder", "from dessilbi.theory.bounds import step_bound"),
        ("dessilbi.subnet.project", "from dessilbi.compaction import compact"),
        ("dessilbi.lab.training.loop", "from dessilbi.paper.recipes import table"),
        ("dessilbi.lab.data.load", "from ...cli import main"),
        ("dessilbi.report.page", "from dessilbi.lab.training.loop import train"),
        ("dessilbi.report.page", "from dessilbi.lab import train"),
        ("dessilbi._disk", "from dessilbi.optim import DessiLBI"),
    ],
)
def test_an_upward_import_would_be_noticed(module: str, line: str) -> None:
    assert upward(line, module)


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("dessilbi.lab.training.loop", "from dessilbi.optim import DessiLBI"),
        ("dessilbi.lab.data.load", "from dessilbi._disk import cache_dir"),
        ("dessilbi.lab.data.load", "from .mnist import read"),
        ("dessilbi.report.page", "from dessilbi.lab.run.directory import RunDir"),
        ("dessilbi.report.page", "from dessilbi.lab.run import directory"),
        ("dessilbi.compaction.build", "from dessilbi.optim import DessiLBI"),
        ("dessilbi.cli", "from dessilbi import __version__"),
        ("dessilbi.optim.groups", "import torch"),
    ],
)
def test_a_downward_import_is_fine(module: str, line: str) -> None:
    assert upward(line, module) == set()


def test_every_room_rests_on_the_ground() -> None:
    """The table has no circle: nobody opens a room that stands above."""
    order = list(ROOMS)
    for room, opened in ROOMS.items():
        for other in opened:
            inside = [r for r in order if f"{r}.".startswith(f"{other}.")] or [other.split(".")[0]]
            assert all(order.index(one) < order.index(room) for one in inside)


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
    importlib.import_module("dessilbi.graph.plan")
    assert callable(dessilbi.compact)
    assert "compact" not in vars(dessilbi)


def classes_of_errors() -> list[type[Exception]]:
    """Every exception class that a module of the package defines."""
    found = []
    for file in sorted(ROOT.rglob("*.py")):
        if file.parent.name == "integrations":  # needs their frameworks
            assert not re.search(r"^class \w+(Error|Exception)\b", file.read_text(), re.M)
        elif "\nclass " in file.read_text():
            module = importlib.import_module(module_of(file).removesuffix(".__init__"))
            own = [one for one in vars(module).values() if isinstance(one, type)]
            own = [one for one in own if one.__module__ == module.__name__]
            found += [one for one in own if issubclass(one, Exception)]
    return found


def test_errors_have_one_base_class() -> None:
    classes = classes_of_errors()
    assert "FormatError" in {one.__name__ for one in classes}
    assert [one for one in classes if not issubclass(one, DessilbiError)] == []

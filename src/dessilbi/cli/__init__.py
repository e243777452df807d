"""The command line. Everything heavy is imported inside a command, so that --help is instant."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable

USAGE = """\
usage: dessilbi COMMAND [options]

Train a network while a sparse twin of its weights grows beside it.

commands:
  demo            train a small conv net on embedded data and show what entered Gamma, and when
  train RECIPE    train a named recipe, or a config.json; run it again to resume
  path RUN        what entered Gamma, epoch by epoch
  subnet RUN      a subnetwork of a run, for any budget: evaluate it, retrain it, rewind it
  frontier RUN    accuracy against size for every budget of a run, next to other runs
  compact RUN     a point of a run as a smaller network, the same function, checked
  export RUN      the same as one ONNX file
  report RUN      one HTML file to look at a run, or to compare several
  figures RUN     the same as figures to print, PNG, SVG and PDF
  theory WHAT     curvature of a run or recipe, the safe learning rate, and a verdict
  reproduce NAME  a table or figure of the paper: runs, tables and figures; --list shows all

  dessilbi COMMAND --help     the options of a command
  dessilbi --version
"""

_EXTRAS = {
    "lab": ("tyro", "rich", "pydantic", "pooch", "sklearn", "tensorboard"),
    "compact": ("onnx", "onnxscript", "onnxruntime", "scipy"),
    "report": ("matplotlib",),
    "imagenet": ("torchvision",),
    "cluster": ("submitit",),
}
"""Modules that each extra of the package brings."""


def main(argv: list[str] | None = None) -> None:
    """Run one command and exit; faults that a user can mend are one clear message."""
    arguments = sys.argv[1:] if argv is None else argv
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(USAGE, end="")
        raise SystemExit(0 if arguments else 2)
    if arguments[0] == "--version":
        from dessilbi import __version__

        print(f"dessilbi {__version__}")
        raise SystemExit(0)
    command = _COMMANDS.get(arguments[0])
    if command is None:
        from dessilbi._text import did_you_mean

        hint = did_you_mean(arguments[0], _COMMANDS)
        _fail(f"unknown command {arguments[0]!r}{hint}\n\n{USAGE}", code=2)
    try:
        command(arguments[1:])
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("dessilbi"):
            raise
        _fail(_missing(error))
    except BrokenPipeError:
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        _fail("stopped; run the same command again to continue", code=130)


def _demo(arguments: list[str]) -> None:
    from dessilbi.cli.train import demo

    _guarded(demo, arguments)


def _train(arguments: list[str]) -> None:
    from dessilbi.cli.train import train

    _guarded(train, arguments)


def _path(arguments: list[str]) -> None:
    from dessilbi.cli.subnet import path

    _guarded(path, arguments)


def _subnet(arguments: list[str]) -> None:
    from dessilbi.cli.subnet import subnet

    _guarded(subnet, arguments)


def _theory(arguments: list[str]) -> None:
    from dessilbi.cli.theory import theory

    _guarded(theory, arguments)


def _frontier(arguments: list[str]) -> None:
    from dessilbi.cli.frontier import frontier_command

    _guarded(frontier_command, arguments)


def _compact(arguments: list[str]) -> None:
    from dessilbi.cli.compact import compact_command

    _guarded(compact_command, arguments)


def _export(arguments: list[str]) -> None:
    from dessilbi.cli.compact import export_command

    _guarded(export_command, arguments)


def _reproduce(arguments: list[str]) -> None:
    from dessilbi.cli.reproduce import reproduce_command

    _guarded(reproduce_command, arguments)


def _report(arguments: list[str]) -> None:
    from dessilbi.cli.report import report_command

    _guarded(report_command, arguments)


def _figures(arguments: list[str]) -> None:
    from dessilbi.cli.report import figures_command

    _guarded(figures_command, arguments)


_COMMANDS: dict[str, Callable[[list[str]], None]] = {
    "demo": _demo,
    "train": _train,
    "path": _path,
    "subnet": _subnet,
    "compact": _compact,
    "export": _export,
    "frontier": _frontier,
    "report": _report,
    "figures": _figures,
    "theory": _theory,
    "reproduce": _reproduce,
}


def _guarded(command: Callable[[list[str]], None], arguments: list[str]) -> None:
    from dessilbi.lab.data import DataError
    from dessilbi.lab.models import ModelError
    from dessilbi.lab.run.config import ConfigError
    from dessilbi.lab.run.directory import RunError
    from dessilbi.lab.training.errors import TrainingError
    from dessilbi.lab.training.loop import Interrupted

    try:
        command(arguments)
    except Interrupted as stop:
        _fail(str(stop), code=130)
    except (ConfigError, DataError, ModelError, RunError, TrainingError, ValueError) as error:
        _fail(f"error: {error}")
    except BrokenPipeError:
        raise  # nobody reads on: not a fault
    except OSError as error:
        place = "" if error.filename is None else f"{error.filename}: "
        _fail(f"error: {place}{error.strerror or error}")


def _missing(error: ModuleNotFoundError) -> str:
    """What to do about a module that is not there."""
    module = (error.name or "").partition(".")[0]
    if module == "fcntl":  # run directories are locked by it
        return "the command line needs Linux or macOS: this system's Python has no module 'fcntl'"
    for extra, modules in _EXTRAS.items():
        if module in modules:
            return f"this command needs the package {error.name!r}: pip install 'dessilbi[{extra}]'"
    return f"this command needs a module that is not installed: {error}"


def _fail(message: str, code: int = 1) -> NoReturn:
    print(message.rstrip(), file=sys.stderr)
    raise SystemExit(code)

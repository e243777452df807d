"""The command line. Everything heavy is imported inside a command, so that --help is instant."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import NoReturn

from dessilbi._text import did_you_mean
from dessilbi.errors import DessilbiError

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
}
"""Modules that each extra of the package brings."""


_COMMANDS = {
    "demo": "train:demo",
    "train": "train:train",
    "path": "subnet:path",
    "subnet": "subnet:subnet",
    "frontier": "frontier:frontier",
    "compact": "compact:compact",
    "export": "compact:export",
    "report": "report:report",
    "figures": "report:figures",
    "theory": "theory:theory",
    "reproduce": "reproduce:reproduce_command",
}
"""Module of this room, and the function in it: its arguments are the options."""


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
    if arguments[0] not in _COMMANDS:
        hint = did_you_mean(arguments[0], _COMMANDS)
        _fail(f"unknown command {arguments[0]!r}{hint}\n\n{USAGE}", code=2)
    name, *options = arguments
    try:
        _run(name, options)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("dessilbi"):
            raise
        _fail(_missing(error))
    except KeyboardInterrupt:
        _fail("stopped; run the same command again to continue", code=130)
    except (DessilbiError, ValueError) as error:
        from dessilbi.lab.training.errors import Interrupted

        if isinstance(error, Interrupted):
            _fail(str(error), code=130)
        _fail(f"error: {error}")
    except BrokenPipeError:  # nobody reads on: not a fault
        raise SystemExit(1) from None
    except OSError as error:
        where = "" if error.filename is None else f"{error.filename}: "
        _fail(f"error: {where}{error.strerror or error}")


def _run(name: str, options: list[str]) -> None:
    module, function = _COMMANDS[name].split(":")
    command = getattr(import_module(f".{module}", __name__), function)
    if name == "train":  # which options there are depends on the first words
        command(options)
    else:
        import tyro

        tyro.cli(command, prog=f"dessilbi {name}", args=options)


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

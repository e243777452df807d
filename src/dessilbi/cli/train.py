"""The laboratory's commands: parse, run, print."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from dessilbi.cli.demo import tell
from dessilbi.lab.run.config import Config, ConfigError, OptimizerConfig
from dessilbi.lab.run.recipes import RECIPES, find_recipe
from dessilbi.lab.training import loop as training
from dessilbi.lab.training.distributed import leads
from dessilbi.lab.training.terminal import TerminalDisplay, plain_console
from dessilbi.paper.optimizers import COMPETITORS

if TYPE_CHECKING:
    from dessilbi.lab.run.directory import RunDir


@dataclass(frozen=True, kw_only=True)
class TrainCommand:
    """Train a recipe. Running the same configuration again resumes it, or reports that it is done.

    Everything that decides the result can be changed: --epochs 20 --optimizer.nu 10.
    """

    config: Annotated[Config, tyro.conf.arg(name="")] = field(default_factory=Config)
    place: Annotated[training.Place, tyro.conf.arg(name="")] = field(default_factory=training.Place)
    threads: int | None = None
    """Threads of torch on the CPU; by default all cores."""


_SHORT = {"--stop-when-stable": "--stop.when-stable", "--nested": "--nested.on"}


def train(arguments: list[str]) -> None:
    """``dessilbi train RECIPE [options]``."""
    wide = max(map(len, RECIPES)) + 2
    recipes = "\n".join(
        f"  {name:{wide}}{(recipe.__doc__ or '').splitlines()[0]}"
        for name, recipe in RECIPES.items()
    )
    usage = (
        f"usage: dessilbi train RECIPE [options]\n\nrecipes:\n{recipes}\n\n"
        f"--with NAME trains the recipe with another optimizer: {', '.join(COMPETITORS)}\n"
    )
    if not arguments or arguments[0].startswith("-"):
        asked = bool(arguments) and arguments[0] in ("-h", "--help")
        print(usage, file=sys.stdout if asked else sys.stderr)
        if not asked:
            print("name a recipe first, then its options", file=sys.stderr)
            raise SystemExit(2)
        print("`dessilbi train RECIPE --help` lists every option with the recipe's value.")
        return
    recipe, *options = arguments
    config, options = _exchanged(find_recipe(recipe), options)
    command = tyro.cli(
        TrainCommand,
        prog=f"dessilbi train {recipe}",
        default=TrainCommand(config=config),
        args=[_SHORT.get(o, o) for o in options],
    )
    run_to_the_end(command)


def _exchanged(config: Config, options: list[str]) -> tuple[Config, list[str]]:
    """``--with NAME`` puts a row of the paper's table in place of the recipe's optimizer."""
    options = [part for o in options for part in (o.split("=", 1) if o[:7] == "--with=" else [o])]
    if "--with" not in options:
        return config, options
    at = options.index("--with")
    name = options[at + 1] if at + 1 < len(options) else ""
    rest = options[:at] + options[at + 2 :]
    return replace(config, name=f"{config.name}-{name}", optimizer=competitor(name)), rest


def competitor(name: str) -> OptimizerConfig:
    """An optimizer of the paper's table by its name."""
    if name not in COMPETITORS:
        raise ConfigError(f"--with must name one of {', '.join(COMPETITORS)}; got {name!r}")
    return COMPETITORS[name]


def demo(arguments: list[str]) -> None:
    """``dessilbi demo [--runs DIR]``."""
    command = tyro.cli(DemoCommand, prog="dessilbi demo", args=arguments)
    run = run_to_the_end(
        TrainCommand(config=RECIPES["digits"](), place=training.Place(runs=command.runs))
    )
    tell(run, plain_console())


@dataclass(frozen=True, kw_only=True)
class DemoCommand:
    """Train a small conv net on scikit-learn's digits, in seconds, and show what entered Gamma."""

    runs: Path = Path("runs")
    """Folder of the run directories."""


def run_to_the_end(command: TrainCommand) -> RunDir:
    """Train with a display, and print what came of it."""
    if command.threads is not None:
        import torch

        if command.threads < 1:
            raise ConfigError(f"threads must be >= 1, got {command.threads}")
        torch.set_num_threads(command.threads)
    with TerminalDisplay() as display:
        run = training.train(command.config, command.place, display)
    last = run.records()[-1:]
    if last and leads():
        summary = last[0]
        text = (
            f"done: {summary['epoch']} epochs, {summary['accuracy']:.2f} % "
            f"on the {summary['judged_on']} set"
        )
        if "sparse_accuracy" in summary and command.config.start is None:
            text += (
                f"; on the support of Gamma {summary['sparse_accuracy']:.2f} % "
                f"with {summary['density']:.1%} of the weights"
            )
        display.console.print(f"{text}\nrun directory: {run.path}", soft_wrap=True)
    return run

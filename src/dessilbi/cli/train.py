"""``dessilbi train`` and ``dessilbi demo``: parse, run, print. Torch is imported to train only."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from dessilbi._text import did_you_mean
from dessilbi.cli.options import Flat, set_threads
from dessilbi.lab.run.config import Config, ConfigError, OptimizerConfig
from dessilbi.lab.run.methods import (
    METHODS,
    GradualPruning,
    NestedWeights,
    NestedWidths,
    method_name,
)
from dessilbi.lab.run.options import RunOptions
from dessilbi.lab.run.recipes import RECIPES, find_recipe
from dessilbi.paper.competitors import OPTIMIZERS

if TYPE_CHECKING:
    from collections.abc import Callable

    from dessilbi.lab.run.directory import RunDir


@tyro.conf.configure(tyro.conf.AvoidSubcommands)  # the method is chosen before: see _chosen
@dataclass(frozen=True, kw_only=True)
class TrainCommand:
    """Train a recipe. Running the same configuration again resumes it, or reports that it is done.

    Everything that decides the result can be changed: --epochs 20 --optimizer.nu 10.
    """

    config: Flat[Config] = field(default_factory=Config)
    options: Flat[RunOptions] = field(default_factory=RunOptions)
    threads: int | None = None
    """Threads of torch on the CPU; by default all cores."""


def train(arguments: list[str]) -> None:
    """``dessilbi train RECIPE [method:NAME] [options]``."""
    if not arguments or arguments[0].startswith("-"):
        asked = bool(arguments) and arguments[0] in ("-h", "--help")
        print(_usage(), file=sys.stdout if asked else sys.stderr)
        if not asked:
            print("name a recipe first, then its options", file=sys.stderr)
            raise SystemExit(2)
        return
    recipe, *options = arguments
    config, options = _chosen(find_recipe(recipe), options)
    if {"-h", "--help"} & set(options):
        print(_choices(config))
    command = tyro.cli(
        TrainCommand,
        prog=f"dessilbi train {recipe}",
        default=TrainCommand(config=config),
        args=options,
    )
    run_to_the_end(command.config, command.options, command.threads)


def _listed(known: dict[str, str]) -> str:
    wide = max(map(len, known)) + 2
    return "\n".join(f"  {name:{wide}}{text}" for name, text in known.items())


def _first_line(thing: Callable[..., object]) -> str:
    return (thing.__doc__ or "").splitlines()[0]


def _usage() -> str:
    methods = {f"method:{name}": _first_line(kind) for name, kind in METHODS.items()}
    return (
        "usage: dessilbi train RECIPE [method:NAME] [--with NAME] [options]\n\n"
        f"recipes:\n{_listed({name: _first_line(made) for name, made in RECIPES.items()})}\n\n"
        f"methods:\n{_listed(methods)}\n\n"
        "  --nested is short for the recipe's own nested method, or method:nested-weights\n"
        "  --density 0.1 (or --macs 0.5) trains to a budget: short for method:gradual-pruning\n\n"
        f"--with NAME trains the recipe with another optimizer: {', '.join(OPTIMIZERS)}\n\n"
        "`dessilbi train RECIPE --help` lists every option with the recipe's value, and\n"
        "`dessilbi train RECIPE method:NAME --help` those of a method."
    )


def _choices(config: Config) -> str:
    name = method_name(config.method)
    others = ", ".join(f"method:{other}" for other in METHODS if other != name)
    return f"method:{name} is chosen; others: {others}\n"


def _chosen(config: Config, options: list[str]) -> tuple[Config, list[str]]:
    """The recipe with the method and the optimizer that are named, and the options that are left.

    They are read first: which options there are, and their defaults, depends on them.
    """
    options = [part for o in options for part in (o.split("=", 1) if o[:7] == "--with=" else [o])]
    left: list[str] = []
    words = iter(options)
    for word in words:
        if word == "--nested":
            nested = isinstance(config.method, NestedWeights | NestedWidths)
            config = config if nested else replace(config, method=NestedWeights())
        elif word.startswith("method:"):
            name = word.removeprefix("method:")
            if name not in METHODS:
                raise ConfigError(
                    f"unknown method {name!r}{did_you_mean(name, METHODS)}; "
                    f"known: {', '.join(METHODS)}"
                )
            if not isinstance(config.method, METHODS[name]):
                config = replace(config, method=METHODS[name]())
        elif word.partition("=")[0] in ("--density", "--macs"):
            budget, _, value = word.partition("=")
            if not isinstance(config.method, GradualPruning):
                config = replace(config, method=GradualPruning())
            left += [f"--method.{budget[2:]}", value or next(words, "")]
        elif word == "--with":
            name = next(words, "")
            config = replace(config, name=f"{config.name}-{name}", optimizer=competitor(name))
        else:
            left.append("--stop.when-stable" if word == "--stop-when-stable" else word)
    return config, left


def competitor(name: str) -> OptimizerConfig:
    """An optimizer by its name: a row of the paper's table, or one beside them."""
    if name not in OPTIMIZERS:
        raise ConfigError(f"--with must name one of {', '.join(OPTIMIZERS)}; got {name!r}")
    return OPTIMIZERS[name]


def demo(runs: Path = Path("runs")) -> None:
    """Train a small conv net on scikit-learn's digits, in seconds, and show what entered Gamma.

    Args:
        runs: folder of the run directories.
    """
    run = run_to_the_end(RECIPES["digits"](), RunOptions(runs=runs))
    from dessilbi.cli.subnet import print_path

    print_path(run)
    *_, last = records = run.records()
    near = next((r for r in records if r["recalibrated_accuracy"] >= last["accuracy"] - 1), last)
    print(
        f"\nAt epoch {near['epoch']} the support of Gamma holds {near['density']:.0%} of the "
        f"weights and scores {near['recalibrated_accuracy']:.1f} % without retraining; the dense "
        f"network ends at {last['accuracy']:.1f} %.\nTo look at it: dessilbi report {run.path}"
    )


_UNITS = {"density": "weights", "groups": "groups", "macs": "multiply-adds"}


def run_to_the_end(config: Config, options: RunOptions, threads: int | None = None) -> RunDir:
    """Train with a display, and print what came of it."""
    import dessilbi.paper.baselines
    import dessilbi.paper.optimizers  # noqa: F401 - lets configurations name them
    from dessilbi.cli.memory import keep_freed_memory
    from dessilbi.lab.training.distributed import is_main
    from dessilbi.lab.training.loop import train as train_run
    from dessilbi.lab.training.terminal import TerminalDisplay

    set_threads(threads)
    keep_freed_memory()
    with TerminalDisplay() as display:
        run = train_run(config, options, display)
    last = run.records()[-1:]
    if last and is_main():
        summary = last[0]
        text = (
            f"done: {summary['epoch']} epochs, {summary['accuracy']:.2f} % "
            f"on the {summary['judged_on']} set, loss {summary['loss']:.4f}"
        )
        if pruned := isinstance(method := config.method, GradualPruning):
            text += f", with {summary['density']:.2%} of the {_UNITS[method.unit]}"
        if "sparse_accuracy" in summary and config.start is None and not pruned:
            text += (
                f"; on the support of Gamma {summary['sparse_accuracy']:.2f} % "
                f"with {summary['density']:.1%} of the weights"
            )
        display.console.print(f"{text}\nrun directory: {run.path}", soft_wrap=True)
    return run

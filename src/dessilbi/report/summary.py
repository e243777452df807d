"""A run in a few sentences, computed from its numbers."""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING, Any

from dessilbi.report.filters import NEVER, best_layer, short, unit_word

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dessilbi.path import SolutionPath
    from dessilbi.report.filters import Filters
    from dessilbi.report.run_data import RunData

NEAR = 1.0
"""Percentage points within which the support does as well as all weights."""


def headline(run: RunData) -> str:
    """What was trained, and how."""
    config = run.config
    name, base = config["optimizer"]["name"], config["optimizer"]["base"]
    how = _METHODS.get(name, name) if base == "sgd" else f"SplitLBI around {base}"
    if config["start"] is not None:
        how += f" on a subnetwork of {config['start']['parent']}"
    done, asked = run.done, config["epochs"]
    epochs = f"{done} epochs" if done >= asked else f"{done} of {asked} epochs so far"
    return f"{config['model']['name']} on {config['data']['name']}, {epochs} of {how}"


_METHODS = {"dessilbi": "DessiLBI", "sgd": "SGD", "adam": "Adam"}


def summary(run: RunData) -> list[str]:
    """Sentences: the result, what entered, and when the support began to do."""
    accuracy = run.last.get("accuracy")
    if accuracy is None:
        return ["Nothing was evaluated yet."]
    if run.fixed_mask is not None:
        return [_subnetwork(run, accuracy, run.fixed_mask)]
    sentences = [_result(run, accuracy)]
    if run.path is not None and run.filters is not None:
        sentences += [_entered(run.path, run.filters), *_enough(run), _settled(run, run.path)]
    return sentences


def _subnetwork(run: RunData, accuracy: float, before: dict[str, Any]) -> str:
    """What was chosen in another run, and how it does; its own Gamma is another matter."""
    start, density = run.config["start"], before.get("density")
    share = "" if density is None else f"{_percent(100 * density, 1)} of the weights, "
    name = f"the subnetwork ({share}chosen in {start['parent']}: {start['mask']})"
    right = f"gets {_percent(accuracy)} of the {run.judged_on} set right"
    recalibrated = ""
    if before.get("recalibrated_accuracy") is not None:
        recalibrated = f", {_percent(before['recalibrated_accuracy'])} with BatchNorm recalibrated"
    if not run.done:
        return f"As it is, {name} {right}{recalibrated}."
    began = ""
    if before.get("accuracy") is not None:
        began = f"; before training it was {_percent(before['accuracy'])}{recalibrated}"
    return f"After {run.done} epochs {name} {right}{began}."


def _result(run: RunData, accuracy: float) -> str:
    dense, sparse, judged = _percent(accuracy), _sparse(run.last), f"of the {run.judged_on} set"
    density = run.last.get("density")
    if run.path is None or sparse is None:
        end = "" if density is None else f" with {_percent(100 * density, 1)} of its weights"
        return f"After {run.done} epochs the network gets {dense} {judged} right{end}."
    density = run.path.density(run.path.epochs[-1])
    if density == 0:
        return (
            f"All weights get {dense} {judged} right; nothing has entered the sparse twin Gamma "
            "yet. A smaller lambd, a smaller nu or more epochs let it."
        )
    return (
        f"The sparse twin Gamma ends with {_percent(100 * density, 1)} of the weights. On these "
        f"alone the network gets {_percent(sparse)} {judged} right, with all weights {dense}."
    )


def _percent(value: float, digits: int = 2) -> str:
    return f"{value:.{digits}f}\N{NO-BREAK SPACE}%"


def _sparse(record: dict[str, Any]) -> float | None:
    return record.get("recalibrated_accuracy", record.get("sparse_accuracy"))


def _entered(path: SolutionPath, filters: Filters) -> str:
    name = best_layer(path)
    layer = path.layer(name)
    entry = filters.entry[filters.rows(name)]
    word = unit_word(layer)
    came = int((entry != NEVER).sum())
    if not came:
        return f"None of the {layer.rows} {word}s of {short(name)} entered."
    left = came - int((filters.inside[-1, filters.rows(name)] > 0).sum())
    again = f", {left} left again" if left else ""
    first = int(filters.order(name)[0])
    return (
        f"{came} of {layer.rows} {word}s of {short(name)} entered{again}; {word} {first} was the "
        f"first, at step {int(entry[first]):,} of {path.step:,}."
    )


def _enough(run: RunData) -> Iterator[str]:
    """From which epoch on the support alone is near the dense network, if it is."""
    known = [r for r in run.records if None not in (_sparse(r), r.get("accuracy"))]
    near = list(takewhile(lambda r: r["accuracy"] - _sparse(r) <= NEAR, reversed(known)))
    if near and near[-1].get("density"):
        yield (
            f"From epoch {near[-1]['epoch']} on, with {_percent(100 * near[-1]['density'], 1)} of "
            f"the weights, the support alone stays within {NEAR:g} point of the dense network."
        )


def _settled(run: RunData, path: SolutionPath) -> str:
    """When the support stopped changing, if it did."""
    rule = {name: run.config["stop"][name] for name in ("window", "tolerance", "distance")}
    epoch = path.stable_epoch(**rule)
    if epoch is None:
        return "The support has not settled by the run's own rule."
    return f"By the run's own rule the support settled at epoch {epoch}."

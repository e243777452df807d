"""A run in a few sentences, computed from its numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dessilbi.report.filters import NEVER, best_layer, short, unit_word

if TYPE_CHECKING:
    from dessilbi.path import SolutionPath
    from dessilbi.report.filters import Filters
    from dessilbi.report.run_data import FixedMask, RunData

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
    if run.fixed_mask is not None:
        return [_subnetwork(run, run.fixed_mask)]
    sentences = [_result(run)]
    if run.path is not None and run.filters is not None:
        sentences.append(_entered(run.path, run.filters))
        if found := _enough(run):
            sentences.append(found)
    return sentences


def _subnetwork(run: RunData, mask: FixedMask) -> str:
    """What was chosen in another run, and how it does; its own Gamma is another matter."""
    start, accuracy = run.config["start"], run.last.get("accuracy")
    share = "" if mask.density is None else f"{_share(mask.density)} of the weights, "
    name = f"the subnetwork ({share}chosen in {start['parent']}: {start['mask']})"
    if accuracy is None:
        return "Nothing was evaluated yet."
    as_it_is = f"{_percent(accuracy)} {_judged(run)} right"
    recalibrated = ""
    if mask.recalibrated_accuracy is not None:
        recalibrated = f", {_percent(mask.recalibrated_accuracy)} with BatchNorm recalibrated"
    if not run.done:
        return f"As it is, {name} gets {as_it_is}{recalibrated}."
    before = ""
    if mask.accuracy is not None:
        before = f"; before training it was {_percent(mask.accuracy)}{recalibrated}"
    return f"After {run.done} epochs {name} gets {as_it_is}{before}."


def _judged(run: RunData) -> str:
    return f"of the {run.judged_on} set"


def _result(run: RunData) -> str:
    last, judged = run.last, _judged(run)
    dense, sparse = last.get("accuracy"), _sparse(last)
    if dense is None:
        return "Nothing was evaluated yet."
    if run.path is None or sparse is None:
        end = f"After {run.done} epochs the network gets {_percent(dense)} {judged} right"
        density = last.get("density")
        return end + (f" with {_share(density)} of its weights." if density is not None else ".")
    density = run.path.density(run.path.epochs[-1])
    if density == 0:
        return (
            f"All weights get {_percent(dense)} {judged} right; nothing has entered the sparse "
            "twin Gamma yet. A smaller lambd, a smaller nu or more epochs let it."
        )
    return (
        f"The sparse twin Gamma ends with {_share(density)} of the weights. On these alone the "
        f"network gets {_percent(sparse)} {judged} right, with all weights {_percent(dense)}."
    )


def _share(density: float) -> str:
    return _percent(100 * density, 1)


def _percent(value: float, digits: int = 2) -> str:
    return f"{value:.{digits}f}\N{NO-BREAK SPACE}%"


def _sparse(record: dict[str, Any]) -> float | None:
    return record.get("recalibrated_accuracy", record.get("sparse_accuracy"))


def _entered(path: SolutionPath, filters: Filters) -> str:
    name = best_layer(path)
    layer = path.layer(name)
    rows = filters.rows(name)
    entry, inside = filters.entry[rows], filters.inside[-1, rows] > 0
    word = unit_word(layer)
    came = int((entry != NEVER).sum())
    if not came:
        return f"None of the {layer.rows} {word}s of {short(name)} entered."
    first = int(min(range(len(entry)), key=lambda i: (entry[i] == NEVER, entry[i])))
    left = came - int(inside.sum())
    again = f", {left} left again" if left else ""
    return (
        f"{came} of {layer.rows} {word}s of {short(name)} entered{again}; {word} {first} was the "
        f"first, at step {int(entry[first]):,} of {path.step:,}."
    )


def _enough(run: RunData) -> str | None:
    """The first epoch from which on the support alone is near the dense network."""
    records = [r for r in run.records if _sparse(r) is not None and r.get("accuracy") is not None]
    near = [r["accuracy"] - (_sparse(r) or 0.0) <= NEAR for r in records]
    if not near or not near[-1]:
        return None
    since = len(near) - next((i for i, good in enumerate(reversed(near)) if not good), len(near))
    record = records[since]
    if not record.get("density"):
        return None
    return (
        f"From epoch {record['epoch']} on, with {_share(record['density'])} of the weights, the "
        f"support alone stays within {NEAR:g} point of the dense network."
    )

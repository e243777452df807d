"""The tables of the page, as escaped HTML that needs no script."""

from __future__ import annotations

import shlex
from html import escape
from typing import TYPE_CHECKING, Any

from dessilbi.lab.run.files import CONFIG, ENVIRONMENT

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from dessilbi.lab.run.files import CompactRecord, Frontier
    from dessilbi.report.run_data import RunData


def table(rows: Iterable[dict[str, Any]], *, caption: str = "", kind: str = "numbers") -> str:
    """A table of rows, which name their columns; everything is escaped."""
    rows = list(rows)
    names = dict.fromkeys(name for row in rows for name in row)
    top = "".join(f'<th scope="col">{escape(name)}</th>' for name in names)
    body = []
    for row in rows:
        first, *others = (escape(_text(row.get(name))) for name in names)
        cells = "".join(f"<td>{cell}</td>" for cell in others)
        body.append(f'<tr><th scope="row">{first}</th>{cells}</tr>')
    words = f"<caption>{escape(caption)}</caption>" if caption else ""
    return (
        f'<div class="scroll" tabindex="0"><table class="{kind}">{words}<thead><tr>{top}</tr>'
        f"</thead><tbody>{''.join(body)}</tbody></table></div>"
    )


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return "" if value is None else str(value)


def _percent(value: Any) -> str | None:
    """A percentage that is one already."""
    return None if value is None else f"{value:.2f}"


def _measured(record: dict[str, Any], whole: str) -> dict[str, Any]:
    density = record.get("density")
    return {
        f"{whole}, %": _percent(record.get("accuracy")),
        "support, %": _percent(record.get("sparse_accuracy")),
        "recalibrated, %": _percent(record.get("recalibrated_accuracy")),
        "density, %": None if density is None else f"{100 * density:.2f}",
    }


def runs_table(runs: Sequence[RunData]) -> str:
    """One row a run: how it ended."""
    rows = []
    for run in runs:
        optimizer = run.config["optimizer"]
        base = "" if optimizer["base"] == "sgd" else f" ({optimizer['base']})"
        how = {"optimizer": optimizer["name"] + base, "seed": run.config["seed"]}
        rows.append({"run": run.name, **how, "epochs": run.done} | _measured(run.last, "network"))
    return table(rows)


def epochs_table(run: RunData) -> str:
    """One row an epoch."""
    return table(
        {
            "epoch": r["epoch"],
            "training loss": r.get("train_loss"),
            "loss": r.get("loss"),
            "training, %": _percent(r.get("train_accuracy")),
            **_measured(r, run.whole),
            "lr": r.get("lr"),
        }
        for r in run.records
    )


def budgets_table(frontier: Frontier) -> str:
    """Accuracy for every budget."""
    rows = [
        {
            "budget, %": f"{100 * p.budget:g}",
            "density, %": f"{100 * p.density:.2f}",
            "parameters": f"{p.parameters:,}",
            "multiply-adds": f"{p.macs:,.0f}",
            "accuracy, %": _percent(p.accuracy),
        }
        for p in sorted(frontier.points, key=lambda p: p.density)
    ]
    return table(rows, caption=f"judged on the {frontier.judged_on} set")


def compacts_table(compacts: Sequence[CompactRecord]) -> str:
    """Compact networks, with sizes and latencies next to those of the dense one."""
    rows = [
        {
            "compact network": c.chosen,
            "accuracy, %": _percent(c.accuracy),
            "judged on": c.judged_on,
            "parameters": f"{c.parameters:,} ({c.dense_parameters / max(c.parameters, 1):.2f}x)",
            "multiply-adds": f"{c.macs:,.0f} ({c.dense_macs / max(c.macs, 1):.2f}x)",
            "kB": f"{c.bytes / 1000:,.1f}",
            **{f"ms, batch {n}": f"{ms:.3g} ({dense / ms:.2f}x)" for n, dense, ms in c.latency},
            "difference": None if c.difference is None else f"{c.difference:.1e}",
        }
        for c in compacts
    ]
    return table(
        rows,
        caption="(times fewer or faster than the dense network); difference: the largest of the "
        "outputs to those of the masked network, relative",
    )


def config_table(runs: Sequence[RunData]) -> str:
    """Every number of the configurations; those in which runs differ are marked, and first."""
    rows = _beside(runs, [run.config for run in runs])
    for row in rows:
        name, *values = row.values()
        if len(set(values)) > 1 or len(values) < len(runs):
            row["option"] = f"differs: {name}"
    return table(sorted(rows, key=lambda row: "differs: " not in row["option"]), kind="")


def environment_table(runs: Sequence[RunData]) -> str:
    """What the runs were made on."""
    facts = [{k: v for k, v in run.environment.items() if k != "command"} for run in runs]
    if not any(facts):
        return f"<p>The run directory has no {ENVIRONMENT}.</p>"
    return table(_beside(runs, facts), kind="")


def _beside(runs: Sequence[RunData], values: Sequence[dict[str, Any]]) -> list[dict[str, str]]:
    """A row for each name: what it is in each run."""
    rows: dict[str, dict[str, str]] = {}
    for run, one in zip(runs, values, strict=True):
        for name, text in _flat(one):
            rows.setdefault(name, {"option": name})[run.name] = text
    return list(rows.values())


def _flat(values: dict[str, Any], start: str = "") -> Iterable[tuple[str, str]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{start}{name}.")
        elif isinstance(value, list | tuple):
            yield f"{start}{name}", " ".join(map(str, value)) or "none"
        else:
            yield f"{start}{name}", "none" if value is None else str(value)


def commands(run: RunData) -> str:
    """How to make the run again, from the folder that the report was made in."""
    lines = []
    recorded = run.environment.get("command")
    if isinstance(recorded, list) and recorded:
        lines.append(f"{shlex.join(map(str, recorded))}    # as it was given")
    if run.fixed_mask is None:  # a subnetwork also needs the mask and weights it was given
        # Neither "." nor a link has the run's name, and so not its parent either.
        whole = run.folder.resolve()
        folder = run.folder if run.folder.name == whole.name else whole
        options = [str(folder / CONFIG), "--runs", str(folder.parent)]
        lines.append(f"dessilbi train {shlex.join(options)}    # the same, from its configuration")
    return f"<pre>{escape(chr(10).join(lines))}</pre>" if lines else ""

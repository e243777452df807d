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


def table(
    head: Sequence[str], rows: Iterable[Sequence[object]], *, caption: str = "", kind: str = ""
) -> str:
    """A table of plain values; everything is escaped."""
    top = "".join(f'<th scope="col">{escape(str(cell))}</th>' for cell in head)
    body = []
    for row in rows:
        cells = [f'<th scope="row">{escape(str(row[0]))}</th>']
        cells += [f"<td>{escape('' if cell is None else str(cell))}</td>" for cell in row[1:]]
        body.append(f"<tr>{''.join(cells)}</tr>")
    words = f"<caption>{escape(caption)}</caption>" if caption else ""
    return (
        f'<div class="scroll" tabindex="0"><table class="{kind}">{words}<thead><tr>{top}</tr>'
        f"</thead><tbody>{''.join(body)}</tbody></table></div>"
    )


def percent(value: Any, digits: int = 2) -> str:
    """A percentage that is one already."""
    return "" if value is None else f"{value:.{digits}f}"


def runs_table(runs: Sequence[RunData]) -> str:
    """One row a run: how it ended."""
    rows = []
    for run in runs:
        last = run.last
        density = last.get("density")
        optimizer = run.config["optimizer"]
        base = "" if optimizer["base"] == "sgd" else f" ({optimizer['base']})"
        rows.append(
            (
                run.name, optimizer["name"] + base, run.config["seed"], run.done,
                percent(last.get("accuracy")), percent(last.get("sparse_accuracy")),
                percent(last.get("recalibrated_accuracy")),
                "" if density is None else f"{100 * density:.2f}",
            )
        )  # fmt: skip
    head = (
        "run", "optimizer", "seed", "epochs", "network, %", "support, %", "recalibrated, %",
        "density, %",
    )  # fmt: skip
    return table(head, rows, kind="numbers")


def epochs_table(run: RunData) -> str:
    """One row an epoch."""
    rows = []
    for r in run.records:
        density = r.get("density")
        rows.append(
            (
                r["epoch"], _short(r.get("train_loss")), _short(r.get("loss")),
                percent(r.get("train_accuracy")), percent(r.get("accuracy")),
                percent(r.get("sparse_accuracy")), percent(r.get("recalibrated_accuracy")),
                "" if density is None else f"{100 * density:.2f}", _short(r.get("lr")),
            )
        )  # fmt: skip
    head = (
        "epoch", "training loss", "loss", "training, %", f"{run.whole}, %", "support, %",
        "recalibrated, %", "density, %", "lr",
    )  # fmt: skip
    return table(head, rows, kind="numbers")


def budgets_table(frontier: Frontier) -> str:
    """Accuracy for every budget."""
    rows = [
        (
            f"{100 * p.budget:g}", f"{100 * p.density:.2f}", f"{p.parameters:,}",
            f"{p.macs:,.0f}", percent(p.accuracy),
        )
        for p in sorted(frontier.points, key=lambda p: p.density)
    ]  # fmt: skip
    head = ("budget, %", "density, %", "parameters", "multiply-adds", "accuracy, %")
    return table(head, rows, kind="numbers", caption=f"judged on the {frontier.judged_on} set")


def compacts_table(compacts: Sequence[CompactRecord]) -> str:
    """Compact networks, with sizes and latencies next to those of the dense one."""
    batches = sorted({batch for c in compacts for batch, _, _ in c.latency})
    rows = []
    for c in compacts:
        times = {batch: (dense, small) for batch, dense, small in c.latency}
        cells = [
            f"{times[b][1]:.3g} ({times[b][0] / times[b][1]:.2f}x)" if b in times else ""
            for b in batches
        ]
        rows.append(
            (
                c.chosen, percent(c.accuracy), c.judged_on, f"{c.parameters:,}",
                f"{c.dense_parameters / max(c.parameters, 1):.2f}x", f"{c.macs:,.0f}",
                f"{c.dense_macs / max(c.macs, 1):.2f}x", f"{c.bytes / 1000:,.1f}", *cells,
                "" if c.difference is None else f"{c.difference:.1e}",
            )
        )  # fmt: skip
    head = (
        "compact network", "accuracy, %", "judged on", "parameters", "fewer", "multiply-adds",
        "fewer", "kB", *(f"ms, batch {b} (faster)" for b in batches), "difference",
    )  # fmt: skip
    return table(
        head,
        rows,
        kind="numbers",
        caption="difference: the largest of the outputs to those of the masked network, relative",
    )


def config_table(runs: Sequence[RunData]) -> str:
    """Every number of the configurations; those in which runs differ are marked, and first."""
    rows = [
        ("differs: " + name if len(set(values)) > 1 else name, *values)
        for name, *values in _beside([run.config for run in runs])
    ]
    rows.sort(key=lambda row: not row[0].startswith("differs: "))
    return table(("option", *(run.name for run in runs)), rows)


def environment_table(runs: Sequence[RunData]) -> str:
    """What the runs were made on."""
    rows = _beside([{k: v for k, v in r.environment.items() if k != "command"} for r in runs])
    if not rows:
        return f"<p>The run directory has no {ENVIRONMENT}.</p>"
    return table(("", *(run.name for run in runs)), rows)


def _beside(values: Iterable[dict[str, Any]]) -> list[tuple[str, ...]]:
    """Rows of a name and what it is in each."""
    flat = [dict(_flat(one)) for one in values]
    names = dict.fromkeys(name for one in flat for name in one)
    return [(name, *(one.get(name, "") for one in flat)) for name in names]


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
        folder = run.folder if run.folder.name == run.name else run.folder.resolve()
        options = [str(folder / CONFIG), "--runs", str(folder.parent)]
        lines.append(f"dessilbi train {shlex.join(options)}    # the same, from its configuration")
    return f"<pre>{escape(chr(10).join(lines))}</pre>" if lines else ""


def paper_table(runs: Sequence[RunData]) -> str:
    """Ours against the paper; empty where the paper has no number for any of the runs."""
    try:
        from dessilbi.report.published import compare
    except ImportError:  # a package without the paper's room
        return ""
    rows = [(run.name, *row) for run in runs for row in compare(run)]
    if not rows:
        return ""
    caption = "one run each; the paper trains 100 epochs on MNIST and 160 or more on CIFAR-10"
    head = ("run", "where in the paper", "what", "paper, %", "ours, %", "difference, points")
    return table(head, rows, caption=caption)


def _short(value: Any) -> str:
    return "" if value is None else f"{value:.4g}"

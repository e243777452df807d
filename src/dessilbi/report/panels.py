"""Which panels a report has: those that its runs have something to show in."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    from dessilbi.report.run_data import RunData


@dataclass(frozen=True)
class Panel:
    """One figure of the page; the script finds it by its key."""

    key: str
    title: str
    words: str
    wide: bool = False
    log: int = 0
    """Whether an axis can be switched to a logarithmic one: 1 if so, 2 if it starts as one."""

    def html(self, static: str | None) -> str:
        """The panel with its static figure, which the script replaces."""
        image = f'<img class="static" alt="{escape(self.title)}" src="{static}">' if static else ""
        return (
            f'<figure class="panel{" wide" if self.wide else ""}" id="panel-{self.key}" '
            f'data-key="{self.key}" data-log="{self.log}" '
            f'aria-labelledby="title-{self.key}">'
            f'<figcaption><h2 id="title-{self.key}">{escape(self.title)}</h2>'
            f"<p>{escape(self.words)}</p></figcaption>{image}</figure>"
        )


def panels_of(runs: Sequence[RunData], charts: Container[str]) -> list[Panel]:
    """The panels of a report, in the order of the page; curves are there as ``charts`` say."""
    paths = [run for run in runs if run.path is not None]
    densities = bool(paths) or any(r.get("densities") for run in runs for r in run.records)
    whole = ", ".join(dict.fromkeys(run.whole for run in runs))
    found = [
        (Panel("accuracy", "Accuracy",
               f"Of {whole}, of the weights in the support of Gamma, and of these with "
               "BatchNorm recalibrated."), "accuracy" in charts),
        (Panel("loss", "Loss", "Cross entropy, in training and held out.", log=2),
         "loss" in charts),
        (Panel("paths", "Filter paths",
               "One line a filter. Blue and solid: in the support of Gamma; red and dashed: "
               "outside. A ring marks the entry.", wide=True, log=1), bool(paths)),
        (Panel("entries", "Who entered when",
               "Every filter of the net is a line, from its entry on coloured by the epoch it "
               "entered; grey is outside.", wide=True), bool(paths)),
        (Panel("next", "Who is next to enter",
               "A filter enters when the norm of its part of V passes lambd."), bool(paths)),
        (Panel("densities", "Density by layer",
               "Share of a layer's weights in the support; the tick is where the run ends."),
         densities),
        (Panel("filters", "Filters as images",
               "W on the left, its sparse twin Gamma on the right.", wide=True),
         any(run.checkpoints for run in runs)),
        (Panel("budgets", "Accuracy against size",
               "What the run offers for every budget, and where its own support went.", log=2),
         "budgets" in charts),
        (Panel("overlap", "Support overlap between epochs",
               "Weights in both supports over weights in either."), bool(paths)),
        (Panel("dynamics", "How the twin follows",
               "Coupling gap and augmented loss.",
               wide=len(paths) < 2, log=1), "dynamics" in charts),
        (Panel("between", "Support overlap between runs",
               "The same between two runs after the same epoch. Filters have no identity of their "
               "own: runs that start from other weights agree no more than by chance."),
         "between" in charts),
    ]  # fmt: skip
    return [panel for panel, wanted in found if wanted]

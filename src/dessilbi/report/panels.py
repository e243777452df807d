"""The panels of the page, in its order; a report has those that there is something to draw in."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dessilbi.report.run_data import RunData


@dataclass(frozen=True)
class Panel:
    """One figure of the page; the script finds it by its key."""

    key: str
    title: str
    words: str
    wide: bool = False

    def html(self) -> str:
        """The panel, into which the script draws."""
        return (
            f'<figure class="panel{" wide" if self.wide else ""}" id="panel-{self.key}" '
            f'data-key="{self.key}" aria-labelledby="title-{self.key}">'
            f'<figcaption><h2 id="title-{self.key}">{escape(self.title)}</h2>'
            f"<p>{escape(self.words)}</p></figcaption></figure>"
        )


PANELS = (
    Panel("accuracy", "Accuracy",
          "Of the network as it is trained, of the weights in the support of Gamma alone, and of "
          "these with BatchNorm recalibrated."),
    Panel("loss", "Loss", "Cross entropy, in training and held out."),
    Panel("paths", "Filter paths",
          "One line a filter. Blue and solid: in the support of Gamma; red and dashed: outside. A "
          "ring marks the entry.", wide=True),
    Panel("entries", "Who entered when",
          "Every filter of the net is a line, from its entry on coloured by the epoch it entered; "
          "grey is outside.", wide=True),
    Panel("next", "Who is next to enter",
          "A filter enters when the norm of its part of V passes lambd."),
    Panel("densities", "Density by layer",
          "Share of a layer's weights in the support; the tick is where the run ends."),
    Panel("filters", "Filters as images",
          "The weights W and their sparse twin Gamma, in the order of entry.", wide=True),
    Panel("budgets", "Accuracy against size",
          "What the run offers for every budget, and where its own support went."),
    Panel("gap", "Coupling gap", "How far the sparse twin is from the weights."),
    Panel("augmented", "Augmented loss", "What the training descends: loss and coupling."),
)  # fmt: skip


def panels_of_paths(runs: Iterable[RunData]) -> set[str]:
    """Panels beside those of curves that one of the runs has something for."""
    shown: set[str] = set()
    for run in runs:
        if run.path is not None:
            shown |= {"paths", "entries", "next", "densities"}
        if run.checkpoints:
            shown.add("filters")
        if any(record.get("densities") for record in run.records):
            shown.add("densities")
    return shown

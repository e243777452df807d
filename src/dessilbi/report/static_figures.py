"""The figures that a page shows where there is no JavaScript: SVG, inside the page."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

from dessilbi.report.figures import make_figures, render

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dessilbi.report.run_data import RunData

DPI = 110
"""Of what becomes pixels: heat maps, and paths of many filters."""


def stills(runs: Sequence[RunData]) -> dict[str, str]:
    """Figures as addresses that hold their content, by the key of their panel."""
    return {
        key: "data:image/svg+xml;base64," + base64.b64encode(render(figure, "svg", DPI)).decode()
        for key, figure in make_figures(runs).items()
    }

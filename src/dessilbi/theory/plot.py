"""A recorded run as a picture: four panels, one for each thing the theorem says."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from .history import LyapunovHistory

_MEASURED, _BOUND, _OTHER = "#2563c9", "#d1495b", "#5a7d2a"


def draw(history: LyapunovHistory, lip: float, path: str | Path | None = None) -> Figure:
    """Draw F, its descent, the gradient with its bound, and the O(1/K) mean.

    Args:
        history: of a :class:`~dessilbi.theory.LyapunovMonitor`.
        lip: largest curvature along the run.
        path: where to save it; the ending (png, svg, pdf) decides the format.

    Raises:
        ModuleNotFoundError: Without matplotlib; ``pip install 'dessilbi[report]'`` brings it.
    """
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "draw needs matplotlib: pip install 'dessilbi[report]'", name="matplotlib"
        ) from error
    check = history.check(lip)
    figure = Figure(figsize=(10, 6.4), layout="constrained")
    panels = figure.subplots(2, 2)
    steps = history.step
    alpha, kappa = history.alpha[-1], history.kappa[-1]
    figure.suptitle(
        rf"lr = {alpha * kappa:.3g}, $\kappa$ = {kappa:g}, $\nu$ = {history.nu[-1]:g}, "
        f"Lip = {lip:.3g}: F grew in {check.increases} of {check.steps} steps",
        fontsize=11,
    )

    left, right = panels[0]
    _line(left, steps, history.F, _MEASURED, "$F$", width=3.5)
    _line(left, steps, history.alpha * history.augmented, _BOUND, r"$\alpha\,\bar{L}$", "--")
    _line(left, steps, history.alpha * history.loss, "black", r"$\alpha\,L$", ":")
    wide = history.loss.min() > 0 and history.F.max() > 20 * history.F.min()
    _dress(left, "the Lyapunov function", log=bool(wide))

    _line(right, steps, history.descent, _MEASURED, "descent of $F$")
    _line(right, steps, history.descent_bound(lip), _BOUND, r"$\rho\,\|P_{k+1}-P_k\|^2$", "--")
    _dress(right, "sufficient descent")

    left, right = panels[1]
    _line(left, steps, history.subgrad, _MEASURED, r"$\|H\|$, subgradient of $F$")
    _line(
        left, steps, history.error_bound(lip), _BOUND, r"its bound $\rho_1\,\|P_{k+1}-P_k\|$", "--"
    )
    _line(left, steps, history.grad_loss, "black", r"$\|\nabla L(W)\|$", ":")
    _line(left, steps, history.gap, _OTHER, r"$\|W-\Gamma\|$", "-.")
    _dress(left, "towards a critical point")

    _line(right, steps, history.average, _MEASURED, r"mean of $\|P_{k+1}-P_k\|^2$")
    _line(right, steps, history.average_bound(lip), _BOUND, r"$F(Q_0)\,/\,(\rho K)$", "--")
    _dress(right, "the O(1/K) mean")
    right.set_xscale("log")

    if path is not None:
        figure.savefig(path, dpi=130)
    return figure


def _line(
    axes: Axes,
    x: NDArray[Any],
    y: NDArray[Any],
    color: str,
    label: str,
    style: str = "-",
    width: float = 1.6,
) -> None:
    axes.plot(x, y, style, color=color, lw=width, label=label)


def _dress(axes: Axes, title: str, *, log: bool = True) -> None:
    axes.set_title(title, fontsize=10)
    axes.set_xlabel("step")
    if log:
        axes.set_yscale("log", nonpositive="mask")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9)

"""A recorded run as a picture: four panels, one for each thing the theorem says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.figure import Figure

    from .history import LyapunovHistory

_MEASURED, _BOUND = {"color": "#2563c9"}, {"color": "#d1495b", "ls": "--"}
_LOSS, _GAP = {"color": "black", "ls": ":"}, {"color": "#5a7d2a", "ls": "-."}


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
    alpha, kappa = history.alpha[-1], history.kappa[-1]
    panels: dict[str, list[tuple[Any, str, dict[str, Any]]]] = {
        "the Lyapunov function": [
            (history.F, "$F$", _MEASURED | {"lw": 3.5}),
            (history.alpha * history.augmented, r"$\alpha\,\bar{L}$", _BOUND),
            (history.alpha * history.loss, r"$\alpha\,L$", _LOSS),
        ],
        "sufficient descent": [
            (history.descent, "descent of $F$", _MEASURED),
            (history.descent_bound(lip), r"$\rho\,\|P_{k+1}-P_k\|^2$", _BOUND),
        ],
        "towards a critical point": [
            (history.subgrad, r"$\|H\|$, subgradient of $F$", _MEASURED),
            (history.error_bound(lip), r"its bound $\rho_1\,\|P_{k+1}-P_k\|$", _BOUND),
            (history.grad_loss, r"$\|\nabla L(W)\|$", _LOSS),
            (history.gap, r"$\|W-\Gamma\|$", _GAP),
        ],
        "the O(1/K) mean": [
            (history.average, r"mean of $\|P_{k+1}-P_k\|^2$", _MEASURED),
            (history.average_bound(lip), r"$F(Q_0)\,/\,(\rho K)$", _BOUND),
        ],
    }
    figure = Figure(figsize=(10, 6.4), layout="constrained")
    figure.suptitle(
        rf"lr = {alpha * kappa:.3g}, $\kappa$ = {kappa:g}, $\nu$ = {history.nu[-1]:g}, "
        f"Lip = {lip:.3g}: F grew in {check.increases} of {check.steps} steps",
        fontsize=11,
    )
    all_axes = figure.subplots(2, 2).flat
    for axes, (title, lines) in zip(all_axes, panels.items(), strict=True):
        for values, label, look in lines:
            axes.plot(history.step, values, label=label, **{"lw": 1.6, **look})
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("step")
        axes.set_yscale("log", nonpositive="mask")
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=9)
    all_axes[-1].set_xscale("log")
    if history.loss.min() <= 0 or history.F.max() <= 20 * history.F.min():
        all_axes[0].set_yscale("linear")
    if path is not None:
        figure.savefig(path, dpi=130)
    return figure

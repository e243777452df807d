"""Panels as printed figures: the path of one run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dessilbi.report.filters import NEVER, best_layer, short, unit_word
from dessilbi.report.style import (
    COLUMN,
    ENTRY_MAP,
    INSIDE,
    OUTSIDE,
    PAGE,
    SIGNED_MAP,
    new_figure,
    whole_epochs,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from dessilbi.path import SolutionPath
    from dessilbi.report.filters import Filters
    from dessilbi.report.run_data import RunData

_MANY = 4000  # line segments, beyond which they become pixels in an SVG or PDF
_SHOWN = 32
"""Filters as images in a printed figure, and bars of a layer."""
_ACROSS = 8


def entry_epochs(path: SolutionPath, steps: NDArray[np.int32]) -> NDArray[np.float64]:
    """Steps as epochs and parts of them; NaN for never."""
    snapshots = np.array([s.step for s in path.snapshots], dtype=np.float64)
    epochs = np.interp(steps, snapshots, np.array(path.epochs, dtype=np.float64))
    return np.where(steps == NEVER, np.nan, epochs)


def paths(run: RunData, layer: str | None = None) -> Figure | None:
    """The norm of every filter of a layer: the paper's Figure 1."""
    from matplotlib.collections import LineCollection

    path, filters, name = _of(run, layer)
    rows = filters.rows(path.layers, name)
    W, inside = filters.W[:, rows], filters.inside[:, rows] > 0
    epochs = np.array(path.epochs, dtype=np.float64)
    figure = new_figure(COLUMN, 2.8)
    axes = figure.add_subplot()
    entry = entry_epochs(path, filters.entry[rows])
    came = ~np.isnan(entry)
    at = [np.interp(entry[i], epochs, W[:, i]) for i in np.flatnonzero(came)]
    if len(epochs) > 1:
        points = np.stack([np.broadcast_to(epochs[:, None], W.shape), W], axis=-1)
        stretches = np.stack([points[:-1], points[1:]], axis=2)
        before = []
        for unit, value in zip(np.flatnonzero(came), at, strict=True):
            # The step of the entry is known: what lies before it is static outside.
            index = min(int(np.searchsorted(epochs, entry[unit])), len(epochs) - 1) - 1
            if index >= 0 and inside[index + 1, unit] and not inside[index, unit]:
                before.append([stretches[index, unit, 0].copy(), [entry[unit], value]])
                stretches[index, unit, 0] = entry[unit], value
        segments = np.concatenate([stretches.reshape(-1, 2, 2), np.reshape(before, (-1, 2, 2))])
        now = np.concatenate([inside[1:].reshape(-1), np.zeros(len(before), dtype=np.bool_)])
        for chosen, colour, style, label in (
            (~now, OUTSIDE, (0, (3, 1.5)), "outside"), (now, INSIDE, "solid", "in the support")
        ):  # fmt: skip
            lines = LineCollection(
                list(segments[chosen]), colors=colour, linestyles=[style], linewidths=0.7,
                alpha=0.8, label=label, rasterized=len(segments) > _MANY,
            )  # fmt: skip
            axes.add_collection(lines)
    axes.plot(
        entry[came], at, "o", color=INSIDE, markersize=2.2, markerfacecolor="white",
        markeredgewidth=0.6, label="entry", rasterized=len(at) > _MANY,
    )  # fmt: skip
    axes.autoscale()
    axes.set_ylim(bottom=0)
    layer_found = path.layer(name)
    axes.set_ylabel(f"norm of the {unit_word(layer_found)}, ||W||")
    axes.set_title(f"{short(name)}: {int(came.sum())} of {layer_found.rows} entered")
    whole_epochs(axes)
    axes.legend()
    return figure


def entries(run: RunData) -> Figure | None:
    """Every filter of the net against epochs, coloured by the epoch of its entry."""
    path, filters, _ = _of(run, None)
    order = np.concatenate(
        [
            start + np.argsort(_late(filters.entry[start : start + layer.rows]), kind="stable")
            for layer, start in zip(path.layers, filters.starts, strict=True)
        ]
    )  # fmt: skip
    epoch = entry_epochs(path, filters.entry)
    picture = np.where(filters.inside > 0, epoch[None, :], np.nan).T[order]
    figure = new_figure(PAGE, 3.4)
    axes = figure.add_subplot()
    axes.set_facecolor("#e8e8e8")
    last = path.epochs[-1] + 1
    extent = (path.epochs[0] - 0.5, last - 0.5, float(len(order)), 0.0)
    image = axes.imshow(
        picture, aspect="auto", extent=extent, cmap=ENTRY_MAP, interpolation="nearest",
        vmin=0, vmax=max(path.epochs[-1], 1),
    )  # fmt: skip
    figure.colorbar(image, ax=axes, label="epoch of entry", pad=0.01)
    for start in filters.starts[1:]:
        axes.axhline(start, color="white", linewidth=0.6)
    middles = [s + layer.rows / 2 for s, layer in zip(filters.starts, path.layers, strict=True)]
    axes.set_yticks(middles, [short(layer.name) for layer in path.layers])
    axes.tick_params(axis="y", labelsize=min(7, max(3, 200 / len(middles))))
    axes.grid(visible=False)
    axes.set_title("Who entered when")
    whole_epochs(axes)
    return figure


def _late(entry: NDArray[np.int32]) -> NDArray[np.int64]:
    """For sorting: those that never entered come last."""
    return np.where(entry == NEVER, np.iinfo(np.int32).max, entry).astype(np.int64)


def next_to_enter(run: RunData, layer: str | None = None) -> Figure | None:
    """||V_g|| over lambd at the last epoch, filter by filter; of tied ones the joint norm."""
    path, filters, name = _of(run, layer)
    rows = filters.rows(path.layers, name)
    ratio = filters.joint[-1, rows] / filters.threshold[rows]
    if not np.isfinite(ratio).any():
        return None
    order = np.argsort(-ratio)
    inside = filters.inside[-1, rows][order] > 0
    figure = new_figure(COLUMN, 2.4)
    axes = figure.add_subplot()
    colours = np.where(inside, INSIDE, OUTSIDE)
    axes.bar(np.arange(len(order)), ratio[order], color=list(colours), width=0.8)
    axes.axhline(1, color="black", linewidth=0.8)
    if len(order) <= _SHOWN:
        axes.set_xticks(np.arange(len(order)), [str(i) for i in order], fontsize=5)
    else:
        axes.set_xticks([])
    axes.grid(visible=False, axis="x")
    axes.set_xlabel(f"{unit_word(path.layer(name))}s of {short(name)}, nearest first")
    tied = name in filters.partners
    axes.set_ylabel("joint ||V|| / lambd" if tied else "||V|| / lambd")
    axes.set_title(f"Who is next, after epoch {path.epochs[-1]}")
    return figure


def densities(run: RunData) -> Figure | None:
    """Density of every layer."""
    if run.path is None:
        found = run.last.get("densities")
        if not isinstance(found, dict) or not found:
            return None
        names, values = [short(str(n)) for n in found], [100 * float(v) for v in found.values()]
    else:
        path = run.path
        names = [short(layer.name) for layer in path.layers]
        values = [100 * path.density(path.epochs[-1], layer.name) for layer in path.layers]
    figure = new_figure(COLUMN, 0.9 + 0.16 * len(names))
    axes = figure.add_subplot()
    heights = np.arange(len(names))
    axes.barh(heights, values, color=INSIDE, height=0.65)
    axes.set_yticks(heights, names)
    axes.invert_yaxis()
    axes.set_xlim(0, 100)
    axes.set_xlabel("density, % of the layer's weights")
    axes.grid(visible=False, axis="y")
    axes.set_title(f"Density by layer after epoch {run.done}")
    return figure


def filter_images(run: RunData, layer: str | None = None) -> Figure | None:
    """W and Gamma at the last kept epoch."""
    if run.path is None or not run.checkpoints:
        return None
    path, filters, name = _of(run, layer)
    kept = run.checkpoints[-1]
    if name not in kept.images:
        name = next(iter(kept.images))
    found = kept.images[name]
    rows = filters.rows(path.layers, name)
    entry = filters.entry[rows]
    order = np.argsort(_late(entry), kind="stable")[:_SHOWN]
    figure = new_figure(PAGE, 0.5 + 0.42 * -(-len(order) // _ACROSS))
    inside = filters.inside[path.epochs.index(kept.epoch), rows][order] > 0
    for side, (label, images) in enumerate((("W", found.W), ("Gamma", found.Gamma))):
        axes = figure.add_subplot(1, 2, side + 1)
        # Each on a scale of its own: Gamma is W shrunk, and would be pale beside it.
        strong = np.abs(images[images != 0])
        scale = float(np.quantile(strong, 0.99)) if strong.size else 1.0
        _contact_sheet(axes, images[order] / scale, inside)
        axes.set_title(f"{label} of {short(name)}, epoch {kept.epoch}")
    return figure


def _contact_sheet(axes: Axes, images: NDArray[np.float32], inside: NDArray[np.bool_]) -> None:
    """Images from -1 to 1 in rows, with a frame that says whether each is in the support."""
    from matplotlib.patches import Rectangle

    _, height, width, channels = images.shape
    cell, frame = max(height, width), max(height, width) * 0.16
    for index, (image, is_inside) in enumerate(zip(images, inside, strict=True)):
        x, y = (index % _ACROSS) * (cell + frame), (index // _ACROSS) * (cell + frame)
        extent = (x, x + width, y + height, y)
        if channels == 3:
            axes.imshow(np.clip(0.5 + image / 2, 0, 1), extent=extent)
        else:
            axes.imshow(image[..., 0], cmap=SIGNED_MAP, vmin=-1, vmax=1, extent=extent)
        colour = INSIDE if is_inside else OUTSIDE
        axes.add_patch(
            Rectangle((x, y), width, height, fill=False, edgecolor=colour, linewidth=0.8)
        )
    axes.set_xlim(-frame / 2, _ACROSS * (cell + frame))
    axes.set_ylim(-(-len(images) // _ACROSS) * (cell + frame), -frame / 2)
    axes.set_axis_off()


def overlap(run: RunData) -> Figure | None:
    """Overlap of the supports of every two epochs."""
    found = run.overlap
    if found is None:
        return None
    epochs = found.epochs
    figure = new_figure(COLUMN, 2.8)
    axes = figure.add_subplot()
    ends = (epochs[0] - 0.5, epochs[-1] + 0.5)
    image = axes.imshow(
        100 * found.shares, origin="lower", extent=(*ends, *ends), cmap="cividis",
        vmin=0, vmax=100, interpolation="nearest",
    )  # fmt: skip
    figure.colorbar(image, ax=axes, label="overlap, %")
    axes.grid(visible=False)
    axes.set_ylabel("epoch")
    axes.set_title("Support overlap")
    whole_epochs(axes)
    return figure


def _of(run: RunData, layer: str | None) -> tuple[SolutionPath, Filters, str]:
    assert run.path is not None
    assert run.filters is not None
    name = best_layer(run.path) if layer is None else run.path.layer(layer).name
    return run.path, run.filters, name

"""The lottery figures a to d: tickets from early epochs of the path against pruning methods."""

from __future__ import annotations

from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING, Any

from dessilbi.lab.analysis.networks import trained_network
from dessilbi.lab.run.files import MASK
from dessilbi.paper.baselines.tickets import density
from dessilbi.paper.figures import Line, Panel, Points, draw_panels
from dessilbi.paper.published import LOTTERY
from dessilbi.paper.recipe import CIFAR10_CUT, Recipe, Scale, measure_curves, seed_list, stand_in
from dessilbi.paper.recipes.lottery_jobs import PanelJobs, size_of
from dessilbi.paper.tables import Table, cell
from dessilbi.path import Mask
from dessilbi.path.names import weights_with_twin

if TYPE_CHECKING:
    from pathlib import Path

    from dessilbi.lab.run.directory import RunDir
    from dessilbi.lab.run.options import RunOptions
    from dessilbi.paper.results import Results
    from dessilbi.paper.sweep.sweep import Job


def jobs(name: str, scale: Scale, seeds: int | None) -> list[Job]:
    """Everything a panel compares."""
    usual = size_of(name, scale).seeds
    return [job for seed in seed_list(seeds, usual) for job in PanelJobs(name, scale, seed).all()]


def measure(run: RunDir, job: Job, options: RunOptions) -> dict[str, Any]:
    """As usual, with the density that all methods can be compared by."""
    found = measure_curves(run, job, options)
    if job.labels["at"] == "dense":
        return found
    found.pop("curves")  # of the subnetworks only the end is shown
    found["collapsed"] = False  # one that cannot learn is a result of its method, and counts
    model = trained_network(run)
    if (run.path / MASK).is_file():
        found["kept"] = density(Mask.load(run.path / MASK), model)
    else:  # pruned while it trained: what is zero is gone
        weights = weights_with_twin(model).values()
        left = sum(int((w != 0).sum()) for w in weights)
        found["kept"] = left / sum(w.numel() for w in weights)
    found["kept"] = round(found["kept"], 6)
    return found


def _methods(results: Results) -> dict[str, list[str]]:
    """What was compared, and where."""
    found: dict[str, list[str]] = {}
    for record in results.where():
        at = str(record.labels["at"])
        if at != "dense" and "round" not in at:
            moments = found.setdefault(str(record.labels["method"]), [])
            if at not in moments:
                moments.append(at)
    return found


def tables(name: str, results: Results) -> list[Table]:
    """The figure in numbers; the paper gives none."""
    cells = [
        cell(results, {"method": method, "at": "dense"}, f"{method}, dense", "accuracy")
        for method in ("SGD", "DessiLBI")
    ]
    for method, moments in sorted(_methods(results).items()):
        for at in sorted(moments, key=lambda text: float(text.split()[-1])):
            labels = {"method": method, "at": at}
            kept = results.values("kept", **labels)
            size = f"{100 * sum(kept) / len(kept):.2f} % of the weights" if kept else ""
            cells.append(cell(results, labels, method, f"{at}: {size}"))
    title = f"Lottery, {_trained(name, results)}: test accuracy after retraining, in percent"
    note = "The paper shows this as a figure without numbers."
    return [Table(f"lottery-{name}", title, cells, notes=(note,))]


def draw(name: str, results: Results, out: Path, options: RunOptions) -> list[Path]:
    """Accuracy against density, and density along the training with the early stops."""
    points = []
    for method in sorted(_methods(results), key=lambda m: (m != "ticket", m)):
        records = [
            r
            for r in results.where(method=method)
            if "kept" in r.values and "round" not in str(r.labels["at"])
        ]
        x = [100 * r.values["kept"] for r in records]
        y = [r.values["accuracy"] for r in records]
        points.append(Points("DessiLBI ticket" if method == "ticket" else method, x, y))
    curves = [
        [100 * d for d in r.values["curves"]["density"]]
        for r in results.learned(method="DessiLBI", at="dense")
    ]
    lines = [Line("Gamma", range(1, len(curves[0]) + 1), curves)] if curves else []
    stops = size_of(name, results.scale).stops  # type: ignore[arg-type]
    dense = {
        f"{method}, dense": fmean(values)
        for method in ("SGD", "DessiLBI")
        if (values := results.values("accuracy", method=method, at="dense"))
    }
    panels = [
        Panel(
            "after retraining", "density, % of the weights", "test accuracy, %",
            points=points, horizontals=dense,
        ),
        Panel(
            "along the training", "epoch", "density of Gamma, %", lines, verticals=stops, log_x=True
        ),
    ]  # fmt: skip
    title = f"{_trained(name, results)}, {results.scale} scale"
    return draw_panels(panels, out / f"lottery-{name}", title)


def _trained(name: str, results: Results) -> str:
    """The network of a panel and what is pruned, in words."""
    model = size_of(name, results.scale).model  # type: ignore[arg-type]
    pruned = "by weight" if name.endswith("-lasso") else "by filter"
    return f"{stand_in(model, name.removesuffix('-lasso'))}, {pruned}"


def _recipe(panel: str, name: str) -> Recipe:
    deep = name.startswith("resnet")
    cpu = (
        ("ResNet-8 for " + ("ResNet-50" if "50" in name else "ResNet-56"), "8 epochs for 160")
        if deep
        else ("vgg-4 (16-32-64-64 filters) for VGG-16", "16 epochs for 160")
    )
    return Recipe(
        name=f"lottery-{name}",
        what=f"lottery figure ({panel}): {name}, tickets against pruning, and density curves",
        shows=("figure:lotteryticketacc", "figure:lotteryticketsparsity", "table:lotterysetting"),
        jobs=partial(jobs, name),
        tables=partial(tables, name),
        draw=partial(draw, name),
        measure=measure,
        costs={
            "smoke": "under a minute",
            "cpu": "a quarter of an hour on 2 cores" if deep else "40 minutes on 2 cores",
            "paper": "weeks on a GPU" if deep else "several days on a GPU",
        },
        cuts={
            "cpu": (
                *cpu,
                CIFAR10_CUT,
                "nu divided by 10, as there are far fewer steps for Gamma to grow in"
                + ("" if deep else f", lambd by {size_of(name, 'cpu').gentler:g}"),
                "fewer early stops and densities",
            ),
            "smoke": ("digits-net on 512 digits, 2 epochs, nu divided by 100",),
        },
        notes=(
            "Retraining uses SGD with Nesterov momentum, which the paper does not state.",
            "Thresholds of filters are lambd times the root of their size, as in the authors' code "
            "and not in the paper: with lambd alone every filter is in Gamma within an epoch.",
            "Soft Filter Pruning is not retrained, as in its paper: zeroed filters grow back "
            "during an epoch, and the last zeroing takes them out of a network that used them.",
            "Scratch-E and Scratch-B train the structure of Soft Filter Pruning (the same fraction "
            "of filters in every layer).",
        ),
    )


RECIPES = tuple(_recipe(panel, name) for panel, name in zip("abcd", LOTTERY.rows, strict=True))

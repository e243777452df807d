"""The lottery figures a to d: tickets from early epochs of the path against pruning methods."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING, Any

from dessilbi.lab.analysis.networks import trained_network
from dessilbi.lab.run.config import Config, ModelConfig, OptimizerConfig, ScheduleConfig
from dessilbi.lab.run.methods import Dense, GradualPruning, Method, NetworkSlimming, SoftFilters
from dessilbi.lab.training.build import network_without_data
from dessilbi.paper import baselines
from dessilbi.paper.baselines import SGD
from dessilbi.paper.figures import Panel, draw_panels, lines_of
from dessilbi.paper.published import LOTTERY
from dessilbi.paper.recipe import CIFAR10, Recipe, Scale, Setting, stand_in
from dessilbi.paper.tables import Table, cell
from dessilbi.path.names import weights_with_twin

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from dessilbi.lab.run.directory import RunDir
    from dessilbi.lab.run.options import RunOptions
    from dessilbi.paper.results import Results
    from dessilbi.paper.sweep import Job

HAN_ROUNDS = 3


@dataclass(frozen=True)
class Size:
    """How far a scale goes for a network."""

    model: str
    base: Config
    stops: tuple[int, ...]
    """Epochs at which a ticket is taken; on a logarithmic scale, as in the paper."""
    densities: tuple[float, ...]
    """Where the other methods are run."""
    seeds: int
    quicker: float = 1.0
    """Divides nu: V grows as many times faster, as there are fewer steps."""
    gentler: float = 1.0
    """Divides lambd, for tickets that are neither empty nor the whole network; chosen by their
    densities alone."""


_SMALLER = replace(
    CIFAR10["cpu"], schedule=ScheduleConfig(kind="multistep", milestones=(4, 6)), epochs=8
)


def size_of(name: str, scale: Scale) -> Size:
    """The size of a panel at a scale."""
    if scale == "paper":
        model, log_spaced = name.removesuffix("-lasso"), (5, 10, 20, 40, 80, 160)
        return Size(model, CIFAR10["paper"], log_spaced, (0.1, 0.2, 0.4, 0.6), seeds=5)
    if scale == "smoke":
        return Size("digits-net", CIFAR10["smoke"], (1, 2), (0.5,), seeds=1, quicker=100.0)
    if name.startswith("resnet"):
        return Size("resnet-8", _SMALLER, (2, 4, 8), (0.2, 0.5), seeds=1, quicker=10.0)
    gentler, stops = (3.0, (2, 4, 8, 16)) if name.endswith("-lasso") else (1.4, (4, 6, 8, 16))
    return Size("vgg-4", CIFAR10["cpu"], stops, (0.2, 0.5), seeds=2, quicker=10.0, gentler=gentler)


def optimizer_of(name: str, size: Size) -> OptimizerConfig:
    """DessiLBI as the paper's table of settings has it.

    Thresholds of filters grow with the root of their size, as in the authors' lottery code: with
    0.1 as it stands every filter is in Gamma within the first epoch, and no ticket is smaller than
    the network.
    """
    alpha, nu, kappa, lambd, momentum = (v or 0.0 for v in LOTTERY.rows[name])
    by_weight = name.endswith("-lasso")
    return OptimizerConfig(
        lr=kappa * alpha,
        nu=nu / size.quicker,
        kappa=kappa,
        lambd=lambd / size.gentler,
        momentum=momentum,
        nesterov=True,
        weight_decay=1e-4,
        penalty="lasso" if by_weight else "auto",
        size_scaled=not by_weight,
    )


@functools.cache
def _rate(config: Config, wanted: float) -> float:
    """Rate of Soft Filter Pruning for a density; a network is built for it, so once for all."""
    return round(baselines.rate_for(network_without_data(config), wanted), 6)


class Lottery(Recipe):
    """A panel: what it retrains is trained by SGD with Nesterov momentum.

    Soft Filter Pruning is not retrained, as in its paper: zeroed filters grow back during an epoch,
    and the last zeroing takes them out of a network that used them.
    """

    with_curves = True

    @property
    def panel(self) -> str:
        """The paper's setting."""
        return self.name.partition("-")[2]

    def settings(self, scale: Scale) -> list[Setting]:
        """Everything that is compared."""
        size, found = size_of(self.panel, scale), list[Setting]()
        base = replace(size.base, name=self.name, model=ModelConfig(name=size.model))
        by_weight, tuning = self.panel.endswith("-lasso"), max(base.epochs // 4, 1)

        def add(method: str, at: str, config: Config | Callable[..., Config], *needs: str) -> str:
            labels = {"network": self.panel, "method": method, "at": at}
            setting = Setting(labels=labels, config=config, needs=needs, seeds=size.seeds)
            found.append(setting)
            return setting.key

        def by_sgd(word: str, method: Method) -> Config:
            return replace(base, optimizer=SGD, method=method, name=f"{base.name}-{word}")

        parent = add("DessiLBI", "dense", replace(base, optimizer=optimizer_of(self.panel, size)))
        dense = add("SGD", "dense", by_sgd("sgd", Dense()))
        for epoch in size.stops:
            at = f"epoch {epoch}"
            add("ticket", at, partial(baselines.ticket, epoch=epoch), parent)
            add("SGD-lottery", at, partial(baselines.sgd_lottery, epoch=epoch), parent, dense)
            add("random", at, partial(baselines.random_ticket, epoch=epoch), parent, dense)
        for wanted in size.densities if by_weight else ():
            at = f"density {wanted:g}"
            add("Rethinking-Lottery", at, partial(baselines.rethinking, density=wanted), dense)
            # Zhu, Gupta: To prune, or not to prune. 2017. Every layer goes to the same density.
            gradual = GradualPruning(density=wanted, penalty="lasso", every=100, per_layer=True)
            add("Iterative-Pruning-B", at, by_sgd("gradual-by-layer", gradual))
            before = dense
            for number in range(1, HAN_ROUNDS + 1):  # each keeps the same fraction of what is left
                reached = wanted ** (number / HAN_ROUNDS)
                again = partial(baselines.han_round, density=reached, epochs=tuning)
                where = at if number == HAN_ROUNDS else f"{at}, round {number}"
                before = add("Iterative-Pruning-A", where, again, before)
        if not by_weight:
            slimming = by_sgd("slimming", NetworkSlimming(strength=1e-4))
            slim = add("Network Slimming", "dense", slimming)
            for wanted in size.densities:
                at, rate = f"density {wanted:g}", _rate(base, wanted)
                slimmed = partial(baselines.slimmed, density=wanted, epochs=tuning)
                add("Network Slimming", at, slimmed, slim)
                add("Soft Filter Pruning", at, by_sgd("sfp", SoftFilters(rate=rate)))
                for kind in ("e", "b"):
                    scratch = partial(baselines.scratch, rate=rate, kind=kind)
                    add(f"Scratch-{kind.upper()}", at, scratch, dense)
        return found

    def measure(self, run: RunDir, job: Job, options: RunOptions) -> dict[str, Any]:
        """As usual, with the density that all methods can be compared by."""
        found = super().measure(run, job, options)
        if job.labels["at"] == "dense":
            return found
        found.pop("curves")  # of the subnetworks only the end is shown
        found["collapsed"] = False  # one that cannot learn is a result of its method, and counts
        weights = weights_with_twin(trained_network(run)).values()
        kept = sum(int(w.count_nonzero()) for w in weights) / sum(w.numel() for w in weights)
        return found | {"kept": round(kept, 6)}

    def _methods(self, results: Results) -> dict[str, list[str]]:
        """What was compared with the dense networks, and where."""
        found: dict[str, list[str]] = {}
        for record in results.where():
            method, at = str(record.labels["method"]), str(record.labels["at"])
            if at != "dense" and "round" not in at and at not in found.setdefault(method, []):
                found[method].append(at)
        return found

    def tables(self, results: Results) -> list[Table]:
        """The figure in numbers; the paper gives none."""
        cells = [
            cell(results, {"method": method, "at": "dense"}, f"{method}, dense", "accuracy")
            for method in ("SGD", "DessiLBI")
        ]
        for method, moments in sorted(self._methods(results).items()):
            for at in sorted(moments, key=lambda text: float(text.split()[-1])):
                labels = {"method": method, "at": at}
                kept = results.values("kept", **labels)
                size = f"{100 * sum(kept) / len(kept):.2f} % of the weights" if kept else ""
                cells.append(cell(results, labels, method, f"{at}: {size}"))
        title = f"Lottery, {self._trained(results)}: test accuracy after retraining, in percent"
        note = "The paper shows this as a figure without numbers."
        return [Table(self.name, title, cells, notes=(note,))]

    def draw(self, results: Results, out: Path, options: RunOptions) -> list[Path]:
        """Accuracy against density, and density along the training with the early stops."""
        points = {}
        for method in sorted(self._methods(results), key=lambda m: (m != "ticket", m)):
            records = [
                r
                for r in results.where(method=method)
                if "kept" in r.values and "round" not in str(r.labels["at"])
            ]
            kept = [100 * r.values["kept"] for r in records]
            label = "DessiLBI ticket" if method == "ticket" else method
            points[label] = (kept, [r.values["accuracy"] for r in records])
        dense = {
            f"{method}, dense": fmean(values)
            for method in ("SGD", "DessiLBI")
            if (values := results.values("accuracy", method=method, at="dense"))
        }
        gamma = lines_of(results, "density", {"Gamma": {"method": "DessiLBI", "at": "dense"}})
        panels = [
            Panel(
                "after retraining",
                "test accuracy, %",
                points=points,
                horizontals=dense,
                xlabel="density, % of the weights",
            ),
            Panel(
                "along the training",
                "density of Gamma, %",
                gamma,
                verticals=size_of(self.panel, results.scale).stops,
                log_x=True,
            ),
        ]
        title = f"{self._trained(results)}, {results.scale} scale"
        return draw_panels(panels, out / self.name, title)

    def _trained(self, results: Results) -> str:
        """The network of a panel and what is pruned, in words."""
        pruned = "by weight" if self.panel.endswith("-lasso") else "by filter"
        model = size_of(self.panel, results.scale).model
        return f"{stand_in(model, self.panel.removesuffix('-lasso'))}, {pruned}"

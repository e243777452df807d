"""The runs of a lottery panel: tickets from early epochs of the path, and pruning methods."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from dessilbi.lab.analysis.choice import Retrain
from dessilbi.lab.analysis.networks import trained_network
from dessilbi.lab.analysis.subnetworks import open_path, retrain
from dessilbi.lab.run.config import Config, ModelConfig, OptimizerConfig, ScheduleConfig
from dessilbi.lab.run.methods import GradualPruning, Method, NetworkSlimming, SoftFilters
from dessilbi.lab.training.build import network_without_data
from dessilbi.paper.baselines import iterative, slimming, soft_filters, tickets
from dessilbi.paper.baselines.scratch import scratch
from dessilbi.paper.published import LOTTERY
from dessilbi.paper.recipe import CIFAR10
from dessilbi.paper.sweep.sweep import Job, Label

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dessilbi.lab.run.directory import RunDir
    from dessilbi.paper.recipe import Scale
    from dessilbi.path import Mask

SLIMMING_STRENGTH = 1e-4
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
    deep = name.startswith("resnet")
    if scale == "paper":
        model = name.removesuffix("-lasso")
        return Size(
            model, CIFAR10["paper"], (5, 10, 20, 40, 80, 160), (0.1, 0.2, 0.4, 0.6), seeds=5
        )
    if scale == "smoke":
        return Size("digits-net", CIFAR10["smoke"], (1, 2), (0.5,), seeds=1, quicker=100.0)
    if deep:
        return Size("resnet-8", _SMALLER, (2, 4, 8), (0.2, 0.5), seeds=1, quicker=10.0)
    gentler, stops = (3.0, (2, 4, 8, 16)) if name.endswith("-lasso") else (1.4, (4, 6, 8, 16))
    return Size("vgg-4", CIFAR10["cpu"], stops, (0.2, 0.5), seeds=2, quicker=10.0, gentler=gentler)


def optimizer_of(name: str, size: Size) -> OptimizerConfig:
    """DessiLBI as the paper's table of settings has it.

    Thresholds of filters grow with the root of their size, as in the authors' lottery code: with
    0.1 as it stands every filter is in Gamma within the first epoch, and no ticket is smaller than
    the network.
    """
    lr, nu, kappa, lambd, momentum = (v or 0.0 for v in LOTTERY.rows[name])
    by_weight = name.endswith("-lasso")
    return OptimizerConfig(
        lr=kappa * lr,
        nu=nu / size.quicker,
        kappa=kappa,
        lambd=lambd / size.gentler,
        momentum=momentum,
        nesterov=True,
        weight_decay=1e-4,
        penalty="lasso" if by_weight else "auto",
        size_scaled=not by_weight,
    )


SGD = OptimizerConfig(name="sgd", lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-4)


class PanelJobs:
    """The runs of one panel and seed."""

    def __init__(self, name: str, scale: Scale, seed: int) -> None:
        self.name, self.seed, self.size = name, seed, size_of(name, scale)
        self.base = replace(
            self.size.base,
            name=f"lottery-{name}",
            model=ModelConfig(name=self.size.model),
            seed=seed,
        )
        self.tuning = max(self.base.epochs // 4, 1)
        """Epochs of fine-tuning, and of a round of Han's."""
        self.parent, self.dense = self._key("DessiLBI", "dense"), self._key("SGD", "dense")
        self.found: list[Job] = []

    def _key(self, method: str, at: str) -> str:
        return f"{self.name}/{method}/{at}/seed={self.seed}"

    def add(
        self,
        method: str,
        at: str,
        config: Any,
        *needs: str,
        epochs: int | None = None,
        **more: Any,
    ) -> str:
        """Plan a run, as long as the dense training unless told otherwise; returns its key."""
        key = self._key(method, at)
        labels: dict[str, Label] = {
            "network": self.name,
            "method": method,
            "at": at,
            "seed": self.seed,
        }
        epochs = self.base.epochs if epochs is None else epochs
        self.found.append(
            Job(key=key, config=config, needs=needs, labels=labels, epochs=epochs, **more)
        )
        return key

    def all(self) -> list[Job]:
        """The runs, each after those that it needs."""
        optimizer = optimizer_of(self.name, self.size)
        self.add("DessiLBI", "dense", replace(self.base, optimizer=optimizer))
        self.add("SGD", "dense", replace(self.base, optimizer=SGD, name=f"{self.base.name}-sgd"))
        for epoch in self.size.stops:
            self._tickets(epoch)
        for wanted in self.size.densities:
            if self.name.endswith("-lasso"):
                self._by_weight(wanted)
            else:
                self._by_filter(wanted)
        return self.found

    # ------------------------------------------------------------------ tickets of the path

    def _tickets(self, epoch: int) -> None:
        at = f"epoch {epoch}"

        def ticket(runs: Mapping[str, RunDir]) -> Config:
            mask = open_path(runs[self.parent]).mask(epoch=epoch)
            return self._retrained(runs[self.parent], mask, "ticket", at)

        def lottery(runs: Mapping[str, RunDir]) -> Config:
            like = open_path(runs[self.parent]).mask(epoch=epoch)
            mask = tickets.largest_as(trained_network(runs[self.dense]), like)
            return self._retrained(runs[self.dense], mask, "sgd-lottery", at)

        def random(runs: Mapping[str, RunDir]) -> Config:
            like = open_path(runs[self.parent]).mask(epoch=epoch)
            mask = tickets.random_as(like, seed=1000 * self.seed + epoch)
            return self._retrained(runs[self.dense], mask, "random", at)

        self.add("ticket", at, ticket, self.parent)
        self.add("SGD-lottery", at, lottery, self.parent, self.dense)
        self.add("random", at, random, self.parent, self.dense)

    def _retrained(self, run: RunDir, mask: Mask, method: str, words: str) -> Config:
        how, folder = Retrain("scratch"), run.path.parent
        return retrain(run, mask, words, how, folder, name=method, optimizer=SGD)

    def _trained_with(self, method: Method, name: str) -> Config:
        return replace(self.base, optimizer=SGD, method=method, name=f"{self.base.name}-{name}")

    # ------------------------------------------------------------------ panels a and b

    def _by_filter(self, wanted: float) -> None:
        at = f"density {wanted:g}"
        slim = self._key("Network Slimming", "dense")
        if all(job.key != slim for job in self.found):
            config = self._trained_with(NetworkSlimming(strength=SLIMMING_STRENGTH), "slimming")
            self.add("Network Slimming", "dense", config)

        def slimmed(runs: Mapping[str, RunDir]) -> Config:
            run = runs[slim]
            mask = slimming.slimmed(trained_network(run), wanted)
            how, folder = Retrain("finetune"), run.path.parent
            return retrain(run, mask, at, how, folder, name="slimmed", epochs=self.tuning)

        self.add("Network Slimming", at, slimmed, slim, epochs=self.tuning)
        rate = _rate(replace(self.base, seed=0), wanted)
        self.add("Soft Filter Pruning", at, self._trained_with(SoftFilters(rate=rate), "sfp"))

        def from_scratch(runs: Mapping[str, RunDir], kind: Any) -> Config:
            run = runs[self.dense]
            mask = soft_filters.weak_filters_out(network_without_data(self.base), rate)
            return scratch(run, mask, run.path.parent, kind)

        self.add("Scratch-E", at, partial(from_scratch, kind="e"), self.dense)
        # About what `scratch` will count: most layers keep that share of inputs and of outputs.
        longer = round(self.base.epochs * min(2.0, (1 - rate) ** -2))
        self.add("Scratch-B", at, partial(from_scratch, kind="b"), self.dense, epochs=longer)

    # ------------------------------------------------------------------ panels c and d

    def _by_weight(self, wanted: float) -> None:
        at = f"density {wanted:g}"

        def rethinking(runs: Mapping[str, RunDir]) -> Config:
            mask = tickets.one_shot(trained_network(runs[self.dense]), wanted)
            return self._retrained(runs[self.dense], mask, "rethinking", at)

        self.add("Rethinking-Lottery", at, rethinking, self.dense)
        # Zhu, Gupta: To prune, or not to prune. 2017. Every layer goes to the same density.
        method = GradualPruning(density=wanted, penalty="lasso", every=100, per_layer=True)
        self.add("Iterative-Pruning-B", at, self._trained_with(method, "gradual-by-layer"))
        parent = self.dense
        rounds = iterative.densities(wanted, HAN_ROUNDS)
        for number, reached in enumerate(rounds, start=1):

            def again(
                runs: Mapping[str, RunDir], parent: str = parent, reached: float = reached
            ) -> Config:
                run = runs[parent]
                return iterative.next_round(run, reached, run.path.parent, epochs=self.tuning)

            last = number == len(rounds)
            where = at if last else f"{at}, round {number}"
            parent = self.add("Iterative-Pruning-A", where, again, parent, epochs=self.tuning)


@functools.cache
def _rate(config: Config, wanted: float) -> float:
    """Rate of Soft Filter Pruning for a density; a network is built for it, so once for all."""
    return round(soft_filters.rate_for(network_without_data(config), wanted), 6)

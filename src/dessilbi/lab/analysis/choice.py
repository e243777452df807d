"""Which point of a path, and how its subnetwork is trained; without torch, for the commands."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from dessilbi.lab.run.config import ConfigError, StopConfig

if TYPE_CHECKING:
    from dessilbi.path import Mask, SolutionPath

DENSITIES = (0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0)
"""Budgets of a frontier."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Which point of the path; exactly one of the first four."""

    density: float | None = None
    """Fraction of the weights."""
    parameters: int | None = None
    """Number of weights."""
    epoch: int | None = None
    """The support of Gamma after this epoch."""
    stable: bool = False
    """The support of Gamma at the epoch where it settled."""
    order: str | None = None
    """Ranking for a budget; by default the best one known (docs/subnets.md)."""

    @property
    def name(self) -> str:
        """For a folder; empty if nothing was chosen."""
        given = {
            "": self.density,
            "weights-": self.parameters,
            "epoch-": self.epoch,
            "stable": "" if self.stable else None,
        }
        name = "-".join(f"{kind}{value}" for kind, value in given.items() if value is not None)
        return f"{name}-{self.order}" if name and self.order else name

    def mask(self, path: SolutionPath, stop: StopConfig | None = None) -> tuple[Mask, str]:
        """The mask, and how it was chosen in words; ``stop`` is the run's rule of settling."""
        given = [self.density, self.parameters, self.epoch, self.stable or None]
        if sum(value is not None for value in given) != 1:
            raise ConfigError("choose one of --density, --parameters, --epoch and --stable")
        if self.stable:
            epoch = settled_epoch(path, stop or StopConfig())
            if epoch is None:
                raise ConfigError(
                    f"the support did not settle within {len(path.epochs)} epochs; "
                    "train longer, or choose --epoch or --density"
                )
            return path.mask(epoch=epoch), f"settled at epoch {epoch}"
        if self.epoch is not None:
            return path.mask(epoch=self.epoch), f"epoch {self.epoch}"
        mask = path.mask(density=self.density, parameters=self.parameters, order=self.order)
        budget = f"density {self.density:g}" if self.parameters is None else f"{mask.kept} weights"
        return mask, f"{budget} by {self.order or path.default_order}"


@dataclass(frozen=True)
class Retrain:
    """How a subnetwork is trained; ``parse`` reads the command line's word for it."""

    how: Literal["one-shot", "scratch", "scratch-b", "rewind", "finetune"]
    epoch: int = 0

    @classmethod
    def parse(cls, word: str | None) -> Retrain:
        """``None``, scratch, scratch-b, rewind:30 or finetune."""
        if word is None:
            return cls("one-shot")
        if word in ("scratch", "scratch-b", "finetune"):
            return cls(word)  # type: ignore[arg-type]
        if found := re.fullmatch(r"rewind:(\d+)", word):
            return cls("rewind", int(found[1]))
        raise ConfigError(
            f"retrain must be scratch, scratch-b, rewind:EPOCH or finetune, got {word!r}"
        )


def settled_epoch(path: SolutionPath, stop: StopConfig) -> int | None:
    """The epoch at which a run's own rule finds the support settled."""
    return path.stable_epoch(stop.window, stop.tolerance, stop.distance)

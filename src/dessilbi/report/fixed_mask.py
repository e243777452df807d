"""The subnetwork of a run of ``dessilbi subnet``, which holds its mask exactly while it trains."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class FixedMask:
    """What the record before training says of it; ``None`` where there is no such record."""

    density: float | None
    accuracy: float | None
    """Before training, in percent."""
    recalibrated_accuracy: float | None


def split_fixed_mask(
    records: list[dict[str, Any]], *, has_twin: bool
) -> tuple[FixedMask, list[dict[str, Any]]]:
    """The subnetwork, and the records without what they say of it in the words of the support.

    Before training density and recalibrated accuracy are those of the mask. With a twin, later
    records mean the support of Gamma; without one the mask is all there is, and it stays.

    Args:
        records: of a run that starts from a mask.
        has_twin: whether its optimizer has a Gamma.
    """
    start = next((r for r in records if r["epoch"] == 0), {})
    numbers = ("density", "accuracy", "recalibrated_accuracy")
    found = FixedMask(*(start.get(name) for name in numbers))
    mask = {name: start[name] for name in ("density", "densities") if name in start}
    of_the_mask = {"recalibrated_accuracy", *mask}
    bare = {name: value for name, value in start.items() if name not in of_the_mask}
    left = [bare if r is start else r for r in records]
    return found, left if has_twin else [mask | r for r in left]

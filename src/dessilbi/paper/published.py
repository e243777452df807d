"""Every number of the paper's tables, read from ``published.toml``."""

from __future__ import annotations

import math
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, kw_only=True)
class PublishedTable:
    """A table of the paper."""

    label: str
    """Its label in the paper's source, without ``table:``."""
    title: str
    columns: tuple[str, ...]
    rows: Mapping[str, tuple[float | None, ...]]
    """``None`` where the paper prints a dash."""
    spreads: Mapping[str, float] = field(default_factory=dict)
    """Noise of a row, where the paper lets it be known."""

    def value(self, row: str, column: str) -> float | None:
        """A number as the paper prints it; ``None`` where it prints a dash."""
        return self.rows[row][self.columns.index(column)]


def _table(label: str, rows: dict[str, list[float]], **more: Any) -> PublishedTable:
    known = {row: tuple(None if math.isnan(v) else v for v in rows[row]) for row in rows}
    more["columns"] = tuple(more["columns"])
    return PublishedTable(label=label, rows=known, **more)


_CONTENT = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
FIGURES: Final[list[str]] = _CONTENT.pop("figures")
TABLES: Final = {label: _table(label, **content) for label, content in _CONTENT.items()}
"""All tables by label."""

CLASSIFICATION: Final = TABLES["supervised_imagenet_mnist_cifar"]
IMAGENET: Final = PublishedTable(
    label="supervised_imagenet",
    title="Table 1: top-1 / top-5 accuracy on ImageNet-2012",
    columns=CLASSIFICATION.columns[2:],
    rows={row: values[2:] for row, values in CLASSIFICATION.rows.items() if any(values[2:])},
)
TABLES[IMAGENET.label] = IMAGENET
KAPPA: Final = TABLES["ablation_k"]
NU: Final = TABLES["ablation_n"]
EPOCHS: Final = (20, 40, 80, 160)
"""The epochs of the two tables of density and sparse accuracy along the training."""
KAPPA_EPOCHS: Final = TABLES["sparsek"]
NU_EPOCHS: Final = TABLES["sparsen"]
COST: Final = TABLES["ccost"]
LAYERS_LENET_3: Final = TABLES["layer sparsity_lenet"]
LAYERS_CONV_2: Final = TABLES["layer sparsity_conv_2"]
LAYERS_CONV_4: Final = TABLES["layer sparsity_conv_4"]
OVERALL_DENSITY: Final = {"lenet-3": 0.055, "conv-2": 0.0185, "conv-4": 0.1378}
"""Density of all layers together, given in the text of the appendix on fine-tuning."""
LOTTERY: Final = TABLES["lotterysetting"]
"""All four use Nesterov; the first two the group Lasso by filter, the others the Lasso."""

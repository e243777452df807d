"""Every table and figure of the paper by name."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Final

from dessilbi.lab.run.config import ConfigError
from dessilbi.paper.recipes import (
    ablation,
    classification,
    cost,
    filters,
    gradients,
    layers,
    lottery,
)

if TYPE_CHECKING:
    from dessilbi.paper.recipe import Recipe

RECIPES: Final[dict[str, Recipe]] = {
    recipe.name: recipe
    for recipe in (
        *classification.RECIPES,
        *ablation.RECIPES,
        *lottery.RECIPES,
        *layers.RECIPES,
        cost.RECIPE,
        filters.RECIPE,
        gradients.RECIPE,
    )
}


def find(name: str) -> Recipe:
    """A recipe by name."""
    if name in RECIPES:
        return RECIPES[name]
    near = difflib.get_close_matches(name, RECIPES, n=1, cutoff=0.4)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise ConfigError(f"unknown recipe {name!r}{hint} `dessilbi reproduce --list` shows all")

"""Every table and figure of the paper by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from dessilbi._text import did_you_mean
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
    hint = did_you_mean(name, RECIPES, otherwise=";")
    raise ConfigError(f"unknown recipe {name!r}{hint} `dessilbi reproduce --list` shows all")

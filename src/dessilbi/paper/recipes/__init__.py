"""Every table and figure of the paper by name; ``recipes.toml`` says what each of them is."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dessilbi._text import did_you_mean
from dessilbi.lab.run.config import ConfigError
from dessilbi.paper.recipes.ablation import Ablation
from dessilbi.paper.recipes.classification import Classification
from dessilbi.paper.recipes.cost import Cost
from dessilbi.paper.recipes.images import FilterPath, GradientImages
from dessilbi.paper.recipes.layers import Finetune, Layers
from dessilbi.paper.recipes.lottery import Lottery

if TYPE_CHECKING:
    from dessilbi.paper.recipe import Recipe

KINDS: Final[dict[str, type[Recipe]]] = {
    "table": Classification,
    "ablation": Ablation,
    "lottery": Lottery,
    "layers": Layers,
    "finetune": Finetune,
    "cost": Cost,
    "filters": FilterPath,
    "gradients": GradientImages,
}
"""By the first word of a recipe's name."""
_CONTENT = tomllib.loads((Path(__file__).parents[1] / "recipes.toml").read_text())


def _described(name: str) -> dict[str, Any]:
    """What the file says of a recipe, and of the one that it is like."""
    own = dict(_CONTENT[name])
    other = _described(own.pop("like")) if "like" in own else {}
    together = {what: other.get(what, {}) | own.get(what, {}) for what in ("costs", "cuts")}
    return other | own | together


RECIPES: Final[dict[str, Recipe]] = {
    name: KINDS[name.partition("-")[0]](name=name, **_described(name)) for name in _CONTENT
}


def find(name: str) -> Recipe:
    """A recipe by name."""
    if name in RECIPES:
        return RECIPES[name]
    hint = did_you_mean(name, RECIPES, otherwise=";")
    raise ConfigError(f"unknown recipe {name!r}{hint} `dessilbi reproduce --list` shows all")

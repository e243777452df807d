"""timm: its optimizer factory knows ``dessilbi`` and ``dessilbiadamw`` after :func:`register`."""

from __future__ import annotations

from typing import Any

import torch
from timm.optim import OptimInfo
from timm.optim._optim_factory import default_registry

from dessilbi.optim import DessiLBI, SplitLBI

_TWIN = frozenset({"steps", "tau", "c", "kappa", "nu", "lambd", "v_dtype"})


def register() -> None:
    """Enter the optimizers into timm's registry.

    Let :func:`dessilbi.split_parameters` make the groups: timm's own know nothing of filters and
    embeddings.

    Example:
        ``create_optimizer_v2(model, "dessilbi", lr=0.1, param_group_fn=split_parameters)``
    """
    for info in (
        OptimInfo(
            "dessilbi",
            DessiLBI,
            "SGD with a sparse twin of the weights, and the path of its support",
            has_eps=False,
            has_momentum=True,
        ),
        # timm splits names at underscores.
        OptimInfo("dessilbiadamw", twin_adamw, "AdamW with a sparse twin", has_betas=True),
    ):
        if info.name not in default_registry.list_optimizers():
            default_registry.register(info)


def twin_adamw(params: Any, **options: Any) -> SplitLBI:
    """AdamW with a twin, in one call."""
    twin = {name: options.pop(name) for name in _TWIN & options.keys()}
    return SplitLBI(torch.optim.AdamW(params, **options), **twin)

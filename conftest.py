"""What the examples in docstrings take for granted: torch and the package's public names."""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING, Any

import pytest
import torch

import dessilbi

if TYPE_CHECKING:
    from collections.abc import Iterator


# Their frameworks take seconds to import; the tests of the adapters do it once.
collect_ignore_glob = ["src/dessilbi/integrations/*", "examples/*"]


@pytest.fixture(autouse=True)
def _names_in_examples(doctest_namespace: dict[str, Any]) -> Iterator[None]:
    torch.manual_seed(0)
    public = {name: getattr(dessilbi, name) for name in dessilbi.__all__}
    doctest_namespace.update(public, torch=torch, nn=torch.nn)
    yield
    vars(builtins).pop("_", None)  # an example leaves its last value there, for everybody to see

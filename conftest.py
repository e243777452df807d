"""What the examples in docstrings take for granted: torch and the package's public names."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import dessilbi


@pytest.fixture(autouse=True)
def _names_in_examples(doctest_namespace: dict[str, Any]) -> None:
    torch.manual_seed(0)
    public = {name: getattr(dessilbi, name) for name in dessilbi.__all__}
    doctest_namespace.update(public, torch=torch, nn=torch.nn)

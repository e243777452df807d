"""Finished runs that several files look at."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lab_runs import FILTERS, NESTED, PRUNED, SMALL, STOPPED, uninterrupted

if TYPE_CHECKING:
    from dessilbi.lab.run.directory import RunDir


@pytest.fixture(scope="module")
def parent(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    return uninterrupted(SMALL, tmp_path_factory.mktemp("parent"))


@pytest.fixture(scope="module")
def filters(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    return uninterrupted(FILTERS, tmp_path_factory.mktemp("filters"))


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    return uninterrupted(STOPPED, tmp_path_factory.mktemp("stopped"))


@pytest.fixture(scope="module")
def nested(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    return uninterrupted(NESTED, tmp_path_factory.mktemp("nested"))


@pytest.fixture(scope="module")
def pruned(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    return uninterrupted(PRUNED, tmp_path_factory.mktemp("pruned"))

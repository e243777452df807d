"""Finished runs that several files look at."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dessilbi.lab.run.options import RunOptions
from dessilbi.lab.training.loop import train
from lab_runs import FILTERS, NESTED, PRUNED, SMALL, STOPPED, TEXT, uninterrupted, write_text

if TYPE_CHECKING:
    from pathlib import Path

    from dessilbi.lab.run.directory import RunDir


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small text."""
    return write_text(tmp_path_factory.mktemp("texts"))


@pytest.fixture(scope="session")
def text_run(texts: Path, tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """A language model of it, trained; not to be written to."""
    return train(TEXT, RunOptions(runs=tmp_path_factory.mktemp("text"), data_dir=texts))


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

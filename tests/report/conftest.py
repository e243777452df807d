"""Runs that the tests of the report share: they are only read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from report_runs import add_budgets, conv_run, sgd_run, subnet_run, tied_run

if TYPE_CHECKING:
    from pathlib import Path

    from dessilbi.lab.run.directory import RunDir


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("report-runs")


@pytest.fixture(scope="session")
def run(runs: Path) -> RunDir:
    made = conv_run(runs)
    add_budgets(made)
    return made


@pytest.fixture(scope="session")
def other(runs: Path) -> RunDir:
    return conv_run(runs, seed=1, keep=())


@pytest.fixture(scope="session")
def plain(runs: Path) -> RunDir:
    return sgd_run(runs)


@pytest.fixture(scope="session")
def tied(runs: Path) -> RunDir:
    return tied_run(runs, lambd=0.56)


@pytest.fixture(scope="session")
def shorter(runs: Path) -> RunDir:
    return conv_run(runs, epochs=2, keep=())


@pytest.fixture(scope="session")
def retrained(run: RunDir) -> RunDir:
    return subnet_run(run, "finetune", epochs=2)

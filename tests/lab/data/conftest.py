import os
from pathlib import Path

import pytest

from dessilbi.lab.data import places


@pytest.fixture(autouse=True)
def _isolated(monkeypatch, tmp_path):
    """No test sees the machine's own data, cache, mirror or proxy."""
    monkeypatch.setenv("DESSILBI_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("DESSILBI_DATA", raising=False)
    monkeypatch.delenv("DESSILBI_MIRROR", raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(places, "SYSTEM_DATASETS", tmp_path / "no-system-datasets")


@pytest.fixture
def real_data() -> Path:
    """The folder of published sets beside the repository, or the one named in the environment."""
    beside = Path(__file__).resolve().parents[3].parent / "shared" / "data"
    folder = Path(os.environ.get("DESSILBI_TEST_DATA", beside))
    if not folder.is_dir():
        pytest.skip("no published sets here; set DESSILBI_TEST_DATA to a folder with mnist/ ...")
    return folder

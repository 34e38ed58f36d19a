"""Fixtures shared by all tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[2] / "shared"


@pytest.fixture(scope="session")
def shared() -> Path:
    """Folder with real traces, model configurations and measurements; tests that need it are skipped where it is absent."""
    if not (SHARED / "data").is_dir():
        pytest.skip("the folder ../shared with recorded data is not beside this checkout")
    return SHARED


@pytest.fixture(scope="session", autouse=True)
def cache_folder(tmp_path_factory) -> Iterator[Path]:
    """Let no test read or write the cache of whoever runs it; tests share one of their own."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        yield folder

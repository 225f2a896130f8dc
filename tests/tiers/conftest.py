"""One store for the tests that leave it alive, one of its own for each that does not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tiers.mooncake_store import Store, require_store


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    require_store()
    running = Store(tmp_path_factory.mktemp("store"))
    yield running
    running.close()


@pytest.fixture
def own_store(tmp_path: Path) -> Iterator[Store]:
    require_store()
    running = Store(tmp_path)
    yield running
    running.close()

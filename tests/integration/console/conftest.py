"""A cluster that the tests of this room share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dafka_console.server import Console
from dafka_core import EmbeddedCluster
from dafka_core.testing import StoreDouble
from tests.forked import ForkedCluster


@pytest.fixture(scope="package")
def cluster() -> Iterator[EmbeddedCluster]:
    """Two stores; each test has a topic of its own."""
    with ForkedCluster(stores=2) as running:
        yield running


@pytest.fixture(scope="package")
def console(cluster: EmbeddedCluster) -> Iterator[Console]:
    """It looks often, so that tests need not wait."""
    with Console({"tower": cluster.tower}, listen="127.0.0.1:0", interval_ms=100) as running:
        yield running


@pytest.fixture
def own() -> Iterator[EmbeddedCluster]:
    """Two stores of the test's own, to be stopped."""
    with ForkedCluster(stores=2) as running:
        yield running


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StoreDouble]:
    with StoreDouble(tmp_path / "one", "1" * 32) as made:
        yield made


@pytest.fixture
def behind(tmp_path: Path) -> Iterator[StoreDouble]:
    with StoreDouble(tmp_path / "two", "2" * 32) as made:
        yield made

"""A cluster that the tests of this room share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dafka_console.server import Console
from dafka_core import EmbeddedCluster
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

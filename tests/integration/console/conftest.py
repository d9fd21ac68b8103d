"""A cluster that the tests of this room share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dafka_core import EmbeddedCluster
from tests.forked import ForkedCluster


@pytest.fixture(scope="package")
def cluster() -> Iterator[EmbeddedCluster]:
    """Two stores; each test has a topic of its own."""
    with ForkedCluster(stores=2) as running:
        yield running

"""A tower and a store, forked from one process that has imported all."""

from collections.abc import Iterator

import pytest

from tests.forked import ForkedCluster


@pytest.fixture(scope="module")
def lone_tower() -> Iterator[str]:
    with ForkedCluster(stores=0) as cluster:
        yield cluster.tower


@pytest.fixture(scope="module")
def tower() -> Iterator[str]:
    """A tower with a store: tests of a module share them, and use topics of their own."""
    with ForkedCluster() as cluster:
        yield cluster.tower

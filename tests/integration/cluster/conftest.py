"""Fixtures for tests of the connector with stores."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from dafka_core import EmbeddedCluster
from dafka_spark.cluster import cluster_reader
from dafka_spark.sink import staging
from tests.forked import ForkedCluster
from tests.integration.cluster.sinks import Sink
from tests.integration.cluster.stores import (
    A,
    Logged,
    Mesh,
    Patch,
    Serve,
    Served,
    close_connections,
)


@pytest.fixture(autouse=True)
def own_cluster_reader(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Keep a test's known stores in a directory of its own."""
    monkeypatch.setattr(cluster_reader, "_directory", lambda: tmp_path)


@pytest.fixture(autouse=True, scope="module")
def own_connections() -> Iterator[None]:
    """Close the connections of a module's queries, before those of the next one begin."""
    yield
    close_connections()


@pytest.fixture
def topic(dafka_topic: str) -> str:
    """Return a topic that no other test uses."""
    return dafka_topic


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    with ExitStack() as running:
        yield lambda name: running.enter_context(Served(tmp_path / name, name))


@pytest.fixture
def one(serve: Serve) -> Served:
    """Return a store with five records of A; a module may have another one."""
    return serve("one").add(A, 5)


@pytest.fixture
def mesh(one: Served) -> Mesh:
    return Mesh([one])


@pytest.fixture(scope="module")
def shared() -> Iterator[EmbeddedCluster]:
    """One store, for all tests of a module."""
    with ForkedCluster() as running:
        yield running


@pytest.fixture
def own() -> Iterator[EmbeddedCluster]:
    """Two stores of the test's own, to be killed."""
    with ForkedCluster(stores=2) as running:
        yield running


@pytest.fixture
def sink(shared: EmbeddedCluster, topic: str, patch: Patch) -> Sink:
    """A topic at the shared store."""
    return Sink(shared, topic, patch)


@pytest.fixture
def pair(own: EmbeddedCluster, topic: str, patch: Patch) -> Sink:
    """A topic at two stores, which may be killed."""
    return Sink(own, topic, patch)


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each ten rows are sent."""
    monkeypatch.setattr(staging, "BLOCK_ROWS", 10)


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Logged:
    return Logged(caplog)


@pytest.fixture
def patch(monkeypatch: pytest.MonkeyPatch) -> Patch:
    return monkeypatch

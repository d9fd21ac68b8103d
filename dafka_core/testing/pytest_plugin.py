"""The pytest fixtures that come with the package; pytest finds them by itself."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from dafka_core.testing.embedded_cluster import EmbeddedCluster


@pytest.fixture(scope="session")
def dafka_cluster() -> Iterator[EmbeddedCluster]:
    """A tower and a store for the whole session; let each test use topics of its own."""
    with EmbeddedCluster() as cluster:
        yield cluster


@pytest.fixture
def dafka_topic() -> str:
    """A topic that no other test uses."""
    return f"topic-{uuid.uuid4().hex[:12]}"

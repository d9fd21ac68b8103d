"""The pytest fixture ``dafka_cluster``: a tower and a store for the tests that use it.

Installed with the package and found by pytest by itself.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dafka_core.embedded_cluster import EmbeddedCluster


@pytest.fixture(scope="session")
def dafka_cluster() -> Iterator[EmbeddedCluster]:
    """One embedded cluster for the whole session; let each test use topics of its own."""
    with EmbeddedCluster() as cluster:
        yield cluster

"""A tower and a store, each ``dafka`` in a process of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.cli.processes import ANY_PORTS, Dafka


@pytest.fixture(scope="module")
def lone_tower() -> Iterator[str]:
    """A tower without any store."""
    with Dafka("tower", *ANY_PORTS) as tower:
        yield tower.ready()["tower"]


@pytest.fixture(scope="module")
def tower(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A tower with a store: tests of a module share them, and use topics of their own."""
    directory = tmp_path_factory.mktemp("store")
    with Dafka("tower", *ANY_PORTS) as hub:
        address = hub.ready()["tower"]
        with Dafka("store", "--dir", str(directory), "--tower", address) as store:
            store.ready()
            yield address

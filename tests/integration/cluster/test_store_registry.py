"""The registry of stores, while it asks them."""

from __future__ import annotations

import pytest

from dafka_core.config.node_options import NO_KEYS
from dafka_core.errors import StoreUnreachableError
from dafka_core.flight.store_client import StoreClient
from dafka_spark.cluster import cluster_reader
from dafka_spark.cluster.store_registry import StoreRegistry
from tests.integration.cluster.stores import Serve, Served


def registry_of(*stores: Served) -> StoreRegistry:
    registry = StoreRegistry(keys=NO_KEYS)
    report(registry, *stores)
    return registry


def report(registry: StoreRegistry, *stores: Served, others: tuple[str, ...] = ()) -> None:
    endpoints = {store.address: store.location.locations for store in stores}
    registry.update(endpoints, [*endpoints, *others])


def name(client: StoreClient) -> str:
    return client.location.store


def test_an_update_during_a_request_counts_for_the_next_one(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_reader, "MAX_CONCURRENT", 1)
    first, second, third = serve("A"), serve("B"), serve("C")
    registry = registry_of(first, second)

    def changed(client: StoreClient) -> str:
        report(registry, third, others=("without Flight",))
        return name(client)

    assert [answer for _, answer in registry.ask(changed)] == ["A", "B"]
    assert registry.locations == []  # the third has not described itself yet
    assert [(at.store, answer) for at, answer in registry.ask(name)] == [("C", "C")]
    assert [location.store for location in registry.locations] == ["C"]
    assert registry.others == ["without Flight"]


def test_a_store_that_does_not_answer_is_skipped_for_a_moment(serve: Serve) -> None:
    registry = registry_of(serve("A"), serve("B"))
    asked: list[str] = []

    def ask(client: StoreClient) -> None:
        asked.append(name(client))
        if name(client) == "A":
            raise StoreUnreachableError("A", "it is busy")

    for _ in range(2):
        assert [location.store for location, _ in registry.ask(ask)] == ["B"]
    assert sorted(asked) == ["A", "B", "B"]
    assert registry.silent() == [error.store for error in registry.failures()] == ["A"]
    assert (registry.silent(at_most_s=0.0), registry.failures(longer_than_s=60.0)) == ([], [])
    assert [location.store for location in registry.locations] == ["B"]
    registry.ask(ask, again=True)
    assert sorted(asked) == ["A", "A", "B", "B", "B"]
    registry.ask(name, again=True)
    assert (registry.silent(), registry.failures()) == ([], [])

"""DescribeLogDirs, as admin clients and consoles use it, and APIs that the gateway lacks."""

from __future__ import annotations

from typing import Any

from confluent_kafka import Producer

from dafka_core import Store
from dafka_kafka.api import Api
from dafka_kafka.gateway import Gateway
from tests.integration.kafka.one_request import tell
from tests.unit.kafka.messages import NEWEST, versions

PATIENCE_S = 30.0


def produce(gateway: Gateway, topic: str, count: int, size: int) -> None:
    producer = Producer({"bootstrap.servers": str(gateway.listens), "log_level": 0})
    for _ in range(count):
        producer.produce(topic, bytes(size))
    assert producer.flush(PATIENCE_S) == 0


def described(gateway: Gateway, version: int = NEWEST, topics: Any = None) -> tuple[Any, Any]:
    """Return the directory, and the sizes of partitions."""
    (directory,) = tell(gateway, Api.DESCRIBE_LOG_DIRS, version, topics=topics).results
    return directory, {
        (topic.name, each.partition_index): each.partition_size
        for topic in directory.topics
        for each in topic.partitions
    }


def test_partitions_have_a_size(store: Store, gateway: Gateway) -> None:
    produce(gateway, "large", 1_000, 1_000)
    produce(gateway, "small", 3, 10)
    for version in versions(Api.DESCRIBE_LOG_DIRS):
        directory, sizes = described(gateway, version)
        assert (directory.error_code, directory.log_dir) == (0, str(store.log.directory.absolute()))
        assert sizes.keys() == {("large", 0), ("small", 0)}
        assert 1_000_000 <= sizes["large", 0] < 1_100_000
        assert 30 <= sizes["small", 0] < 1_000
        if version >= 4:
            assert 0 < directory.usable_bytes < directory.total_bytes
    asked = [{"topic": "small", "partitions": [0, 7, 0, -1]}, {"topic": "u", "partitions": [0]}]
    assert described(gateway, topics=asked)[1].keys() == {("small", 0)}
    assert described(gateway, topics=[])[1] == {}
    store.log.close()  # a store that cannot be read
    directory, sizes = described(gateway)
    assert (directory.error_code, sizes) == (56, {})


def test_features_that_are_not_in_use_are_empty(gateway: Gateway) -> None:
    moves = tell(gateway, Api.LIST_PARTITION_REASSIGNMENTS, timeout_ms=1_000, topics=None)
    assert (moves.error_code, moves.topics) == (0, [])
    quotas = tell(gateway, Api.DESCRIBE_CLIENT_QUOTAS, components=[], strict=False)
    assert (quotas.error_code, quotas.entries) == (0, [])
    for version in versions(Api.LIST_TRANSACTIONS):
        asked: dict[str, Any] = {"state_filters": [], "producer_id_filters": []}
        found = tell(gateway, Api.LIST_TRANSACTIONS, version, **asked, duration_filter=-1)
        assert (found.error_code, found.transaction_states) == (0, [])

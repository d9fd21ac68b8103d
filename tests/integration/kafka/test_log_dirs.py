"""DescribeLogDirs, as admin clients and consoles use it."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import Producer

from dafka_core import Store
from dafka_kafka.api import Api
from dafka_kafka.gateway import APIS, Gateway
from dafka_kafka.schemas import DescribeLogDirsRequest
from tests.integration.kafka.one_request import tell

PATIENCE_S = 30.0


def produce(gateway: Gateway, topic: str, count: int, size: int) -> None:
    producer = Producer({"bootstrap.servers": str(gateway.listens), "log_level": 0})
    for _ in range(count):
        producer.produce(topic, bytes(size))
    assert producer.flush(PATIENCE_S) == 0


def sizes(answer: Any) -> dict[tuple[str, int], int]:
    (directory,) = answer.results
    return {
        (topic.name, each.partition_index): each.partition_size
        for topic in directory.topics
        for each in topic.partitions
    }


@pytest.mark.parametrize("version", APIS[Api.DESCRIBE_LOG_DIRS].versions)
def test_partitions_have_a_size(store: Store, gateway: Gateway, version: int) -> None:
    produce(gateway, "large", 1_000, 1_000)
    produce(gateway, "small", 3, 10)
    answer = tell(gateway, DescribeLogDirsRequest(topics=None), version)
    (directory,) = answer.results
    assert (directory.error_code, directory.log_dir) == (0, str(store.log.directory.absolute()))
    found = sizes(answer)
    assert found.keys() == {("large", 0), ("small", 0)}
    assert 1_000_000 <= found["large", 0] < 1_100_000
    assert 30 <= found["small", 0] < 1_000
    if version >= 4:
        assert 0 < directory.usable_bytes < directory.total_bytes


def test_those_that_are_asked_for_and_there_are_told(gateway: Gateway) -> None:
    produce(gateway, "t", 3, 10)
    kind: Any = DescribeLogDirsRequest.DescribableLogDirTopic
    asked = [kind(topic="t", partitions=[0, 7, 0, -1]), kind(topic="u", partitions=[0])]
    assert sizes(tell(gateway, DescribeLogDirsRequest(topics=asked), 1)).keys() == {("t", 0)}
    assert sizes(tell(gateway, DescribeLogDirsRequest(topics=[]), 1)) == {}
    # A partition without records.
    assert sizes(tell(gateway, DescribeLogDirsRequest(topics=None), 4)).keys() == {("t", 0)}


def test_a_store_that_cannot_be_read_is_an_error(store: Store, gateway: Gateway) -> None:
    produce(gateway, "t", 3, 10)
    store.log.close()
    (directory,) = tell(gateway, DescribeLogDirsRequest(topics=None), 4).results
    assert (directory.error_code, directory.topics) == (56, [])

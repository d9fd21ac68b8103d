"""Kafka's clients, unchanged, write records and read them through a gateway."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from dafka_core import Consumer, EmbeddedCluster, Producer
from dafka_core.testing import wait_until
from tests.forked import ForkedCluster
from tests.integration.kafka.clients.clients import CLIENTS, KafkaClient, Sent

TIME_MS = 1_700_000_000_000

RECORDS = [
    Sent(None, b"bare", (), TIME_MS),
    Sent(b"key", b"with a key", (), TIME_MS + 10),
    Sent(b"", b"", (), TIME_MS + 20),
    Sent(b"k", None, (), TIME_MS + 20),  # a null value
    Sent(b"k", b"headers", (("a", b"1"), ("b", b""), ("a", b"2")), TIME_MS + 30),
    *(Sent(None, b"%d" % n * 20, (), TIME_MS + 100 + n) for n in range(200)),
]

ALL = pytest.mark.parametrize("kind", CLIENTS)


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with ForkedCluster(kafka={"num_partitions": 2}) as cluster:
        yield cluster


@pytest.fixture
def topic() -> str:
    return f"topic-{uuid.uuid4().hex[:8]}"


@ALL
def test_each_reads_what_another_has_written(
    kind: type[KafkaClient], cluster: EmbeddedCluster, topic: str
) -> None:
    writer = kind(cluster.bootstrap_servers)
    for number, compression in enumerate(kind.COMPRESSIONS):
        # A partition's times never go back (docs/guarantees.md).
        records = [each._replace(time_ms=each.time_ms + number * 1_000) for each in RECORDS]
        first = number * len(records)
        offsets = [*range(first, first + len(records))]
        assert writer.write(topic, 1, records, compression=compression) == offsets
        reader = CLIENTS[number % len(CLIENTS)](cluster.bootstrap_servers)
        found = reader.read(topic, 1, first, len(records))
        assert found == [*zip(offsets, records, strict=True)]
    assert writer.partition_count(topic) == 2


@ALL
@pytest.mark.parametrize("options", [{"idempotent": True}, {"acks": 1}], ids=str)
def test_what_a_client_writes_is_in_the_topic_that_dafka_reads(
    kind: type[KafkaClient], options: dict[str, Any], cluster: EmbeddedCluster, topic: str
) -> None:
    kind(cluster.bootstrap_servers).write(topic, 0, RECORDS, **options)
    with Consumer(tower=cluster.tower, start="earliest") as consumer:
        consumer.subscribe(topic)
        records = iter(consumer)
        for offset, sent in enumerate(RECORDS):
            record = next(records)
            assert (record.offset, record.key, record.value) == (offset, sent.key, sent.value)
            assert record.headers == sent.headers
            assert record.timestamp_us == sent.time_ms * 1_000


@ALL
def test_a_producer_of_dafka_is_the_next_partition(
    kind: type[KafkaClient], cluster: EmbeddedCluster, topic: str
) -> None:
    client = kind(cluster.bootstrap_servers)
    client.write(topic, 0, RECORDS[:1])
    with Producer(topic, tower=cluster.tower) as producer:
        for sent in RECORDS:
            producer.publish(sent.value, key=sent.key, headers=sent.headers)
        producer.flush(60)
        wait_until(lambda: client.partition_count(topic) == 3)
    found = client.read(topic, 2, 3, len(RECORDS) - 3)
    assert [offset for offset, _ in found] == [*range(3, len(RECORDS))]
    assert [each[:3] for _, each in found] == [each[:3] for each in RECORDS[3:]]


@ALL
def test_a_client_seeks_to_a_time(
    kind: type[KafkaClient], cluster: EmbeddedCluster, topic: str
) -> None:
    client = kind(cluster.bootstrap_servers)
    client.write(topic, 0, RECORDS)
    assert client.offset_at(topic, 0, TIME_MS + 15) == 2
    assert client.offset_at(topic, 0, TIME_MS + 20) == 2
    assert client.offset_at(topic, 0, 0) == 0
    assert client.offset_at(topic, 0, TIME_MS + 10_000) is None

"""Kafka's clients read the records of a Dafka producer."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import confluent_kafka
import pytest

from dafka_core import Producer, Store
from dafka_core.model.envelope import MAGIC
from dafka_core.model.records import RecordBatch, TopicPartition
from dafka_core.testing.waiting import PATIENCE_S, wait_until
from dafka_kafka.fetch import Fetch
from dafka_kafka.gateway import Gateway
from tests.integration.kafka.reading_clients import CLIENTS, Got, KafkaPython, reading

BEGIN = datetime(2026, 3, 1, 12, 0, 0, 123_456, tzinfo=UTC)
BEGIN_MS = 1_772_366_400_123


@pytest.fixture
def producer(tower: str, store: Store) -> Iterator[Producer]:
    with Producer("t", tower=tower) as producer:
        yield producer


@pytest.fixture
def servers(gateway: Gateway) -> str:
    return str(gateway.listens)


def stored(store: Store, producer: Producer) -> TopicPartition:
    """Return the partition once the store has all records."""
    producer.flush(PATIENCE_S)
    tp = TopicPartition("t", producer.address)
    wait_until(lambda: store.log.end(tp) == producer.next_offset)
    return tp


def numbers(start: int, count: int) -> list[bytes]:
    return [b"%d" % number for number in range(start, start + count)]


def read_values(found: list[Got]) -> list[bytes | None]:
    return [each.value for each in found]


RECORDS: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]] = [
    (b"bare", None, []),
    (b"", None, []),
    (b"\x00\xff\xc1", None, []),
    (b"with a key", b"k", []),
    (b"with an empty key", b"", []),
    (None, b"deleted", []),
    (None, None, []),
    (b"with headers", None, [("a", b"1"), ("a", None), ("", b""), ("Größe", b"\xff")]),
    (b"with all", b"k" * 200, [("h", b"x" * 300)]),
    (MAGIC + b" begins as an envelope does", None, []),
    (b"large" * 40_000, b"k", []),
]


@pytest.mark.parametrize("kind", CLIENTS)
def test_records_are_what_their_producer_published(
    store: Store, producer: Producer, servers: str, kind: Any
) -> None:
    for number, (value, key, headers) in enumerate(RECORDS):
        when = BEGIN + timedelta(milliseconds=10 * number)
        producer.publish(value, key, headers, timestamp=when)
    stored(store, producer)
    with reading(kind, servers) as client:
        found = client.read(len(RECORDS))
    expected = [
        Got(number, key, value, headers, BEGIN_MS + 10 * number)
        for number, (value, key, headers) in enumerate(RECORDS)
    ]
    assert found == expected


@pytest.mark.parametrize("version", [(0, 9), (0, 10, 0), (0, 11)])
def test_a_client_of_kafkas_old_days_reads_its_formats(
    store: Store, producer: Producer, servers: str, version: tuple[int, ...]
) -> None:
    for number, (value, key, headers) in enumerate(RECORDS):
        when = BEGIN + timedelta(milliseconds=10 * number)
        producer.publish(value, key, headers, timestamp=when)
    stored(store, producer)
    with reading(KafkaPython, servers, api_version=version) as client:
        found = client.read(len(RECORDS))
    assert [(each.offset, each.key, each.value) for each in found] == [
        (number, key, value) for number, (value, key, _) in enumerate(RECORDS)
    ]
    if version >= (0, 10):
        assert [each.timestamp_ms for each in found] == [
            BEGIN_MS + 10 * number for number in range(len(RECORDS))
        ]
    if version >= (0, 11):
        assert [each.headers for each in found] == [headers for _, _, headers in RECORDS]


@pytest.mark.parametrize("kind", CLIENTS)
def test_a_client_seeks_by_offset_and_by_time(
    store: Store, producer: Producer, servers: str, kind: Any
) -> None:
    for number in range(100):
        producer.publish(b"%d" % number, timestamp=BEGIN + timedelta(seconds=number // 2))
    store.log.trim(stored(store, producer), 10)
    with reading(kind, servers) as client:
        assert client.bounds() == (10, 100)
        assert client.offset_for(BEGIN_MS + 20_000) == 40
        assert client.offset_for(BEGIN_MS + 20_001) == 42
        assert client.offset_for(0) == 10
        assert client.offset_for(BEGIN_MS + 100_000) is None
        for offset in (42, 99, 10):
            client.seek(offset)
            assert read_values(client.read(1))[0] == b"%d" % offset
        client.seek(40)
        assert read_values(client.read(60)) == numbers(40, 60)


@pytest.mark.parametrize("kind", CLIENTS)
def test_a_record_wakes_who_waits_for_it(
    store: Store, producer: Producer, servers: str, kind: Any
) -> None:
    producer.publish_many(numbers(0, 3))
    stored(store, producer)
    with reading(kind, servers, wait_ms=30_000) as client:
        assert read_values(client.read(3)) == numbers(0, 3)
        assert client.poll() == []  # it waits at the gateway, for 30 s
        for number in range(3, 6):
            began = time.monotonic()
            producer.publish(b"%d" % number)
            assert read_values(client.read(1)) == [b"%d" % number]
            assert time.monotonic() - began < 15


@pytest.mark.parametrize("kind", CLIENTS)
def test_who_is_behind_the_earliest_record_begins_anew(
    store: Store, producer: Producer, servers: str, kind: Any
) -> None:
    producer.publish_many(numbers(0, 100))
    store.log.trim(stored(store, producer), 60)
    with reading(kind, servers, auto_offset_reset="earliest") as client:
        client.seek(20)
        assert read_values(client.read(40)) == numbers(60, 40)


@pytest.mark.parametrize("kind", CLIENTS)
def test_who_is_beyond_the_end_begins_anew(
    store: Store, producer: Producer, servers: str, kind: Any
) -> None:
    producer.publish_many(numbers(0, 10))
    stored(store, producer)
    with reading(kind, servers, auto_offset_reset="earliest") as client:
        client.seek(1_000)
        assert read_values(client.read(10)) == numbers(0, 10)


def confluent(servers: str, **options: Any) -> confluent_kafka.Consumer:
    named = {name.replace("_", "."): value for name, value in options.items()}
    fixed = {"bootstrap.servers": servers, "group.id": "unused", "enable.auto.commit": False}
    return confluent_kafka.Consumer(fixed | named)


def consumed(consumer: confluent_kafka.Consumer, count: int) -> list[Any]:
    found: list[Any] = []
    deadline = time.monotonic() + 60
    while len(found) < count and time.monotonic() < deadline:
        found += consumer.consume(1_000, 0.2)
    return found


def test_the_end_of_a_partition_is_told(store: Store, producer: Producer, servers: str) -> None:
    producer.publish_many(numbers(0, 10))
    stored(store, producer)
    with closing(confluent(servers, enable_partition_eof=True)) as consumer:
        consumer.assign([confluent_kafka.TopicPartition("t", 0, 0)])
        *records, end = consumed(consumer, 11)
        assert [each.value() for each in records] == numbers(0, 10)
        assert end.error().code() == confluent_kafka.KafkaError._PARTITION_EOF
        assert end.offset() == 10


def test_large_records_come_though_limits_are_small(
    store: Store, producer: Producer, servers: str
) -> None:
    values = [bytes([number]) * (10 << 20) for number in range(3)] + numbers(0, 100)
    producer.publish_many(values)
    stored(store, producer)
    small = {"fetch_max_bytes": 1_000_000, "max_partition_fetch_bytes": 1_000}
    with closing(confluent(servers, **small, receive_message_max_bytes=11 << 20)) as consumer:
        consumer.assign([confluent_kafka.TopicPartition("t", 0, 0)])
        found = consumed(consumer, len(values))
    assert [each.value() for each in found] == values


def test_records_come_while_others_are_written(
    store: Store, producer: Producer, servers: str
) -> None:
    producer.publish(b"0")
    stored(store, producer)
    total = 50_000

    def write() -> None:
        for start in range(1, total, 500):
            producer.publish_many(numbers(start, min(500, total - start)))

    with closing(confluent(servers, queued_min_messages=1_000)) as consumer:
        consumer.assign([confluent_kafka.TopicPartition("t", 0, 0)])
        writing = threading.Thread(target=write)
        writing.start()
        found = consumed(consumer, total)
        writing.join()
    assert [each.offset() for each in found] == list(range(total))
    assert [each.value() for each in found] == numbers(0, total)


def test_many_partitions_are_read_at_once(store: Store, gateway: Gateway, servers: str) -> None:
    count, records = 300, 20
    [node] = [each._node for each in gateway._server._features if isinstance(each, Fetch)]
    asyncio.run(node.registry.create("t", count))
    expected = {
        number: [b"%d/%d" % (number, at) for at in range(records)] for number in range(count)
    }
    with closing(confluent(servers)) as consumer:
        assign = [confluent_kafka.TopicPartition("t", number, 0) for number in range(count)]
        consumer.assign(assign)
        assert consumer.consume(1, 0.5) == []
        for each in node.registry.partitions("t"):
            store.append_queue.put(RecordBatch.of(each.tp, 0, expected[each.number]))
        found = consumed(consumer, count * records)
    values: dict[int, list[bytes]] = {}
    for each in found:
        values.setdefault(each.partition(), []).append(each.value())
    assert values == expected

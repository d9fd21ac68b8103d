"""Kafka's clients read the records of a Dafka producer, also at another gateway when one ends."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import confluent_kafka
import pytest

from dafka_core import Producer, Store
from dafka_core.model.envelope import MAGIC
from dafka_core.model.records import RecordBatch, TopicPartition
from dafka_core.testing.waiting import PATIENCE_S, wait_until
from dafka_kafka.gateway import Gateway
from dafka_kafka.registry_table import RegistryLog
from tests.integration.kafka.admin import admin_of, listed, make
from tests.integration.kafka.clients.clients import CLIENTS, KafkaClient, Librdkafka, Sent

BEGIN = datetime(2026, 3, 1, 12, 0, 0, 123_456, tzinfo=UTC)
BEGIN_MS = 1_772_366_400_123


@pytest.fixture
def producer(tower: str, store: Store) -> Iterator[Producer]:
    """Yield a Dafka producer of topic t, which waits for the store."""
    with Producer("t", tower=tower, acks="1") as producer:
        yield producer


def publish(producer: Producer, *records: Sent) -> None:
    for each in records:
        when = BEGIN + timedelta(milliseconds=each.time_ms - BEGIN_MS)
        producer.publish(each.value, each.key, each.headers, timestamp=when)
    producer.flush(PATIENCE_S)


@pytest.fixture
def servers(gateway: Gateway) -> str:
    return str(gateway.listens)


def numbers(start: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(start, end)]


RECORDS = [
    Sent(key, value, headers, BEGIN_MS + 10 * number)
    for number, (value, key, headers) in enumerate(
        [
            (b"bare", None, ()),
            (b"", None, ()),
            (b"\x00\xff\xc1", None, ()),
            (b"with a key", b"k", ()),
            (b"with an empty key", b"", ()),
            (None, b"deleted", ()),
            (None, None, ()),
            (b"with headers", None, (("a", b"1"), ("a", None), ("", b""), ("Größe", b"\xff"))),
            (b"with all", b"k" * 200, (("h", b"x" * 300),)),
            (MAGIC + b" begins as an envelope does", None, ()),
            (b"large" * 40_000, b"k", ()),
        ]
    )
]


@pytest.mark.parametrize("kind", CLIENTS)
def test_records_are_what_their_producer_published(
    producer: Producer, servers: str, kind: type[KafkaClient]
) -> None:
    publish(producer, *RECORDS)
    with kind(servers).reading() as client:
        assert client.read(len(RECORDS)) == [*enumerate(RECORDS)]


def confluent(servers: str, **options: Any) -> confluent_kafka.Consumer:
    named = {name.replace("_", "."): value for name, value in options.items()}
    fixed = {"bootstrap.servers": servers, "group.id": "unused", "enable.auto.commit": False}
    return confluent_kafka.Consumer(fixed | named)


def consumed(consumer: confluent_kafka.Consumer, count: int, partitions: int = 1) -> list[Any]:
    consumer.assign([confluent_kafka.TopicPartition("t", at, 0) for at in range(partitions)])
    found: list[Any] = []
    deadline = time.monotonic() + 60
    while len(found) < count and time.monotonic() < deadline:
        found += consumer.consume(1_000, 0.2)
    return found


def test_a_client_seeks_by_offset_and_by_time(
    store: Store, producer: Producer, servers: str
) -> None:
    each = [Sent(None, b"%d" % at, (), BEGIN_MS + at // 2 * 1_000) for at in range(100)]
    publish(producer, *each)
    store.log.trim(TopicPartition("t", producer.address), 10)
    place = partial(confluent_kafka.TopicPartition, "t", 0)
    with closing(confluent(servers)) as consumer:
        assert consumer.get_watermark_offsets(place(), timeout=PATIENCE_S) == (10, 100)
        for after_ms, offset in ((20_000, 40), (20_001, 42), (-BEGIN_MS, 10), (100_000, -1)):
            asked = [place(BEGIN_MS + after_ms)]
            (found,) = consumer.offsets_for_times(asked, timeout=PATIENCE_S)
            assert found.offset == offset
        for at, count in ((42, 1), (99, 1), (10, 1), (40, 60)):
            consumer.assign([place(at)])
            read = consumer.consume(count, PATIENCE_S)
            assert [each.value() for each in read] == numbers(at, at + count)


def test_large_records_come_though_limits_are_small(producer: Producer, servers: str) -> None:
    values = [bytes([number]) * (10 << 20) for number in range(3)] + numbers(0, 100)
    producer.publish_many(values)
    producer.flush(PATIENCE_S)
    small = {"fetch_max_bytes": 1_000_000, "max_partition_fetch_bytes": 1_000}
    with closing(confluent(servers, **small, receive_message_max_bytes=11 << 20)) as consumer:
        assert [each.value() for each in consumed(consumer, len(values))] == values


@pytest.mark.parametrize("total", [200_000, pytest.param(2_000_000, marks=pytest.mark.nightly)])
def test_records_come_while_others_are_written(
    producer: Producer, servers: str, total: int
) -> None:
    publish(producer, Sent(None, b"0"))

    def write() -> None:
        for start in range(1, total, 500):
            producer.publish_many(numbers(start, min(start + 500, total)))

    with closing(confluent(servers, queued_min_messages=1_000)) as consumer:
        writing = threading.Thread(target=write)
        writing.start()
        consumer.assign([confluent_kafka.TopicPartition("t", 0, 0)])
        offset = 0
        while offset < total:
            found = consumer.consume(min(10_000, total - offset), PATIENCE_S)
            assert found
            end = offset + len(found)
            assert [each.offset() for each in found] == [*range(offset, end)]
            assert [each.value() for each in found] == numbers(offset, end)
            offset = end
        writing.join()


def test_many_partitions_are_read_at_once(store: Store, gateway: Gateway, servers: str) -> None:
    count, records = 300, 20
    make(admin_of(gateway), "t", count=count)
    expected = {
        number: [b"%d/%d" % (number, at) for at in range(records)] for number in range(count)
    }
    for each in RegistryLog(store.log).read().partitions("t"):
        store.append_queue.put(RecordBatch.of(each.tp, 0, expected[each.number]))
    values: dict[int, list[bytes]] = {}
    with closing(confluent(servers)) as consumer:
        for message in consumed(consumer, count * records, count):
            values.setdefault(message.partition(), []).append(message.value())
    assert values == expected


def leader(gateway: Gateway) -> int:
    """Return the port of the partition's leader, once both gateways know each other."""
    client = admin_of(gateway)
    wait_until(lambda: len(listed(client).brokers) == 2)
    found = listed(client, "t")
    return int(found.brokers[found.topics["t"].partitions[0].leader].port)


def test_a_reader_goes_on_at_another_gateway(
    tower: str, start: Callable[[str], tuple[Store, Gateway]]
) -> None:
    both, count = [start(name) for name in "ab"], 100
    servers = ",".join(str(gateway.listens) for _, gateway in both)
    with Producer("t", tower=tower) as producer:
        tp = TopicPartition("t", producer.address)

        def publish(*stores: Store) -> None:
            first = producer.next_offset
            producer.publish_many([b"%d" % (first + number) for number in range(count)])
            wait_until(lambda: {each.log.end(tp) for each in stores} == {first + count})

        publish(*(store for store, _ in both))
        port = leader(both[0][1])
        with Librdkafka(servers).reading(auto_offset_reset="error") as client:
            assert [at for at, _ in client.read(count)] == list(range(count))
            (led, ending), (kept, _) = sorted(both, key=lambda each: each[1].listens.port != port)
            assert ending.listens.port == port
            ending.close()
            led.close()
            publish(kept)
            found = client.read(count)
    assert [(at, each.value) for at, each in found] == [
        (at, b"%d" % at) for at in range(count, 2 * count)
    ]

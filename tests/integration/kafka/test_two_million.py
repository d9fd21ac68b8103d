"""Records in by Kafka and out by Dafka, and the other way, compared: each night two million."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka import Producer as KafkaProducer

from dafka_core import EmbeddedCluster, Producer, Reader
from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.store_location import StoreLocation

CHUNK = 10_000
PARTITIONS = 2
WAIT_S = 120.0
LIMITS: dict[str, Any] = {
    "times": False,
    "max_records": 1 << 20,
    "max_bytes": 64 << 20,
    "timeout_s": WAIT_S,
}

pytestmark = [
    pytest.mark.timeout(3 * WAIT_S),
    pytest.mark.parametrize("count", [200_000, pytest.param(2_000_000, marks=pytest.mark.nightly)]),
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(kafka={"num_partitions": PARTITIONS}) as cluster:
        yield cluster


def values(start: int) -> list[bytes]:
    return [b"record %d" % number for number in range(start, start + CHUNK)]


def test_in_by_kafka_and_out_by_dafka(count: int, cluster: EmbeddedCluster) -> None:
    topic = f"in-{count}"
    producer = KafkaProducer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "enable.idempotence": True,
            "queue.buffering.max.messages": 10 * CHUNK,
        }
    )
    sent: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
    for start in range(0, count, CHUNK):
        number = start // CHUNK % PARTITIONS
        chunk = values(start)
        sent[number] += chunk
        messages = [{"value": value} for value in chunk]
        while messages:
            messages = messages[producer.produce_batch(topic, messages, partition=number) :]
            producer.poll(0.01 if messages else 0)
    assert producer.flush(WAIT_S) == 0
    with (
        Reader(tower=cluster.tower) as reader,
        StoreClient(StoreLocation(cluster.stores[0], cluster.locations())) as client,
    ):
        infos = reader.partitions([topic], timeout_s=WAIT_S)
        found = [
            [
                value
                for batch in client.read(info.tp, 0, info.end, **LIMITS)
                for value in batch.values
            ]
            for info in infos
        ]
    assert sorted(found) == sorted(sent)


def test_in_by_dafka_and_out_by_kafka(count: int, cluster: EmbeddedCluster) -> None:
    topic = f"out-{count}"
    sent: list[bytes] = []
    with Producer(topic, tower=cluster.tower, acks="1") as producer:
        for start in range(0, count, CHUNK):
            chunk = values(start)
            producer.publish_many(chunk)
            sent += chunk
        producer.flush(WAIT_S)
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": topic,
            "enable.auto.commit": False,
            "fetch.queue.backoff.ms": 0,
        }
    )
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        found: list[bytes] = []
        offset = 0
        while offset < count:
            messages = consumer.consume(min(CHUNK, count - offset), timeout=WAIT_S)
            assert [each.offset() for each in messages] == [*range(offset, offset + len(messages))]
            assert messages
            found += [each.value() or b"" for each in messages]
            offset += len(messages)
    finally:
        consumer.close()
    assert found == sent

"""Dafka's consumers read what unmodified Kafka clients write."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import islice
from typing import NamedTuple

import aiokafka.errors
import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import KafkaError as ConfluentError
from confluent_kafka import KafkaException, Message
from confluent_kafka import Producer as ConfluentProducer
from kafka import KafkaProducer

from dafka_core import Consumer, Record, Store
from dafka_core.model.envelope import Headers
from dafka_kafka.errors import KafkaError
from dafka_kafka.gateway import Gateway
from tests.integration.kafka import aio

PATIENCE_S = 30.0
WHEN_MS = 1_700_000_000_000
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
COUNT = 400


class Sent(NamedTuple):
    """The input of a producer."""

    value: bytes | None
    key: bytes | None
    headers: Headers
    timestamp_ms: int


KINDS = (
    (b"value", None, ()),
    (b"", b"key", ()),
    (None, b"deleted", ()),
    (b"value", b"", (("a", b"1"), ("a", b"2"), ("\u00e9", b""))),
    (b"\xc1DFK", None, ()),
    (b"x" * 5_000, b"k" * 300, (("long", b"y" * 200),)),
)

SENT = [
    Sent(value and b"%d %s" % (at, value), key, headers, WHEN_MS + at // 3)
    for at in range(COUNT)
    for value, key, headers in [KINDS[at % len(KINDS)]]
]

Produce = Callable[[Gateway, str, str], None]


def told(error: ConfluentError | None, _: Message) -> None:
    if error is not None:
        raise KafkaException(error)


def with_confluent(gateway: Gateway, topic: str, codec: str, **others: object) -> None:
    producer = ConfluentProducer(
        {
            "bootstrap.servers": str(gateway.listens),
            "compression.codec": codec,
            "batch.num.messages": 50,
            "log_level": 0,
            **others,
        }
    )
    for each in SENT:
        producer.produce(
            topic,
            each.value,
            each.key,
            0,
            headers=list(each.headers),
            timestamp=each.timestamp_ms,
            on_delivery=told,
        )
    assert producer.flush(PATIENCE_S) == 0


def with_idempotent_confluent(gateway: Gateway, topic: str, codec: str) -> None:
    with_confluent(gateway, topic, codec, **{"enable.idempotence": True})


def with_kafka_python(gateway: Gateway, topic: str, codec: str) -> None:
    producer = KafkaProducer(
        bootstrap_servers=str(gateway.listens),
        compression_type=None if codec == "none" else codec,
        batch_size=10_000,
    )
    futures = [
        producer.send(
            topic, each.value, each.key, list(each.headers), 0, timestamp_ms=each.timestamp_ms
        )
        for each in SENT
    ]
    producer.flush(PATIENCE_S)
    assert [each.get(PATIENCE_S).offset for each in futures] == [*range(COUNT)]
    producer.close()


def with_aiokafka(gateway: Gateway, topic: str, codec: str) -> None:
    async def produce() -> None:
        async with AIOKafkaProducer(
            bootstrap_servers=str(gateway.listens),
            compression_type=None if codec == "none" else codec,
            enable_idempotence=codec in ("none", "zstd"),
        ) as producer:
            futures = [
                await producer.send(
                    topic,
                    each.value,
                    each.key,
                    0,
                    timestamp_ms=each.timestamp_ms,
                    headers=list(each.headers),
                )
                for each in SENT
            ]
            found = [(await each).offset for each in futures]
        assert found == [*range(COUNT)]

    aio.run(asyncio.wait_for(produce(), 2 * PATIENCE_S))


@pytest.fixture
def read(tower: str) -> Callable[[str, int], list[Record]]:
    def read(topic: str, count: int) -> list[Record]:
        with Consumer(tower=tower) as consumer:
            consumer.subscribe(topic)
            return list(islice(consumer, count))

    return read


def seen(record: Record) -> Sent:
    assert record.timestamp_us is not None
    return Sent(record.value, record.key, record.headers, record.timestamp_us // 1000)


CASES = [
    (produce, codec)
    for produce in (with_confluent, with_idempotent_confluent, with_kafka_python, with_aiokafka)
    for codec in CODECS
    # The others need further packages there.
    if produce is not with_kafka_python or codec in ("none", "gzip")
]


@pytest.mark.parametrize(("produce", "codec"), CASES)
def test_what_is_produced_is_what_a_dafka_consumer_reads(
    gateway: Gateway,
    store: Store,
    read: Callable[[str, int], list[Record]],
    produce: Produce,
    codec: str,
) -> None:
    produce(gateway, "t", codec)
    records = read("t", COUNT)
    assert [seen(each) for each in records] == SENT
    assert [each.offset for each in records] == [*range(COUNT)]


LARGE = bytes(65 << 20)
"""A value above the limit, which every codec compresses well."""
MOST_BYTES = 200 << 20


def refused_by_confluent(gateway: Gateway) -> int:
    told: list[ConfluentError | None] = []
    settings = {
        "bootstrap.servers": str(gateway.listens),
        "compression.codec": "zstd",
        "message.max.bytes": MOST_BYTES,
        "enable.idempotence": True,
        "log_level": 0,
    }
    producer = ConfluentProducer(settings)
    for value in (LARGE, b"after"):
        producer.produce("t", value, on_delivery=lambda error, _: told.append(error))
        assert producer.flush(PATIENCE_S) == 0
    refused, after = told
    assert refused is not None
    assert after is None
    return refused.code()


def refused_by_aiokafka(gateway: Gateway) -> int:
    async def send() -> int:
        producer = AIOKafkaProducer(
            bootstrap_servers=str(gateway.listens),
            compression_type="lz4",
            max_request_size=MOST_BYTES,
        )
        async with producer:
            with pytest.raises(aiokafka.errors.MessageSizeTooLargeError) as refused:
                await producer.send_and_wait("t", LARGE)
            await producer.send_and_wait("t", b"after")
        return int(refused.value.errno)

    return aio.run(asyncio.wait_for(send(), 2 * PATIENCE_S))


@pytest.mark.parametrize("refused_by", [refused_by_confluent, refused_by_aiokafka])
def test_a_batch_that_is_too_large_is_refused_by_that_name_and_the_next_one_is_taken(
    gateway: Gateway,
    read: Callable[[str, int], list[Record]],
    refused_by: Callable[[Gateway], int],
) -> None:
    assert refused_by(gateway) == KafkaError.MESSAGE_TOO_LARGE
    assert [each.value for each in read("t", 1)] == [b"after"]


def test_a_client_that_splits_a_batch_that_is_too_large_loses_nothing(
    gateway: Gateway, read: Callable[[str, int], list[Record]]
) -> None:
    values = [b"%d " % at + bytes(1 << 20) for at in range(65)]
    producer = KafkaProducer(
        bootstrap_servers=str(gateway.listens),
        compression_type="gzip",
        max_request_size=MOST_BYTES,
        batch_size=MOST_BYTES,
        linger_ms=2_000,
    )
    try:
        sent = [producer.send("t", each) for each in values]
        assert [each.get(PATIENCE_S).offset for each in sent] == [*range(len(values))]
    finally:
        producer.close()
    assert [each.value for each in read("t", len(values))] == values


def test_a_value_alone_is_bare_and_a_null_in_a_header_is_one(
    gateway: Gateway, store: Store, read: Callable[[str, int], list[Record]]
) -> None:
    producer = ConfluentProducer({"bootstrap.servers": str(gateway.listens), "log_level": 0})
    producer.produce("bare", b"hello")
    producer.produce("bare", None, headers=[("a", None), ("a", b"1")])
    assert producer.flush(PATIENCE_S) == 0
    [info] = store.log.partitions("bare")
    [batch] = store.log.read(info.tp, 0, 1)
    assert batch.values == [b"hello"]
    assert read("bare", 2)[1][3:6] == (None, None, (("a", None), ("a", b"1")))

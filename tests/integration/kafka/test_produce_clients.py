"""Dafka's consumers, and other Kafka clients, read what unmodified Kafka clients write."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest

from dafka_core import Consumer, Record, Store
from dafka_kafka.errors import KafkaError
from dafka_kafka.gateway import Gateway
from tests.integration.kafka.clients.clients import (
    CLIENTS,
    Aiokafka,
    FailedError,
    KafkaClient,
    KafkaPython,
    Librdkafka,
    Sent,
)

WHEN_MS = 1_700_000_000_000
KINDS = (
    Sent(None, b"value"),
    Sent(b"key", b""),
    Sent(b"deleted", None),
    Sent(b"", b"value", (("a", b"1"), ("a", b"2"), ("\u00e9", b""))),
    Sent(None, b"\xc1DFK"),
    Sent(b"k" * 300, b"x" * 5_000, (("long", b"y" * 200),)),
)
SENT = [
    each._replace(value=each.value and b"%d %s" % (at, each.value), time_ms=WHEN_MS + at // 3)
    for at in range(400)
    for each in [KINDS[at % len(KINDS)]]
]

Read = Callable[[str, int], list[Record]]


@pytest.fixture
def read(tower: str) -> Read:
    def read(topic: str, count: int) -> list[Record]:
        with Consumer(tower=tower) as consumer:
            consumer.subscribe(topic)
            return list(islice(consumer, count))

    return read


def seen(record: Record) -> tuple[int, Sent]:
    assert record.timestamp_us is not None
    sent = Sent(record.key, record.value, record.headers, record.timestamp_us // 1000)
    return record.offset, sent


@pytest.mark.parametrize("kind", CLIENTS)
def test_each_reads_what_another_has_written(
    gateway: Gateway, read: Read, kind: type[KafkaClient]
) -> None:
    expected = [*enumerate(SENT)]
    for number, compression in enumerate(kind.COMPRESSIONS):
        topic, how = f"t-{compression}", dict[str, Any](compression=compression)
        how |= {"idempotent": True} if number % 2 == 0 else {"acks": 1}
        offsets = kind(str(gateway.listens)).write(topic, SENT, **how)
        assert offsets == [*range(len(SENT))]
        assert [seen(each) for each in read(topic, len(SENT))] == expected
        with CLIENTS[number % 3](str(gateway.listens)).reading(topic) as reader:
            assert reader.read(len(SENT)) == expected


MOST_BYTES = 200 << 20
LARGE = bytes(65 << 20)
"""A value above the limit, which every codec compresses well."""


@pytest.mark.parametrize(
    ("kind", "limit"), [(Librdkafka, "message_max_bytes"), (Aiokafka, "max_request_size")]
)
def test_a_batch_that_is_too_large_is_refused_by_that_name_and_the_next_one_is_taken(
    gateway: Gateway, kind: type[KafkaClient], limit: str
) -> None:
    client = kind(str(gateway.listens))
    options: dict[str, Any] = {"compression": "lz4", limit: MOST_BYTES}
    with pytest.raises(FailedError) as refused:
        client.write("t", [Sent(None, LARGE)], **options)
    assert refused.value.code == KafkaError.MESSAGE_TOO_LARGE
    assert client.write("t", [Sent(None, b"after")]) == [0]


def test_a_client_that_splits_a_batch_that_is_too_large_loses_nothing(
    gateway: Gateway, read: Read
) -> None:
    sent = [Sent(None, b"%d " % at + bytes(1 << 20)) for at in range(65)]
    sizes: dict[str, Any] = {
        "max_request_size": MOST_BYTES,
        "batch_size": MOST_BYTES,
        "linger_ms": 2_000,
    }
    offsets = KafkaPython(str(gateway.listens)).write("t", sent, compression="gzip", **sizes)
    assert offsets == [*range(len(sent))]
    assert [each.value for each in read("t", len(sent))] == [each.value for each in sent]


def test_a_value_alone_is_bare_and_a_null_in_a_header_is_one(
    gateway: Gateway, store: Store, read: Read
) -> None:
    headers = (("a", None), ("a", b"1"))
    Librdkafka(str(gateway.listens)).write(
        "bare", [Sent(None, b"hello"), Sent(None, None, headers)]
    )
    [info] = store.log.partitions("bare")
    [batch] = store.log.read(info.tp, 0, 1)
    assert batch.values == [b"hello"]
    assert read("bare", 2)[1][3:6] == (None, None, headers)

"""Dafka's consumers, and other Kafka clients, read what unmodified Kafka clients write."""

from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest

from dafka_core import Consumer, Record
from dafka_kafka.gateway import Gateway
from tests.integration.kafka.clients.clients import CLIENTS, KafkaClient, KafkaPython, Sent

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


def test_a_client_that_splits_a_batch_that_is_too_large_loses_nothing(
    gateway: Gateway, read: Read
) -> None:
    sent = [Sent(None, b"%d " % at + bytes(1 << 20)) for at in range(65)]
    sizes: dict[str, Any] = dict.fromkeys(("max_request_size", "batch_size"), 200 << 20)
    offsets = KafkaPython(str(gateway.listens)).write(
        "t", sent, compression="gzip", linger_ms=2_000, **sizes
    )
    assert offsets == [*range(len(sent))]
    assert [each.value for each in read("t", len(sent))] == [each.value for each in sent]

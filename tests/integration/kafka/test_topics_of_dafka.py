"""Clients of Kafka write to topics that only Dafka's producers have written."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaError, Message
from confluent_kafka import Producer as KafkaProducer
from confluent_kafka.admin import AdminClient

from dafka_core import Producer, Store
from dafka_core.testing import wait_until
from dafka_kafka.errors import KafkaError as Code
from dafka_kafka.errors import RefusedError
from dafka_kafka.gateway import Gateway
from dafka_kafka.partition_registry import PartitionRegistry
from tests.integration.kafka.admin import PATIENCE_S, counts
from tests.integration.kafka.produce_client import ProduceClient
from tests.unit.kafka.records.batches import batch


@pytest.fixture
def dafkas(store: Store) -> Iterator[Producer]:
    """One that has written topic t."""
    with Producer("t", tower=store.options.tower) as dafkas:
        dafkas.publish(b"dafka's")
        yield dafkas


def begun(gateway: Gateway) -> AdminClient:
    client = AdminClient({"bootstrap.servers": str(gateway.listens), "log_level": 0})
    wait_until(lambda: counts(client) == {"t": 1})
    return client


@pytest.mark.usefixtures("dafkas")
def test_they_get_a_partition_beside_the_others(gateway: Gateway, store: Store) -> None:
    client = begun(gateway)
    failed: list[KafkaError] = []

    def note(error: KafkaError | None, _: Message) -> None:
        failed.extend([error] if error is not None else [])

    options = {"bootstrap.servers": str(gateway.listens), "enable.idempotence": True}
    writer = KafkaProducer(options)
    for at in range(50):
        writer.produce("t", b"%d" % at, key=b"%d" % at, on_delivery=note)
    assert writer.flush(PATIENCE_S) == 0
    assert failed == []
    assert counts(client) == {"t": 2}
    assert sorted(info.end for info in store.log.partitions("t")) == [1, 50]


@pytest.mark.usefixtures("dafkas")
def test_why_they_cannot_get_one_is_told_and_not_tried_each_time(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, turns = begun(gateway), list[str]()

    async def extend(self: PartitionRegistry, topic: str, *_: object, **__: object) -> None:
        turns.append(topic)
        raise RefusedError(Code.POLICY_VIOLATION, "all numbers are given")

    monkeypatch.setattr(PartitionRegistry, "extend", extend)
    parts = {("t", 0): batch([b"kafka's"])}
    with ProduceClient(gateway.listens) as writer:
        wait_until(lambda: writer.ask(parts) == [(Code.POLICY_VIOLATION, -1)])
        assert writer.ask(parts) == [(Code.POLICY_VIOLATION, -1)]
    assert turns == ["t"]
    assert counts(client) == {"t": 1}


@pytest.mark.usefixtures("dafkas")
def test_they_get_none_where_no_topics_are_made_by_themselves(store: Store) -> None:
    with Gateway(store, listen="127.0.0.1:0", auto_create_topics=False) as gateway:
        client = begun(gateway)
        with ProduceClient(gateway.listens) as writer:
            found = writer.ask({("t", 0): batch([b"kafka's"])})
        assert found == [(Code.POLICY_VIOLATION, -1)]
        assert counts(client) == {"t": 1}

"""Kafka clients of users with limited permissions."""

from __future__ import annotations

import time
from typing import Any

import confluent_kafka
import pytest

from dafka_core.security.permissions import Permissions
from dafka_core.testing import wait_until
from dafka_kafka.errors import KafkaError
from dafka_kafka.requests import DENIED
from tests.integration.kafka.locked import NAME, Locked, librdkafka

BOB = Permissions("bob", frozenset({"produce", "consume"}), ("orders.*",), ("orders.*", "news"))
CAROL = Permissions("carol", frozenset({"produce"}), ("news",), ())


@pytest.fixture(autouse=True)
def _users(locked: Locked) -> None:
    locked.permit(NAME, BOB, CAROL)


def produced(producer: Any, topic: str) -> confluent_kafka.KafkaError | None:
    """Return the error of a write, or None."""
    told: list[Any] = []
    producer.produce(topic, b"x", on_delivery=lambda error, _: told.append(error))
    wait_until(lambda: producer.poll(0.1) is None or told)
    found: confluent_kafka.KafkaError | None = told[0]
    return found


def librdkafka_producer(locked: Locked, name: str, **more: object) -> Any:
    options = {"message.timeout.ms": 30_000, "topic.metadata.refresh.interval.ms": 200}
    return confluent_kafka.Producer(librdkafka(locked, name, **options, **more))


def test_librdkafka_writes_where_its_user_may(locked: Locked) -> None:
    for idempotent in (False, True):
        producer = librdkafka_producer(locked, "bob", **{"enable.idempotence": idempotent})
        assert produced(producer, "orders.new") is None
        for topic in ("news", "secret"):  # it may see the first one
            refused = produced(producer, topic)
            assert refused is not None
            assert refused.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert locked.refused[DENIED] > 0


def test_what_a_user_may_do_changes_while_it_is_connected(locked: Locked) -> None:
    producer = librdkafka_producer(locked, "bob")
    assert produced(producer, "orders.new") is None
    locked.permit(NAME, Permissions("bob", frozenset({"consume"})))
    refused = produced(producer, "orders.new")
    assert refused is not None
    assert refused.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    locked.permit(NAME, BOB)
    wait_until(lambda: produced(producer, "orders.new") is None)


def consumed(consumer: Any) -> Any:
    """Return the first record or error."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        found = consumer.poll(0.2)
        if found is not None:
            return found
    raise TimeoutError


def consumer_of(locked: Locked, name: str, *topics: str) -> Any:
    options = {"group.id": f"g-{name}", "auto.offset.reset": "earliest"}
    consumer = confluent_kafka.Consumer(librdkafka(locked, name, **options))
    consumer.subscribe([*topics])
    return consumer


def test_librdkafka_reads_what_its_user_may(locked: Locked) -> None:
    everything = librdkafka_producer(locked, NAME)
    for topic in ("news", "secret", "orders.new"):
        assert produced(everything, topic) is None
    wanted = {
        ("bob", "news"): None,
        ("bob", "secret"): KafkaError.TOPIC_AUTHORIZATION_FAILED,
        ("carol", "news"): KafkaError.GROUP_AUTHORIZATION_FAILED,
    }
    for (name, topic), error in wanted.items():
        consumer = consumer_of(locked, name, topic)
        found = consumed(consumer)
        assert (found.error() and found.error().code()) == error
        if error is None:
            assert consumer.commit(asynchronous=False)[0].error is None
        consumer.close()
    listed = confluent_kafka.Consumer(librdkafka(locked, "bob", **{"group.id": "g"})).list_topics()
    assert set(listed.topics) == {"news", "orders.new"}

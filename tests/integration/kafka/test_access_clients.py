"""Kafka clients of users with limited permissions."""

import time
from typing import Any

import confluent_kafka
import confluent_kafka.admin
import pytest

from dafka_core.security.permissions import Permissions
from dafka_core.testing import wait_until
from dafka_kafka.errors import KafkaError
from dafka_kafka.server import DENIED
from tests.integration.kafka.locked import NAME, Locked, librdkafka

admin: Any = confluent_kafka.admin

BOB = Permissions("bob", frozenset({"produce", "consume"}), ("orders.*",), ("orders.*", "news"))
CAROL = Permissions("carol", frozenset({"produce"}), ("news",), ())


@pytest.fixture(autouse=True)
def _users(locked: Locked) -> None:
    locked.permit(NAME, BOB, CAROL)


def produced(producer: Any, topic: str) -> int:
    told: list[Any] = []
    producer.produce(topic, b"x", on_delivery=lambda error, _: told.append(error))
    wait_until(lambda: producer.poll(0.1) is None or told)
    return told[0].code() if told[0] else 0


def librdkafka_producer(locked: Locked, name: str, **more: object) -> Any:
    options = {"message.timeout.ms": 30_000, "topic.metadata.refresh.interval.ms": 200}
    return confluent_kafka.Producer(librdkafka(locked, name, **options, **more))


def test_librdkafka_writes_where_its_user_may(locked: Locked) -> None:
    refused = KafkaError.TOPIC_AUTHORIZATION_FAILED
    for idempotent in (False, True):
        producer = librdkafka_producer(locked, "bob", **{"enable.idempotence": idempotent})
        assert produced(producer, "orders.new") == 0
        assert produced(producer, "news") == produced(producer, "secret") == refused
    assert locked.refused[DENIED] > 0
    # It changes while the client is connected.
    locked.permit(NAME, Permissions("bob", frozenset({"consume"})))
    assert produced(producer, "orders.new") == refused
    locked.permit(NAME, BOB)
    wait_until(lambda: produced(producer, "orders.new") == 0)


def consumed(consumer: Any) -> Any:
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
        assert produced(everything, topic) == 0
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


def test_librdkafka_lists_acls_and_is_told_what_changes_them(locked: Locked) -> None:
    client = admin.AdminClient(librdkafka(locked))
    write = (admin.AclOperation.WRITE, admin.AclPermissionType.ALLOW)
    topic, pattern = admin.ResourceType.TOPIC, admin.ResourcePatternType
    one = admin.AclBindingFilter(topic, "orders.new", pattern.MATCH, "User:bob", None, *write)
    (found,) = client.describe_acls(one).result(30)
    assert (found.name, found.principal) == ("orders.", "User:bob")
    assert found.resource_pattern_type == pattern.PREFIXED
    acl = admin.AclBinding(topic, "t", pattern.LITERAL, "User:bob", "*", *write)
    changes = [*client.create_acls([acl]).values(), *client.delete_acls([one]).values()]
    for each in changes:
        with pytest.raises(confluent_kafka.KafkaException) as refused:
            each.result(30)
        assert refused.value.args[0].code() == KafkaError.SECURITY_DISABLED
        assert "dafka kafka-user change" in refused.value.args[0].str()

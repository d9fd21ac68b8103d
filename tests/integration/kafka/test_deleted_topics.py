"""Topics that Kafka clients deleted or keep for a time, at all known stores."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.cimpl import NewTopic

from dafka_core import Producer, Store
from dafka_core.config.topic_rules import parse_rules
from dafka_core.errors import DafkaError
from dafka_core.testing import wait_until
from dafka_kafka.errors import KafkaError
from dafka_kafka.gateway import Gateway
from tests.integration.kafka.admin import (
    PATIENCE_S,
    counts,
    create,
    delete,
    deletion,
    make,
    refusal,
)
from tests.integration.kafka.produce_client import ProduceClient
from tests.unit.kafka.records.batches import batch


def test_a_topic_is_deleted_while_clients_write_to_it(
    admin: AdminClient, gateway: Gateway, store: Store
) -> None:
    codes, octets = set[int](), batch([bytes(100)] * 200)
    is_over, is_written = threading.Event(), threading.Event()

    def write() -> None:
        with ProduceClient(gateway.listens) as producer:
            for _ in range(4):  # batches in flight
                producer.send({("t", 0): octets})
            while not is_over.is_set():
                producer.send({("t", 0): octets})
                codes.add(producer.receive()[0].error)
                is_written.set()

    for _ in range(2):
        make(admin, "t")
        threads = [threading.Thread(target=write) for _ in range(4)]
        for each in threads:
            each.start()
        assert is_written.wait(PATIENCE_S)
        delete(admin, "t")
        wait_until(lambda: KafkaError.UNKNOWN_TOPIC_OR_PARTITION in codes)
        is_over.set()
        for each in threads:
            each.join()
        assert all(info.earliest == info.end for info in store.log.partitions("t"))
        assert codes == {KafkaError.NONE, KafkaError.UNKNOWN_TOPIC_OR_PARTITION}
        codes.clear()
        is_over.clear()
        is_written.clear()
    assert counts(admin) == {}


def stored(store: Store, topic: str) -> list[list[bytes]]:
    """Return the bounds of each partition with records."""
    return [
        [
            value
            for each in store.log.read(info.tp, info.earliest, info.end)
            for value in each.values
        ]
        for info in store.log.partitions(topic)
        if info.earliest < info.end
    ]


def test_idempotent_producers_begin_anew_with_the_topic(
    admin: AdminClient, gateway: Gateway, store: Store
) -> None:
    first, second = [batch([b"%d" % at], producer=(77, 0, at)) for at in range(2)]
    with (
        Producer("t", tower=store.options.tower) as dafkas,
        ProduceClient(gateway.listens) as producer,
    ):
        for _ in range(2):
            make(admin, "t")
            dafkas.publish(b"dafka's")
            wait_until(lambda: counts(admin) == {"t": 2})
            sent = [producer.ask({("t", 0): each}) for each in (first, second, first)]
            assert sent == [[(0, 0)], [(0, 1)], [(0, 0)]]
            # To a Dafka producer's number: it is written to a hosted partition.
            sent = [producer.ask({("t", 1): each}) for each in (first, second, first)]
            assert sent == [[(0, -1)]] * 3
            assert sorted(stored(store, "t")) == [[b"0", b"1", b"0", b"1"], [b"dafka's"]]
            delete(admin, "t")
            assert stored(store, "t") == []


def test_of_topics_that_are_deleted_at_once_no_rule_is_left(
    admin: AdminClient, store: Store
) -> None:
    topics = [f"t{number}" for number in range(8)]
    for each in topics:
        make(admin, each, {"retention.ms": "1000"})
    assert len(store.retention_control.rules) == len(topics)
    for done in admin.delete_topics(topics, request_timeout=PATIENCE_S).values():
        done.result(PATIENCE_S)
    assert store.retention_control.rules == ()


@pytest.fixture
def third(store: Store, tower: str, tmp_path: Path) -> Iterator[Store]:
    """A third one: with it a majority stays when one ends."""
    with Store(tmp_path / "third", tower=tower) as third:
        wait_until(lambda: third.address in store.known.endpoints)
        yield third


def held(store: Store) -> list[tuple[int, int]]:
    return [(info.earliest, info.end) for info in store.log.partitions("t")]


def test_other_stores_do_it_too(
    admin: AdminClient, store: Store, other: Store, third: Store
) -> None:
    make(admin, "without")
    with Producer("t", tower=store.options.tower, acks=3) as producer:
        producer.publish_many([b"%d" % number for number in range(10)])
    wait_until(lambda: "t" in counts(admin))
    before = TopicPartition("t", 0, 4)
    low = admin.delete_records([before], request_timeout=PATIENCE_S)[before]
    assert low.result(PATIENCE_S).low_watermark == 4
    assert held(store) == held(other) == [(4, 10)]

    def keep(value: str) -> Any:
        entry = ConfigEntry("retention.ms", value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ConfigResource.Type.TOPIC, "t", incremental_configs=[entry])
        return admin.incremental_alter_configs([resource])[resource]

    keep("3600000").result(PATIENCE_S)
    rules = [list(map(str, each.retention_control.rules)) for each in (store, other, third)]
    assert rules == [["t=1h"]] * 3
    delete(admin, "t")
    wait_until(lambda: held(store) == held(other) == [(10, 10)])
    with Producer("t", tower=store.options.tower) as producer:
        producer.publish(b"again")
    wait_until(lambda: "t" in counts(admin))
    # The rule was deleted with the topic.
    assert [each.retention_control.rules for each in (store, other, third)] == [()] * 3
    keep("3600000").result(PATIENCE_S)
    other.close()
    wait_until(lambda: store.known.here == {third.address})
    error, why = refusal(keep("1000"))
    assert (error, other.address in why) == ("NOT_ENOUGH_REPLICAS", True)
    assert list(map(str, store.retention_control.rules)) == ["t=1h"]
    assert refusal(deletion(admin, "t"))[0] == "NOT_ENOUGH_REPLICAS"
    delete(admin, "without")
    assert counts(admin) == {"t": 1}
    # A request without limits changes no rule, whatever the topic's position.
    store.retention_control.replace(parse_rules(["x*=1d", "u=1h"]))
    make(admin, "u")
    assert counts(admin) == {"t": 1, "u": 1}


def test_a_store_that_keeps_a_deleted_topics_rule_is_told_again(
    admin: AdminClient, store: Store, other: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(admin, "t", {"retention.ms": "3600000"})

    def fail(*_: object) -> None:
        raise DafkaError("no disk")

    with monkeypatch.context() as patched:
        patched.setattr(other.retention_control, "replace", fail)
        assert refusal(deletion(admin, "t"))[0] == "REQUEST_TIMED_OUT"
        assert counts(admin) == {}
    delete(admin, "t")
    assert [each.retention_control.rules for each in (store, other)] == [()] * 2


def test_a_topic_that_another_store_does_not_keep_as_asked_for_is_not_made(
    admin: AdminClient, store: Store, other: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise DafkaError("no disk")

    monkeypatch.setattr(other.retention_control, "replace", fail)
    made = create(admin, NewTopic("t", 1, config={"retention.ms": "1000"}))["t"]
    error, why = refusal(made)
    assert (error, "so the topic is not made" in why) == ("REQUEST_TIMED_OUT", True)
    assert [each.retention_control.rules for each in (store, other)] == [()] * 2
    assert counts(admin) == {}

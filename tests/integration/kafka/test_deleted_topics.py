"""Nothing of a topic that Kafka clients deleted comes back."""

from __future__ import annotations

import threading

from confluent_kafka.admin import AdminClient

from dafka_core import Producer, Store
from dafka_core.testing import wait_until
from dafka_kafka.errors import KafkaError
from dafka_kafka.gateway import Gateway
from tests.integration.kafka.admin import PATIENCE_S, counts, delete, make
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

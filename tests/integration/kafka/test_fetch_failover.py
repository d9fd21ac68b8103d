"""Consumers continue at another gateway when theirs ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from dafka_core import Producer, Store
from dafka_core.model.records import TopicPartition
from dafka_core.testing.waiting import PATIENCE_S, wait_until
from dafka_kafka.gateway import Gateway
from tests.integration.kafka.clients.clients import Aiokafka, Librdkafka

COUNT = 100


def leader(servers: str) -> int:
    """Return the port of the partition's leader, once both gateways know each other."""
    client = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    wait_until(lambda: len(client.list_topics(timeout=PATIENCE_S).brokers) == 2)
    found = client.list_topics("t", timeout=PATIENCE_S)
    return int(found.brokers[found.topics["t"].partitions[0].leader].port)


# Not kafka-python, which continues, but leaks the sockets of its retries.
@pytest.mark.parametrize(("kind", "reset"), [(Librdkafka, "error"), (Aiokafka, "none")])
def test_a_reader_goes_on_at_another_gateway(
    tower: str, start: Callable[[str], tuple[Store, Gateway]], kind: Any, reset: str
) -> None:
    both = [start(name) for name in "ab"]
    servers = ",".join(str(gateway.listens) for _, gateway in both)
    with Producer("t", tower=tower) as producer:
        tp = TopicPartition("t", producer.address)

        def publish(*stores: Store) -> None:
            first = producer.next_offset
            producer.publish_many([b"%d" % (first + number) for number in range(COUNT)])
            wait_until(lambda: {each.log.end(tp) for each in stores} == {first + COUNT})

        publish(*(store for store, _ in both))
        port = leader(servers)
        with kind(servers).reading(auto_offset_reset=reset) as client:
            assert [at for at, _ in client.read(COUNT)] == list(range(COUNT))
            (led, ending), (kept, _) = sorted(both, key=lambda each: each[1].listens.port != port)
            assert ending.listens.port == port
            ending.close()
            led.close()
            publish(kept)
            found = client.read(COUNT)
    assert [(at, each.value) for at, each in found] == [
        (at, b"%d" % at) for at in range(COUNT, 2 * COUNT)
    ]

"""Consumers continue at another gateway when theirs ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from dafka_core import Producer, Store
from dafka_core.model.records import TopicPartition
from dafka_core.testing.waiting import PATIENCE_S, wait_until
from dafka_kafka.gateway import Gateway
from tests.integration.kafka.clients.clients import Aiokafka, Librdkafka

OFTEN: dict[str, Any] = {
    "beacon_interval_ms": 200,
    "peer_expiry_ms": 1_500,
    "sync_interval_ms": 200,
}
COUNT = 100


class StoreAndGateway:
    def __init__(self, directory: Path, tower: str) -> None:
        self._running = ExitStack()
        self.store = self._running.enter_context(Store(directory, tower=tower, **OFTEN))
        self.gateway = self._running.enter_context(Gateway(self.store, listen="127.0.0.1:0"))

    def close(self) -> None:
        self._running.close()


@pytest.fixture
def both(tower: str, tmp_path: Path) -> Iterator[list[StoreAndGateway]]:
    with ExitStack() as running:
        made = [StoreAndGateway(tmp_path / name, tower) for name in "ab"]
        for each in made:
            running.callback(each.close)
        yield made


def leader(servers: str) -> int:
    """Return the port of the partition's leader, once both gateways know each other."""
    client = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    wait_until(lambda: len(client.list_topics(timeout=PATIENCE_S).brokers) == 2)
    found = client.list_topics("t", timeout=PATIENCE_S)
    return int(found.brokers[found.topics["t"].partitions[0].leader].port)


# Not kafka-python, which continues, but leaks the sockets of its retries.
@pytest.mark.parametrize(("kind", "reset"), [(Librdkafka, "error"), (Aiokafka, "none")])
def test_a_reader_goes_on_at_another_gateway(
    tower: str, both: list[StoreAndGateway], kind: Any, reset: str
) -> None:
    servers = ",".join(str(each.gateway.listens) for each in both)
    with Producer("t", tower=tower) as producer:
        tp = TopicPartition("t", producer.address)

        def publish(stores: list[StoreAndGateway]) -> None:
            first = producer.next_offset
            producer.publish_many([b"%d" % (first + number) for number in range(COUNT)])
            wait_until(lambda: {each.store.log.end(tp) for each in stores} == {first + COUNT})

        publish(both)
        port = leader(servers)
        with kind(servers).reading(auto_offset_reset=reset) as client:
            assert [at for at, _ in client.read(COUNT)] == list(range(COUNT))
            [led] = [each for each in both if each.gateway.listens.port == port]
            led.close()
            publish([each for each in both if each is not led])
            found = client.read(COUNT)
    assert [(at, each.value) for at, each in found] == [
        (at, b"%d" % at) for at in range(COUNT, 2 * COUNT)
    ]

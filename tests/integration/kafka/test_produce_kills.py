"""A store with its gateway is killed repeatedly while clients write.

Acknowledged records exist afterwards; those of an idempotent producer exist once.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Message, Producer

from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.store_location import StoreLocation
from dafka_core.storage import Log
from dafka_core.testing import wait_until
from tests.forked import ForkedCluster

ROUNDS = 3
EACH = 4_000
"""Records between two kills."""

PARTITIONS = 4
RETURN_S = 15.0
"""Limit of the time from a kill until each partition has an acknowledgement, with the restart."""

PATIENCE_S = 120.0


class Application:
    """Writes numbers, and records their acknowledgements."""

    def __init__(
        self, servers: str, *, idempotent: bool, partitions: int = 2, **options: object
    ) -> None:
        self.sent = 0
        self.acknowledged: dict[int, tuple[int, int]] = {}
        self.acknowledged_s: dict[int, float] = {}
        """By partition: the time of the last acknowledgement."""
        self._partitions = partitions
        self.errors: list[KafkaError] = []
        self._producer = Producer(
            {
                "bootstrap.servers": servers,
                "enable.idempotence": idempotent,
                "batch.num.messages": 100,
                "linger.ms": 1,
                "reconnect.backoff.max.ms": 200,
                "retry.backoff.max.ms": 200,
                "message.timeout.ms": int(PATIENCE_S * 1000),
                "log_level": 0,
            }
            | options
        )

    def write(self, until: int) -> None:
        """Continue until ``count`` records are acknowledged."""
        while len(self.acknowledged) < until and not self.errors:
            if self.sent < until + EACH // 2:  # in flight when the store is killed
                self._produce()
            self._producer.poll(0 if self.sent % 100 else 0.001)

    def begin(self, count: int, wait_s: float = 0) -> None:
        """Write some more, and process answers."""
        for _ in range(count):
            self._produce()
        self._producer.poll(wait_s)

    def finish(self) -> None:
        assert self._producer.flush(PATIENCE_S) == 0

    def _produce(self) -> None:
        number = self.sent
        self.sent += 1
        self._producer.produce(
            "t",
            b"%d" % number,
            partition=number % self._partitions,
            on_delivery=lambda error, message: self._told(number, error, message),
        )

    def _told(self, number: int, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.errors.append(error)
            return
        partition, offset = message.partition(), message.offset()
        assert partition is not None
        assert offset is not None
        self.acknowledged[number] = partition, offset
        self.acknowledged_s[partition] = time.monotonic()


def stored(directory: Path) -> list[list[int]]:
    """Return the numbers in each non-empty partition."""
    with Log(directory) as log:
        infos = log.partitions("t")
        return [
            [int(value) for batch in log.read(info.tp, 0, info.end) for value in batch.values]
            for info in infos
        ]


def ends(cluster: ForkedCluster, index: int, topic: str = "t") -> dict[str, int]:
    """Return the ends of a topic's partitions in a store."""
    with StoreClient(StoreLocation("", cluster.locations(index))) as client:
        return {each.partition: each.end for each in client.heads([topic], timeout_s=PATIENCE_S)}


def test_what_was_written_and_not_answered_is_written_once(tmp_path: Path) -> None:
    """Responses wait for a stopped store when the gateway is killed."""
    with ForkedCluster(2, directory=tmp_path, kafka={"num_partitions": 2}) as cluster:
        application = Application(cluster.bootstrap_servers, idempotent=True)
        for each in range(1, ROUNDS + 1):
            application.write(each * EACH)
            with cluster.paused_store(1):
                location = StoreLocation(cluster.stores[0], cluster.locations(0))
                with StoreClient(location) as client:

                    def is_written(client: StoreClient = client) -> bool:
                        application.begin(10)
                        heads = client.heads(["t"], timeout_s=PATIENCE_S)
                        return sum(head.end for head in heads) > len(application.acknowledged)

                    wait_until(is_written, "records are on disk that are not acknowledged")
                cluster.kill_store(0)
            cluster.start_store(0)
        application.finish()
        directory = cluster.store_directory(0)
    assert application.errors == []
    found = [number for numbers in stored(directory) for number in numbers]
    assert sorted(found) == [*range(application.sent)]


@pytest.mark.parametrize("idempotent", [True, False])
def test_nothing_acknowledged_is_lost_and_nothing_of_an_idempotent_producer_doubled(
    tmp_path: Path, idempotent: bool
) -> None:
    with ForkedCluster(directory=tmp_path, kafka={"num_partitions": 2}) as cluster:
        application = Application(cluster.bootstrap_servers, idempotent=idempotent)
        for each in range(1, ROUNDS + 1):
            application.write(each * EACH)
            cluster.kill_store()
            cluster.start_store()
        application.finish()
        directory = cluster.store_directory()
    assert application.errors == []
    found = {numbers[0] % 2: numbers for numbers in stored(directory)}
    assert len(application.acknowledged) == application.sent
    for number, (partition, offset) in application.acknowledged.items():
        assert found[partition][offset] == number
    if idempotent:
        for partition, numbers in found.items():
            assert numbers == [*range(partition, application.sent, 2)]


@pytest.mark.parametrize("rounds", [1, pytest.param(ROUNDS, marks=pytest.mark.nightly)])
def test_each_partition_of_a_killed_gateway_is_written_soon_after_it_returns(
    tmp_path: Path, rounds: int
) -> None:
    kafka = {"num_partitions": PARTITIONS}
    with ForkedCluster(2, directory=tmp_path, kafka=kafka) as cluster:
        application = Application(cluster.bootstrap_servers, idempotent=True, partitions=PARTITIONS)
        for each in range(1, rounds + 1):
            application.write(each * EACH // 2)
            cluster.kill_store(each % 2)
            killed_s = time.monotonic()
            application.begin(EACH // 4)
            cluster.start_store(each % 2)
            while min(application.acknowledged_s.values()) < killed_s:
                assert time.monotonic() < killed_s + RETURN_S, application.acknowledged_s
                application.begin(PARTITIONS, 0.01)
        application.finish()
        wait_until(lambda: ends(cluster, 0) == ends(cluster, 1), "both stores have the same")
        directories = [cluster.store_directory(index) for index in range(2)]
    assert application.errors == []
    for directory in directories:
        found = {numbers[0] % PARTITIONS: numbers for numbers in stored(directory)}
        for number in range(PARTITIONS):
            assert found[number] == [*range(number, application.sent, PARTITIONS)]
        for number, (partition, offset) in application.acknowledged.items():
            assert found[partition][offset] == number

"""The partitions of a gateway that is away are written at another one.

Two stores have gateways, and a third one votes. Acknowledged records stay at their offsets, those
of an idempotent producer exist once and in order, and a consumer that reads along sees what stays.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from dafka_core.testing import wait_until
from dafka_kafka.journal import JOURNAL_TOPIC
from tests.forked import ForkedCluster
from tests.integration.kafka.test_produce_kills import (
    PARTITIONS,
    RETURN_S,
    Application,
    ends,
    stored,
)

ROUNDS = 3
EACH = 2_000
"""Records between two faults."""

Seen = dict[tuple[int, int], int]
"""Numbers by partition and offset."""


class VotedCluster(ForkedCluster):
    """Two stores with gateways, and one without."""

    def __init__(self, directory: Path) -> None:
        super().__init__(2, directory=directory, kafka={"num_partitions": PARTITIONS})
        self.servers = self.bootstrap_servers
        self._has_gateways = False
        self.start_store(2)
        self._has_gateways = True

    def wait_for_leaders(self) -> None:
        """Wait until each gateway has a term, which its journal describes in every store."""

        def are_there() -> bool:
            journals = [ends(self, index, JOURNAL_TOPIC) for index in range(3)]
            return all(len(each) == 2 and min(each.values()) > 1 for each in journals)

        wait_until(are_there, "the gateways are leaders")

    def wait_for_copies(self) -> None:
        """Wait until all stores have the same ends."""
        of = [ends(self, index) for index in range(3)]
        wait_until(lambda: of[0] == of[1] == of[2] or self._ask(of), "all stores have the same")

    def _ask(self, of: list[dict[str, int]]) -> bool:
        of[:] = [ends(self, index) for index in range(3)]
        return False


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[VotedCluster]:
    with VotedCluster(tmp_path) as cluster:
        yield cluster


@contextmanager
def reading(servers: str) -> Iterator[Seen]:
    """Read all partitions meanwhile, from their beginnings."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "g",
            "auto.offset.reset": "error",
            # Otherwise it is closed when its group's gateway, which has ended, answers.
            "enable.auto.commit": False,
            "reconnect.backoff.max.ms": 200,
            "log_level": 0,
        }
    )
    seen: Seen = {}
    ended = threading.Event()
    positions = [0] * PARTITIONS

    def read() -> None:
        consumer.assign([TopicPartition("t", each, 0) for each in range(PARTITIONS)])
        while not ended.is_set():
            for message in consumer.consume(1_000, 0.1):
                assert message.error() is None, message.error()
                partition, offset = message.partition() or 0, message.offset()
                assert offset == positions[partition]
                positions[partition] += 1
                seen[partition, offset] = int(message.value() or b"")

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield seen
    finally:
        ended.set()
        thread.join()
        consumer.close()


def wait_for_all(application: Application, first: int) -> float:
    """Write until each partition has a record from ``first`` on; return the time it has taken."""
    begun_s = time.monotonic()
    missing = set(range(PARTITIONS))
    while missing:
        assert time.monotonic() < begun_s + RETURN_S, (first, application.sent, missing)
        application.begin(PARTITIONS, 0.01)
        for number in range(first, application.sent):
            if number in application.acknowledged:
                missing.discard(number % PARTITIONS)
    return time.monotonic() - begun_s


def check(cluster: VotedCluster, application: Application, seen: Seen, *, once: bool) -> None:
    """Check the acknowledged records at all stores, and those that the consumer has seen."""
    application.finish()
    cluster.wait_for_copies()
    count = sum(ends(cluster, 0).values())
    wait_until(lambda: len(seen) == count, "the consumer has read everything")
    directories = [cluster.store_directory(index) for index in range(3)]
    cluster.close()
    assert application.errors == []
    assert len(application.acknowledged) == application.sent
    for directory in directories:
        found = {numbers[0] % PARTITIONS: numbers for numbers in stored(directory)}
        for number, (partition, offset) in application.acknowledged.items():
            assert found[partition][offset] == number
        for (partition, offset), number in seen.items():
            assert found[partition][offset] == number
        for number in range(PARTITIONS if once else 0):
            assert found[number] == [*range(number, application.sent, PARTITIONS)]


@pytest.mark.parametrize(
    ("rounds", "idempotent"),
    [(1, True), *(pytest.param(ROUNDS, each, marks=pytest.mark.nightly) for each in (True, False))],
)
def test_the_partitions_of_a_killed_gateway_are_written_at_another_one(
    cluster: VotedCluster, rounds: int, idempotent: bool
) -> None:
    application = Application(cluster.servers, idempotent=idempotent, partitions=PARTITIONS)
    application.write(PARTITIONS * 10)
    cluster.wait_for_leaders()
    with reading(cluster.servers) as seen:
        for each in range(rounds):
            application.write(application.sent + EACH)
            cluster.kill_store(each % 2)
            first = application.sent  # earlier ones may have been answered before
            application.begin(EACH // 4)
            wait_for_all(application, first)
            cluster.start_store(each % 2)
        application.write(application.sent + EACH)
        check(cluster, application, seen, once=idempotent)


@pytest.mark.parametrize("rounds", [1, pytest.param(ROUNDS, marks=pytest.mark.nightly)])
def test_a_gateway_that_was_paused_writes_nothing_that_stays(
    cluster: VotedCluster, rounds: int
) -> None:
    options = {"socket.timeout.ms": 3_000}  # of requests that it does not answer
    application = Application(cluster.servers, idempotent=True, partitions=PARTITIONS, **options)
    application.write(PARTITIONS * 10)
    cluster.wait_for_leaders()
    with reading(cluster.servers) as seen:
        for each in range(rounds):
            application.write(application.sent + EACH)
            application.begin(EACH // 4)
            with cluster.paused_store(each % 2):
                wait_for_all(application, application.sent)
            application.begin(EACH // 4)
            wait_for_all(application, application.sent)
        application.write(application.sent + EACH)
        check(cluster, application, seen, once=True)

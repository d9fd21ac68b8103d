"""A store with its gateway is killed repeatedly while clients write.

Acknowledged records stay at their offsets; those of an idempotent producer exist once and in order.
With three stores the partitions of a gateway that is away are written at another one.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from dafka_core.system.hosts import host_port
from dafka_core.testing import wait_until
from dafka_kafka.errors import KafkaError
from dafka_kafka.leaders import JOURNAL_TOPIC
from dafka_kafka.produce import ALL
from tests.forked import ForkedCluster
from tests.integration.kafka.number_writer import TOPIC, NumberWriter, ends
from tests.integration.kafka.produce_client import ProduceClient
from tests.unit.kafka.records.batches import batch

ROUNDS = 3
EACH = 4_000
"""Records between two kills."""

PARTITIONS = 4
RETURN_S = 15.0
"""Limit of the time from a kill until each partition has an acknowledgement, with the restart."""


def test_what_was_written_and_not_answered_is_written_once(tmp_path: Path) -> None:
    """Responses wait for a stopped store when the gateway is killed."""
    with ForkedCluster(2, directory=tmp_path, kafka={"num_partitions": 2}) as cluster:
        writer = NumberWriter(cluster.bootstrap_servers)

        def is_written() -> bool:
            writer.begin(10)
            return sum(ends(cluster, 0).values()) > len(writer.acknowledged)

        for each in range(1, ROUNDS + 1):
            writer.write(each * EACH)
            with cluster.paused_store(1):
                wait_until(is_written, "records are on disk that are not acknowledged")
                cluster.kill_store(0)
            cluster.start_store(0)
        writer.finish()
        directory = cluster.store_directory(0)
    writer.check(directory)


@pytest.mark.parametrize(
    ("idempotent", "records"),
    [(True, 70_000), (False, EACH), pytest.param(True, 300_000, marks=pytest.mark.nightly)],
)
def test_nothing_acknowledged_is_lost_and_nothing_of_an_idempotent_producer_doubled(
    tmp_path: Path, idempotent: bool, records: int
) -> None:
    with ForkedCluster(directory=tmp_path, kafka={"num_partitions": 2}) as cluster:
        writer = NumberWriter(cluster.bootstrap_servers, idempotent=idempotent)
        for each in range(1, ROUNDS + 1):
            writer.write(each * records)
            cluster.kill_store()
            cluster.start_store()
        writer.finish()
        directory = cluster.store_directory()
    writer.check(directory, once=idempotent)


@pytest.mark.parametrize("rounds", [1, pytest.param(ROUNDS, marks=pytest.mark.nightly)])
def test_each_partition_of_a_killed_gateway_is_written_soon_after_it_returns(
    tmp_path: Path, rounds: int
) -> None:
    kafka = {"num_partitions": PARTITIONS}
    with ForkedCluster(2, directory=tmp_path, kafka=kafka) as cluster:
        writer = NumberWriter(cluster.bootstrap_servers, partitions=PARTITIONS)
        for each in range(1, rounds + 1):
            writer.write(each * EACH // 2)
            cluster.kill_store(each % 2)
            killed_s = time.monotonic()
            writer.begin(EACH // 4)
            cluster.start_store(each % 2)
            while min(writer.acknowledged_s) < killed_s:
                assert time.monotonic() < killed_s + RETURN_S, writer.acknowledged_s
                writer.begin(PARTITIONS, 0.01)
        writer.finish()
        wait_until(lambda: ends(cluster, 0) == ends(cluster, 1), "both stores have the same")
        directories = [cluster.store_directory(index) for index in range(2)]
    for directory in directories:
        writer.check(directory)


# -- partitions that are written at another gateway ------------------------------------------------

Seen = dict[tuple[int, int], int]  # numbers by partition and offset


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
        consumer.assign([TopicPartition(TOPIC, each, 0) for each in range(PARTITIONS)])
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


def wait_for_all(writer: NumberWriter, first: int) -> None:
    """Write until each partition has a record from ``first`` on."""
    begun_s = time.monotonic()
    missing = set(range(PARTITIONS))
    while missing:
        assert time.monotonic() < begun_s + RETURN_S, (first, writer.sent, missing)
        writer.begin(PARTITIONS, 0.01)
        for number in range(first, writer.sent):
            if number in writer.acknowledged:
                missing.discard(number % PARTITIONS)


def check(cluster: VotedCluster, writer: NumberWriter, seen: Seen, *, once: bool) -> None:
    """Check the acknowledged records at all stores, and those that the consumer has seen."""
    writer.finish()
    cluster.wait_for_copies()
    count = sum(ends(cluster, 0).values())
    wait_until(lambda: len(seen) == count, "the consumer has read everything")
    directories = [cluster.store_directory(index) for index in range(3)]
    cluster.close()
    for directory in directories:
        found = writer.check(directory, once=once)
        for (partition, offset), number in seen.items():
            assert found[partition][offset] == number


@pytest.mark.parametrize(
    ("rounds", "idempotent"),
    [(1, True), *(pytest.param(ROUNDS, each, marks=pytest.mark.nightly) for each in (True, False))],
)
def test_the_partitions_of_a_killed_gateway_are_written_at_another_one(
    cluster: VotedCluster, rounds: int, idempotent: bool
) -> None:
    writer = NumberWriter(cluster.servers, idempotent=idempotent, partitions=PARTITIONS)
    writer.write(PARTITIONS * 10)
    cluster.wait_for_leaders()
    with reading(cluster.servers) as seen:
        for each in range(rounds):
            writer.write(writer.sent + EACH // 2)
            cluster.kill_store(each % 2)
            first = writer.sent  # earlier ones may have been answered before
            writer.begin(EACH // 8)
            wait_for_all(writer, first)
            cluster.start_store(each % 2)
        writer.write(writer.sent + EACH // 2)
        check(cluster, writer, seen, once=idempotent)


@pytest.mark.parametrize("rounds", [1, pytest.param(ROUNDS, marks=pytest.mark.nightly)])
def test_a_gateway_that_was_paused_writes_nothing_that_stays(
    cluster: VotedCluster, rounds: int
) -> None:
    options = {"socket.timeout.ms": 3_000}  # of requests that it does not answer
    writer = NumberWriter(cluster.servers, idempotent=True, partitions=PARTITIONS, **options)
    writer.write(PARTITIONS * 10)
    cluster.wait_for_leaders()
    with reading(cluster.servers) as seen:
        for each in range(rounds):
            writer.write(writer.sent + EACH // 2)
            writer.begin(EACH // 8)
            with cluster.paused_store(each % 2):
                wait_for_all(writer, writer.sent)
            writer.begin(EACH // 8)
            wait_for_all(writer, writer.sent)
        writer.write(writer.sent + EACH // 2)
        check(cluster, writer, seen, once=True)


def test_a_gateway_that_was_paused_refuses_no_batch_by_its_sequence(cluster: VotedCluster) -> None:
    """It does not know those that another leader has written meanwhile: clients would end."""
    NumberWriter(cluster.servers, partitions=PARTITIONS).write(PARTITIONS * 10)
    cluster.wait_for_leaders()
    paused, other = (host_port(each, 9092) for each in cluster.servers.split(","))
    with ProduceClient(paused) as client, ProduceClient(other) as client_of_other:
        producer_id = client.init_producer_id().producer_id
        batches = [batch([b"0"], producer=(producer_id, 0, each)) for each in range(3)]

        def written(client: ProduceClient, number: int, sequence: int) -> int:
            (answer,) = client.ask({(TOPIC, number): batches[sequence]}, acks=ALL)
            return answer.error

        number = next(each for each in range(PARTITIONS) if not written(client, each, 0))
        assert written(client, number, 2) == KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER
        with cluster.paused_store(0):
            wait_until(lambda: not written(client_of_other, number, 1), "it has another leader")
            client.send({(TOPIC, number): batches[2]}, acks=ALL)
        (answer,) = client.receive()
    assert answer.error == KafkaError.NOT_LEADER_OR_FOLLOWER

"""A producer that writes numbers through gateways, and the numbers that stores have on disk."""

import time
from functools import partial
from pathlib import Path

from confluent_kafka import KafkaError, Message, Producer

from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.store_location import StoreLocation
from dafka_core.storage import Log
from tests.forked import ForkedCluster

TOPIC = "numbers"

MAX_IN_FLIGHT = 2_000

PATIENCE_S = 120.0


class NumberWriter:
    """Writes 0, 1, 2, … to a topic's partitions in turn, and records the acknowledgements."""

    def __init__(
        self, servers: str, *, idempotent: bool = True, partitions: int = 2, **options: object
    ) -> None:
        self.partitions = partitions
        self.sent = 0
        self.acknowledged: dict[int, tuple[int, int]] = {}  # partition and offset of each number
        self.acknowledged_s = [0.0] * partitions
        """The time of the last acknowledgement, by partition."""
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
        """Continue until ``until`` numbers are acknowledged; some are in flight then."""
        while len(self.acknowledged) < until and not self.errors:
            self.step()

    def step(self) -> None:
        """Write some more, unless many are in flight, and process answers."""
        in_flight = self.sent - len(self.acknowledged)
        self.begin(min(100, MAX_IN_FLIGHT - in_flight), 0.001)

    def begin(self, count: int, wait_s: float = 0) -> None:
        """Write some more, and process answers."""
        for _ in range(count):
            number = self.sent
            self.sent += 1
            self._producer.produce(
                TOPIC,
                b"%d" % number,
                partition=number % self.partitions,
                on_delivery=partial(self._told, number),
            )
        self._producer.poll(wait_s)

    def finish(self) -> None:
        assert self._producer.flush(PATIENCE_S) == 0
        assert self.errors == []
        assert len(self.acknowledged) == self.sent

    def _told(self, number: int, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.errors.append(error)
            return
        partition, offset = message.partition(), message.offset()
        assert partition is not None
        assert offset is not None
        self.acknowledged[number] = partition, offset
        self.acknowledged_s[partition] = time.monotonic()

    def check(self, directory: Path, *, once: bool = True) -> dict[int, list[int]]:
        """Check that a store has each number at its offset; with ``once``, once and in order.

        Returns:
            the store's numbers by partition.
        """
        found = {numbers[0] % self.partitions: numbers for numbers in stored(directory)}
        for number, (partition, offset) in self.acknowledged.items():
            assert found[partition][offset] == number
        for partition, numbers in found.items() if once else ():
            assert numbers == [*range(partition, self.sent, self.partitions)]
        return found


def stored(directory: Path) -> list[list[int]]:
    """Return the numbers in each partition of a store."""
    with Log(directory) as log:
        return [
            [
                int(value)
                for batch in log.read(info.tp, 0, info.end, max_records=1 << 30, max_bytes=1 << 40)
                for value in batch.values
            ]
            for info in log.partitions(TOPIC)
        ]


def ends(cluster: ForkedCluster, index: int, topic: str = TOPIC) -> dict[str, int]:
    """Return the ends of a topic's partitions in a store."""
    with StoreClient(StoreLocation("", cluster.locations(index))) as client:
        return {each.partition: each.end for each in client.heads([topic], timeout_s=PATIENCE_S)}

"""Table 11: stores with their gateways are killed while Kafka's clients write and read.

An idempotent producer writes numbers to all partitions of a topic, acknowledged by all stores. A
group of consumers reads them and commits. Each store is killed at random moments and started again,
sometimes both at once. Within 15 s of its return each partition has an acknowledgement again. In
the end each number is at both stores, once and in order, where its producer was told; the group has
read all of them; and no committed offset ever went back.
"""

import contextlib
import time
from collections.abc import Callable
from itertools import chain
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition

from tests.chaos.harness import Chaos, ChaosError, Round, Worker, wait_until
from tests.forked import ForkedCluster
from tests.integration.kafka.number_writer import TOPIC, NumberWriter, ends, stored

ROUNDS = 10
SHORT_ROUNDS = 1
KILLS = 5
SHORT_KILLS = 2
PAUSE_S = 2.0
"""Longest time between kills, with everything killed serving again."""

RETURN_S = 15.0
"""Limit of the time from the return of a gateway until each partition has an acknowledgement."""

PARTITIONS = 3
MEMBERS = 2
PACE_S = 0.005

OPTIONS = {
    "num_partitions": PARTITIONS,
    "group_rebalance_delay_ms": 200,
    "group_min_session_timeout_ms": 1_000,
}
QUICK: dict[str, Any] = {
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 200,
    "retry.backoff.ms": 50,
    "retry.backoff.max.ms": 200,
    "log_level": 0,
}
"""Clients retry soon: the round lasts as long."""


class TableRound(Round):
    def run(self) -> None:
        cluster = self.stack.enter_context(ForkedCluster(2, self.directory, kafka=OPTIONS))
        servers = cluster.bootstrap_servers
        writer = Writer(servers)
        numbers = writer.numbers
        self.stack.callback(writer.stop)
        members = [Member(servers) for _ in range(MEMBERS)]
        for member in members:
            self.stack.callback(member.stop)
        for each in (writer, *members):
            each.start()
        for kill in range(SHORT_KILLS if self.chaos.short else KILLS):
            acknowledged = len(numbers.acknowledged)
            wait_until(
                lambda before=acknowledged: len(numbers.acknowledged) > before or writer.failure,  # type: ignore[misc]
                f"something is acknowledged before kill {kill}",
            )
            time.sleep(self.chance.uniform(0, PAUSE_S))
            victims = [0, 1] if self.chance.random() < 0.2 else [self.chance.randrange(2)]
            for victim in victims:
                cluster.kill_store(victim)
            self.chaos.fault("both stores killed" if len(victims) > 1 else "store killed")
            time.sleep(self.chance.uniform(0, PAUSE_S / 2))
            for victim in victims:
                cluster.start_store(victim)
            if self.chance.random() < 0.5:  # otherwise the next kill may come earlier
                returned_s = time.monotonic()
                wait_until(
                    lambda since=returned_s: min(numbers.acknowledged_s) > since or writer.failure,  # type: ignore[misc]
                    f"each partition has an acknowledgement after kill {kill}",
                    RETURN_S,
                )
                self.chaos.most(
                    "seconds until all partitions are written", time.monotonic() - returned_s
                )
        writer.finish()
        sent = numbers.sent
        wait_until(
            lambda: len(_read(members)) >= sent,
            lambda: f"the group has read {len(_read(members))} of {sent} numbers",
        )
        for member in members:
            member.finish()
        self.chaos.outcome.records += sent
        self.chaos.add("numbers read again", sum(len(member.read) for member in members) - sent)
        _check_group(self.chaos, servers, sent, members)
        wait_until(lambda: ends(cluster, 0) == ends(cluster, 1), "both stores have the same")
        cluster.close()
        for index in range(2):
            directory = cluster.store_directory(index)
            found = chain.from_iterable(stored(directory))
            self.chaos.compare(directory.name, range(sent), found)
            numbers.check(directory)


class Writer(Worker):
    def __init__(self, servers: str) -> None:
        super().__init__("the producer")
        self.numbers = NumberWriter(servers, partitions=PARTITIONS, **QUICK)

    def _work(self) -> None:
        while not self._done.is_set() and not self.numbers.errors:
            self.numbers.step()
            time.sleep(PACE_S)
        self.numbers.finish()


class Member(Worker):
    """A member of the group, which commits what it has read."""

    def __init__(self, servers: str) -> None:
        super().__init__("a member of the group")
        self.read: list[tuple[int, int]] = []  # partition and number, in order of arrival
        self.committed: list[tuple[int, int]] = []  # partition and offset of each successful commit
        session = {"session.timeout.ms": 3_000, "heartbeat.interval.ms": 300}
        self._consumer = Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": "readers",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "topic.metadata.refresh.interval.ms": 500,
                **session,
                **QUICK,
            }
        )

    def _work(self) -> None:
        self._consumer.subscribe([TOPIC])
        try:
            while not self._done.is_set():
                messages = [
                    each for each in self._consumer.consume(500, timeout=0.2) if not each.error()
                ]
                for each in messages:
                    self.read.append((each.partition() or 0, int(each.value() or b"")))
                if messages:
                    self._commit()
        finally:
            self._consumer.close()

    def _commit(self) -> None:
        # It fails while no gateway answers, or after a rebalance.
        with contextlib.suppress(KafkaException):
            for each in self._consumer.commit(asynchronous=False) or []:
                if each.error is None and each.offset >= 0:
                    self.committed.append((each.partition, each.offset))


def _read(members: list[Member]) -> set[int]:
    """Return the numbers that members have read."""
    return {number for member in members for _, number in tuple(member.read)}


def _check_group(chaos: Chaos, servers: str, sent: int, members: list[Member]) -> None:
    """Check that all numbers were read, and that commits were kept."""
    chaos.compare("what the group has read", range(sent), _read(members))
    committed: dict[int, int] = {}
    for member in members:
        for partition, offset in member.committed:
            committed[partition] = max(offset, committed.get(partition, 0))
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "readers", **QUICK})
    try:
        asked = [TopicPartition(TOPIC, number) for number in range(PARTITIONS)]
        kept = _answered(lambda: consumer.committed(asked, timeout=10))
    finally:
        consumer.close()
    for each in kept:
        if each.offset < committed.get(each.partition, 0):
            why = f"committed to {committed[each.partition]}, and {each.offset} is kept"
            raise ChaosError(f"partition {each.partition}: {why}")


def _answered(ask: Callable[[], list[TopicPartition]]) -> list[TopicPartition]:
    found: list[TopicPartition] = []

    def has_answered() -> bool:
        with contextlib.suppress(KafkaException):
            found[:] = ask()
        return bool(found)

    wait_until(has_answered, "the coordinator answers")
    return found

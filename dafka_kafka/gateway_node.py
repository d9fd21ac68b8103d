"""Shared parts of a gateway: replication waits, memory budget, error counts, features."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from math import inf
from typing import Final, ParamSpec, TypeVar

from dafka_core.model.records import TopicPartition
from dafka_core.nodes.store import Store
from dafka_kafka.gateways import Gateways
from dafka_kafka.leaders import Leaders
from dafka_kafka.options import KafkaOptions, Limits
from dafka_kafka.partition_registry import PartitionRegistry
from dafka_kafka.replication import Replication

_log: Final = logging.getLogger("dafka.kafka")


SAY_AGAIN_S: Final = 10.0
"""Interval between log lines about invalid requests: a client can send thousands a second."""


class Room:
    """A budget of bytes in flight; requests that exceed it wait in order of arrival."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.taken_bytes = 0
        self._waiting: dict[Callable[[], object], int] = {}

    def take(self, size_bytes: int, when_there: Callable[[], object]) -> bool:
        """Reserve room now and return True, or call ``when_there`` once it is reserved."""
        if not self._waiting and self._fits(size_bytes):
            self.taken_bytes += size_bytes
            return True
        self._waiting[when_there] = size_bytes
        return False

    def wait_no_more(self, when_there: Callable[[], object]) -> None:
        """Cancel a waiting reservation."""
        self._waiting.pop(when_there, None)
        self.give_back(0)

    def add(self, size_bytes: int) -> None:
        """Reserve room unconditionally, for bytes already in memory."""
        self.taken_bytes += size_bytes

    def give_back(self, size_bytes: int) -> None:
        """Release room, and grant it to waiting requests."""
        self.taken_bytes -= size_bytes
        while self._waiting:
            when_there, wanted_bytes = next(iter(self._waiting.items()))
            if not self._fits(wanted_bytes):
                break
            del self._waiting[when_there]
            self.taken_bytes += wanted_bytes
            when_there()

    def _fits(self, size_bytes: int) -> bool:
        return not self.taken_bytes or self.taken_bytes + size_bytes <= self.size_bytes


class Complaints:
    """Counts invalid requests and refused connections, and logs them at most every few seconds."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()  # counts by kind
        self._said: dict[object, tuple[float, int]] = {}  # time of the last line, and events since

    def note(
        self,
        kind: str,
        host: str,
        why: str,
        *,
        of: object = None,
        again_s: float = SAY_AGAIN_S,
    ) -> None:
        """Count one; ``kind`` is a constant sentence, ``why`` may contain the client's input.

        Args:
            of: a name with a log interval of its own, from a bounded set.
            again_s: the interval.
        """
        self.counts[kind] += 1
        now = time.monotonic()
        said_at, count = self._said.get((kind, of), (-inf, 0))
        if now - said_at < again_s:
            self._said[kind, of] = said_at, count + 1
            return
        self._said[kind, of] = now, 0
        _log.warning("Kafka: %s, %d times; last from %s: %s", kind, count + 1, host, why)


MAX_THREADS: Final = 8
"""Threads for work that would block the loop. They mostly wait for the disk or for other stores;
more would only take CPU from the store."""

MIN_STORES: Final = "min.insync.replicas"
"""The topic config that sets the number of stores that must have a record with ``acks=all``."""

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(slots=True, eq=False)
class GatewayNode:
    """The store behind the gateway, its partition registry, and the known gateways."""

    store: Store
    options: KafkaOptions
    registry: PartitionRegistry
    gateways: Gateways
    threads: ThreadPoolExecutor
    room: Room = field(default_factory=lambda: Room(Limits().max_in_flight_bytes))
    """The budget that all requests and responses share."""
    complaints: Complaints = field(default_factory=Complaints)
    rules_turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """The lock for changes of retention rules, which are read and written as a whole."""
    replication: Replication = field(init=False)
    """Replication waits, shared by all features; closed by the gateway."""
    leaders: Leaders = field(init=False)
    """The leaders of partitions; started and closed by the gateway."""

    def __post_init__(self) -> None:
        store, registry = self.store, self.registry
        self.replication = Replication(
            store.log, lambda: store.known, store.options.keys, registry.log
        )
        self.leaders = Leaders(store, registry, self.gateways, self.replication)

    @property
    def default_copies(self) -> int:
        """The default of ``min.insync.replicas``: a majority of three or more known stores.

        A minority that is cut off acknowledges nothing then. Of two stores each one may be alone.
        """
        known = 1 + len(self.store.known.names)
        return known // 2 + 1 if known > 2 else 1

    def copies(self, topic: str) -> int:
        """Return the number of stores that must have a topic's records with ``acks=all``."""
        return self.registry.table.configs(topic).get(MIN_STORES, self.default_copies)

    def watermark(self, tp: TopicPartition, end: int) -> int | None:
        """Return the end of the records that consumers may read, or None while it is unknown.

        Kafka's high watermark: no other leader will set them aside.
        """
        number = self.registry.table.number(tp)
        found = None if number is None else self.registry.table.get(tp.topic, number)
        if found is not None and found.hosted and (lead := self.leaders.lead(found.gateway)):
            return self.leaders.watermark(tp, end, lead)
        return end

    async def in_thread(self, work: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
        """Run blocking work, such as log reads, in a thread."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.threads, lambda: work(*args, **named))

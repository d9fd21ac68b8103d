"""Shared parts of a gateway: replication waits, memory budget, error counts, features."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from dataclasses import dataclass, field
from math import inf
from typing import Final, ParamSpec, TypeVar

from dafka_core.config.node_options import NO_KEYS, KeyFiles
from dafka_core.errors import DafkaError
from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.store_location import StoreLocation
from dafka_core.model.epochs import Epoch, epoch_at, known_until
from dafka_core.model.records import PartitionInfo, TopicPartition
from dafka_core.nodes.store import Store
from dafka_core.storage import Log
from dafka_kafka.gateways import Gateways
from dafka_kafka.options import KafkaOptions, Limits
from dafka_kafka.partition_registry import PartitionRegistry

# Replication: wait until the other stores have what was written here, for ``acks=all``.
#
# Each reachable store that serves Arrow Flight is long-polled for changed partition ends, in a
# thread of its own while a request waits. One answer covers many batches and partitions.


POLL_S: Final = 1.0
"""Long-poll time of a store; also the delay until an abandoned wait is noticed."""

ANSWER_S: Final = 5.0
"""Time for the answer after the long poll has ended."""

TRY_AGAIN_S: Final = 0.2
"""Pause before a store that did not answer is asked again, and while too few are reachable."""

IDLE_S: Final = 30.0
"""Time for which a thread outlasts the last wait for its store."""

Ends = Mapping[TopicPartition, int]
"""The end offset up to which each partition must be on disk."""

_log: Final = logging.getLogger("dafka.kafka")

_Needed = Mapping[TopicPartition, tuple[int, Epoch | None]]
"""By partition, the end of this store's records, and the epoch of the last one."""


@dataclass(slots=True, eq=False)
class _Wait:
    """A wait for partitions at one store."""

    missing: _Needed
    future: Future[None] = field(default_factory=Future)

    def complete(self, log: Log, heads: Mapping[TopicPartition, PartitionInfo]) -> bool:
        """Complete the future if a store with these heads has the records; return True then.

        Records of another life at these offsets do not count: a store that was away may have them,
        and this store may have received them since.
        """

        def has(tp: TopicPartition, end: int, epoch: Epoch | None) -> bool:
            head = heads.get(tp)
            if head is None or head.end < end:
                return False
            history = log.lives(tp).history
            is_same = (known_until(history, head.life) or 0) >= end
            return is_same and epoch_at(history, end - 1) == epoch

        self.missing = {tp: each for tp, each in self.missing.items() if not has(tp, *each)}
        if not self.missing:
            with contextlib.suppress(InvalidStateError):
                self.future.set_result(None)
        return not self.missing


class Replication:
    """Waits for what other stores have on disk.

    Args:
        log: this store's log.
        endpoints: returns the Flight locations of the reachable stores, by address.
        keys: the keys that authenticate this store to them.
    """

    def __init__(
        self,
        log: Log,
        endpoints: Callable[[], Mapping[str, tuple[str, ...]]],
        keys: KeyFiles = NO_KEYS,
    ) -> None:
        self._log = log
        self._endpoints = endpoints
        self._keys = keys
        self._followed: dict[str, _FollowedStore] = {}

    async def wait(self, ends: Ends, timeout_s: float, copies: int = 1) -> bool:
        """Wait until all reachable stores have the records; return False on a timeout.

        A store that goes away meanwhile is no longer waited for, like a Kafka replica that leaves
        the ISR, unless fewer than ``copies`` stores, with this one, would have the records.
        """
        deadline = time.monotonic() + timeout_s
        # Keyed by location, too: a restarted store is asked at its new location.
        waits: dict[tuple[str, tuple[str, ...]], asyncio.Future[None]] = {}
        needed: _Needed = {}
        if copies > 1 or self._endpoints():
            lives = {tp: self._log.lives(tp).history for tp in ends}
            needed = {tp: (end, epoch_at(lives[tp], end - 1)) for tp, end in ends.items()}
        while True:
            endpoints = self._endpoints().items()
            for each in endpoints - waits.keys():
                waits[each] = self._follow(*each, needed)
            pending = {waits[each] for each in endpoints if not waits[each].done()}
            have = {store for (store, _), wait in waits.items() if wait.done()}
            is_enough = not pending and len(have) + 1 >= copies
            left_s = deadline - time.monotonic()
            if is_enough or left_s <= 0:
                break
            if pending:
                await asyncio.wait(pending, timeout=min(left_s, POLL_S))
            else:
                await asyncio.sleep(min(left_s, TRY_AGAIN_S))
        for wait in waits.values():
            wait.cancel()
        return is_enough

    def close(self) -> None:
        """Close all threads without waiting for them."""
        for each in self._followed.values():
            each.close()

    def _follow(
        self, store: str, locations: tuple[str, ...], needed: _Needed
    ) -> asyncio.Future[None]:
        followed = self._followed.get(store)
        if followed is None or not followed.is_at(locations):
            if followed is not None:
                followed.close()
            followed = _FollowedStore(store, locations, self._keys, self._log)
            self._followed[store] = followed
        return asyncio.wrap_future(followed.wait(needed))


class _FollowedStore:
    """One other store and the waits for it."""

    def __init__(self, store: str, locations: tuple[str, ...], keys: KeyFiles, log: Log) -> None:
        self._log = log
        self._store = store
        self._keys = keys
        self._locations = locations
        self._changed = threading.Condition()
        self._waits: list[_Wait] = []
        self._thread: threading.Thread | None = None
        self._closed = False

    def is_at(self, locations: tuple[str, ...]) -> bool:
        return self._locations == locations and not self._closed

    def wait(self, needed: _Needed) -> Future[None]:
        wait = _Wait(needed)
        with self._changed:
            self._waits.append(wait)
            self._changed.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name=f"dafka-kafka-acks-{self._store[:6]}", daemon=True
                )
                self._thread.start()
        return wait.future

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _run(self) -> None:
        with StoreClient(StoreLocation(self._store, self._locations), self._keys) as client:
            topics: set[str] = set()
            cursor = ""
            known: dict[TopicPartition, PartitionInfo] = {}
            while (wanted := self._wanted()) is not None:
                if not wanted <= topics:
                    topics, cursor = topics | wanted, ""  # a new topic needs a complete list again
                try:
                    news = client.watch(topics, cursor, wait_s=POLL_S, timeout_s=ANSWER_S)
                except DafkaError as error:
                    cursor = ""
                    _log.debug("store %s did not report its partitions: %s", self._store, error)
                    time.sleep(TRY_AGAIN_S)
                    continue
                cursor = news.cursor
                known = {} if news.complete else known
                known |= {head.tp: head for head in news.heads}
                with self._changed:
                    waits, log = self._waits, self._log
                    self._waits = [each for each in waits if not each.complete(log, known)]

    def _wanted(self) -> set[str] | None:
        """Return the awaited topics; None if closed, or idle for ``IDLE_S``."""
        with self._changed:
            self._waits = [each for each in self._waits if not each.future.cancelled()]
            if not self._waits and not self._closed:
                self._changed.wait_for(lambda: self._waits or self._closed, IDLE_S)
            if self._closed or not self._waits:
                self._thread = None
                return None
            return {tp.topic for each in self._waits for tp in each.missing}


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
        self.counts: Counter[str] = Counter()
        """Counts by kind."""
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

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
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

    def __post_init__(self) -> None:
        store = self.store
        keys = store.options.keys
        replication = Replication(store.log, lambda: store.known.endpoints, keys)
        object.__setattr__(self, "replication", replication)

    @property
    def default_copies(self) -> int:
        """The default of ``min.insync.replicas``: a majority of three or more known stores.

        A minority that is cut off acknowledges nothing then. Of two stores each one may be alone.
        """
        known = 1 + len(self.store.known.names)
        return known // 2 + 1 if known > 2 else 1

    async def in_thread(self, work: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
        """Run blocking work, such as log reads, in a thread."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.threads, lambda: work(*args, **named))

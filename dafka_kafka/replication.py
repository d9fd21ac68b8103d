"""Replication: the records that other stores have, for ``acks=all`` and the high watermark.

Each reachable store that serves Arrow Flight is long-polled for changed partition ends, in a thread
of its own while clients write or read. One answer covers many batches and partitions.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from functools import partial
from math import inf
from typing import Final

from dafka_core.config.node_options import NO_KEYS, KeyFiles
from dafka_core.errors import DafkaError
from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.store_location import StoreLocation
from dafka_core.model.epochs import Epoch, epoch_at, known_until
from dafka_core.model.records import PartitionInfo, TopicPartition
from dafka_core.protocol.store_directory import KnownStores
from dafka_core.storage import Log
from dafka_kafka.registry_table import REGISTRY, Lead, RegistryLog

POLL_S: Final = 1.0  # long-poll time of a store; also the delay until an abandoned wait is noticed
ANSWER_S: Final = 5.0  # time for the answer after the long poll has ended

TRY_AGAIN_S: Final = 0.2
"""Pause before a store that did not answer is asked again, and while too few are reachable."""

IDLE_S: Final = 30.0  # time for which a thread outlasts the last use of its store
Ends = Mapping[TopicPartition, int]  # the end offset up to which each partition must be on disk

_Needed = Mapping[TopicPartition, tuple[int, Epoch | None]]
"""By partition, the end of this store's records, and the epoch of the last one."""

Heads = Mapping[TopicPartition, PartitionInfo]
"""All partitions of a store, as it has last reported them."""

_log: Final = logging.getLogger("dafka.kafka")


class Replication:
    """Knows what other stores have on disk, and waits for it; thread-safe.

    Another store's record counts only if it is of the same life as this store's. A store that was
    away may have other records at these offsets, and this store may have received them since
    (docs/guarantees.md). With a leader it counts if neither that store, when it reported the
    record, nor this one knew a newer leader.

    Args:
        log: this store's log.
        known: returns the stores that this store knows.
        keys: the keys that authenticate this store to them.
        registry: names the leaders.

    Attributes:
        on_reported: receives the partitions that another store reports as changed.
    """

    def __init__(
        self,
        log: Log,
        known: Callable[[], KnownStores],
        keys: KeyFiles = NO_KEYS,
        registry: RegistryLog | None = None,
    ) -> None:
        self.on_reported: Callable[[Collection[TopicPartition]], object] = lambda changed: None
        self._log = log
        self._known = known
        self._keys = keys
        self._registry = registry
        self._followed: dict[str, _FollowedStore] = {}
        self._lock = threading.Lock()

    async def wait(
        self, ends: Ends, timeout_s: float, copies: int = 1, lead: Lead | None = None
    ) -> bool:
        """Wait until all reachable stores have the records; return False on a timeout.

        A store that goes away meanwhile is no longer waited for, like a Kafka replica that leaves
        the ISR, unless fewer than ``copies`` stores, with this one, would have the records. Of a
        leader's records they must be voting stores, and a newer leader ends the wait.
        """
        deadline = time.monotonic() + timeout_s
        # Keyed by location, too: a restarted store is asked at its new location.
        waits: dict[tuple[str, tuple[str, ...]], asyncio.Future[None]] = {}
        needed: _Needed = {}
        if copies > 1 or self._known().endpoints:
            lives = {tp: self._log.lives(tp).history for tp in ends}
            needed = {tp: (end, epoch_at(lives[tp], end - 1)) for tp, end in ends.items()}
        has, topics = partial(self._has, needed, lead), {tp.topic for tp in ends}
        while True:
            endpoints = self._known().endpoints.items()
            for each in endpoints - waits.keys():
                waits[each] = asyncio.wrap_future(self._follow(*each).wait(has, topics))
            pending = {waits[each] for each in endpoints if not waits[each].done()}
            have = {store for (store, _), wait in waits.items() if wait.done()}
            is_enough = not pending and len(_voters(have, lead)) >= copies
            left_s = deadline - time.monotonic()
            if is_enough or left_s <= 0 or not self.is_current(lead):
                break
            if pending:
                await asyncio.wait(pending, timeout=min(left_s, POLL_S))
            else:
                await asyncio.sleep(min(left_s, TRY_AGAIN_S))
        for wait in waits.values():
            wait.cancel()
        return is_enough

    def watermark(
        self, tp: TopicPartition, end: int, copies: int, lead: Lead | None = None
    ) -> int | None:
        """Return the offset, at most ``end``, before which ``copies`` stores have the records.

        This store has the partition up to ``end``. None while too few others have reported.
        """
        ends = {"": end}
        for store, heads in self.reports():
            if self._confirms(lead, heads):
                ends[store] = min(end, self._end(tp, heads))
        found = sorted((ends[each] for each in _voters(ends.keys() - {""}, lead)), reverse=True)
        return found[copies - 1] if len(found) >= copies else None

    def use(self) -> None:
        """Ask the reachable stores for their partitions, and keep asking for a while."""
        for each in self._known().endpoints.items():
            self._follow(*each).use()

    def reports(self) -> Iterator[tuple[str, Heads]]:
        """Yield what each other store has last reported; it does not change meanwhile."""
        self.use()
        for store in {*self._known().names} & {*self._followed}:
            followed = self._followed[store]
            with followed.lock:
                if followed.heads:
                    yield store, followed.heads

    def is_current(self, lead: Lead | None) -> bool:
        """Return whether this store knows no newer leader."""
        return lead is None or self._registry is None or self._registry.confirms(lead, None)

    def close(self) -> None:
        """Close all threads without waiting for them."""
        for each in self._followed.values():
            each.close()

    def _has(self, needed: _Needed, lead: Lead | None, heads: Heads) -> bool:
        """Return whether a store with these heads has the records, which this store still has."""

        def has(tp: TopicPartition, end: int, epoch: Epoch | None) -> bool:
            if tp not in heads or heads[tp].end < end:
                return False
            history = self._log.lives(tp).history
            is_ours = epoch_at(history, end - 1) == epoch
            return is_ours and (known_until(history, heads[tp].life) or 0) >= end

        return all(has(tp, *each) for tp, each in needed.items()) and self._confirms(lead, heads)

    def _end(self, tp: TopicPartition, heads: Heads) -> int:
        """Return the end of another store's records that are this store's, too."""
        head = heads.get(tp)
        if head is None:
            return 0
        return min(head.end, known_until(self._log.lives(tp).history, head.life) or 0)

    def _confirms(self, lead: Lead | None, heads: Heads) -> bool:
        if lead is None:
            return True
        assert self._registry is not None
        return REGISTRY in heads and self._registry.confirms(lead, heads[REGISTRY])

    def wanted_topics(self, waited: set[str]) -> set[str] | None:
        """Return the topics to ask other stores about, those ``waited`` for; None for all.

        The high watermarks of leaders need all.
        """
        return waited if self._registry is not None and not self._registry.table.leads else None

    def _follow(self, store: str, locations: tuple[str, ...]) -> _FollowedStore:
        with self._lock:
            followed = self._followed.get(store)
            if followed is None or not followed.is_at(locations):
                place = StoreLocation(store, locations)
                made = _FollowedStore(place, self._keys, self)
                if followed is not None:
                    followed.close()
                    made.heads = dict(followed.heads)
                followed = self._followed[store] = made
            return followed


def _voters(others: Collection[str], lead: Lead | None) -> set[str]:
    """Return the stores whose copies count; this store is named ``""``."""
    if lead is None:
        return {"", *others}
    own = {""} if lead.leader in lead.stores else set[str]()
    return own | ({*others} & {*lead.stores})


class _FollowedStore:
    """One other store and the waits for it.

    Attributes:
        lock: of its partitions, which are those of one moment.
        heads: empty before it has reported them. They stay while it is away.
    """

    def __init__(self, place: StoreLocation, keys: KeyFiles, owner: Replication) -> None:
        self.heads: dict[TopicPartition, PartitionInfo] = {}
        self.lock = threading.Lock()
        self._place = place
        self._keys = keys
        self._owner = owner
        self._waits: list[tuple[Callable[[Heads], bool], Future[None], set[str]]] = []
        self._used_s = -inf
        self._thread: threading.Thread | None = None
        self._closed = False

    def is_at(self, locations: tuple[str, ...]) -> bool:
        return self._place.locations == locations and not self._closed

    def wait(self, has: Callable[[Heads], bool], topics: set[str]) -> Future[None]:
        """Return a future that completes when ``has`` returns True for its heads of topics."""
        future: Future[None] = Future()
        with self.lock:
            if has(self.heads):
                future.set_result(None)
            else:
                self._waits.append((has, future, topics))
        self.use()
        return future

    def use(self) -> None:
        """Ask the store for its partitions, and keep asking for a while."""
        self._used_s = time.monotonic()
        if self._thread is None and not self._closed:
            with self.lock:
                if self._thread is None:
                    name = f"dafka-kafka-acks-{self._place.store[:6]}"
                    self._thread = threading.Thread(target=self._run, name=name, daemon=True)
                    self._thread.start()

    def close(self) -> None:
        self._closed = True

    def _run(self) -> None:
        with StoreClient(self._place, self._keys) as client:
            cursor, waited = "", set[str]()
            asked: set[str] | None = None
            while self._is_used():
                waited = waited | self._waited_topics()
                before, asked = asked, self._owner.wanted_topics(waited)
                if asked != before:
                    cursor = ""  # a new topic needs a complete list again
                try:
                    news = client.watch(asked, cursor, wait_s=POLL_S, timeout_s=ANSWER_S)
                    changed = {head.tp: head for head in news.heads}
                    with self.lock:
                        self.heads = changed if news.complete else self.heads
                        self.heads.update(changed)
                        self._waits = [each for each in self._waits if not self._is_over(*each[:2])]
                    if changed:
                        self._owner.on_reported(changed.keys())
                    cursor = news.cursor
                except DafkaError as error:  # also of this store's log, which may be closed by now
                    cursor = ""
                    _log.debug("a store did not report its partitions: %s", error)
                    time.sleep(TRY_AGAIN_S)

    def _is_over(self, has: Callable[[Heads], bool], future: Future[None]) -> bool:
        if is_over := has(self.heads):
            with suppress(InvalidStateError):  # cancelled
                future.set_result(None)
        return is_over

    def _waited_topics(self) -> set[str]:
        with self.lock:
            return {topic for _, _, topics in self._waits for topic in topics}

    def _is_used(self) -> bool:
        with self.lock:
            self._waits = [each for each in self._waits if not each[1].cancelled()]
            is_used = self._waits or time.monotonic() < self._used_s + IDLE_S
            if self._closed or not is_used:
                self._thread = None
            return self._thread is not None

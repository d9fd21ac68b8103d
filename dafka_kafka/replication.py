"""Waits until the other stores have what was written here: Kafka's ``acks=all``.

Each other store that is there, and serves Arrow Flight, is asked by a long poll for what has
changed, in a thread of its own as long as somebody waits for it: of many batches and partitions it
tells at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from typing import Final

from dafka_core.config.security_options import NO_KEYS, KeyFiles
from dafka_core.errors import DafkaError
from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.store_location import StoreLocation
from dafka_core.model.records import TopicPartition

POLL_S: Final = 1.0
"""How long a store is asked to wait for news; so late it is noticed that nobody waits any more."""

ANSWER_S: Final = 5.0
"""How much later the answer may come."""

TRY_AGAIN_S: Final = 0.2
"""When to ask again a store that does not answer."""

IDLE_S: Final = 30.0
"""How long a thread outlasts those who wait for its store."""

Ends = Mapping[TopicPartition, int]
"""Up to which offset partitions are to be on disk."""

_log: Final = logging.getLogger("dafka.kafka")


@dataclass(slots=True, eq=False)
class _Wait:
    """Who waits for partitions at a store."""

    missing: dict[TopicPartition, int]
    future: Future[None] = field(default_factory=Future)

    def end(self) -> None:
        with contextlib.suppress(InvalidStateError):
            self.future.set_result(None)


class Replication:
    """What the other stores have.

    Args:
        endpoints: where those that are there can be asked, by their addresses.
        keys: by which they let this one in.
    """

    def __init__(
        self, endpoints: Callable[[], Mapping[str, tuple[str, ...]]], keys: KeyFiles = NO_KEYS
    ) -> None:
        self._endpoints = endpoints
        self._keys = keys
        self._followed: dict[str, _FollowedStore] = {}

    async def wait(self, ends: Ends, timeout_s: float) -> bool:
        """Waits until all stores that are there have the records; False: not within the time.

        One that goes away meanwhile is not waited for any more, as a replica at Kafka that is no
        longer in sync.
        """
        deadline = time.monotonic() + timeout_s
        # By where it is asked, too: one that starts anew is asked there from then on.
        waits: dict[tuple[str, tuple[str, ...]], asyncio.Future[None]] = {}
        while True:
            endpoints = self._endpoints().items()
            for each in endpoints - waits.keys():
                waits[each] = self._follow(*each, ends)
            pending = {waits[each] for each in endpoints if not waits[each].done()}
            if not pending:
                break
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                break
            await asyncio.wait(pending, timeout=min(left_s, POLL_S))
        for wait in waits.values():
            wait.cancel()
        return not pending

    def close(self) -> None:
        """Ends all threads; they are not waited for."""
        for each in self._followed.values():
            each.close()

    def _follow(self, store: str, locations: tuple[str, ...], ends: Ends) -> asyncio.Future[None]:
        followed = self._followed.get(store)
        if followed is None or not followed.is_at(locations):
            if followed is not None:
                followed.close()
            followed = self._followed[store] = _FollowedStore(store, locations, self._keys)
        return asyncio.wrap_future(followed.wait(ends))


class _FollowedStore:
    """One store, and who waits for it."""

    def __init__(self, store: str, locations: tuple[str, ...], keys: KeyFiles) -> None:
        self._store = store
        self._keys = keys
        self._locations = locations
        self._changed = threading.Condition()
        self._waits: list[_Wait] = []
        self._thread: threading.Thread | None = None
        self._closed = False

    def is_at(self, locations: tuple[str, ...]) -> bool:
        """Whether this is where it is asked, still."""
        return self._locations == locations and not self._closed

    def wait(self, ends: Ends) -> Future[None]:
        """A future that ends when the store has the records."""
        wait = _Wait(dict(ends))
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
        """Nobody is waited for any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _run(self) -> None:
        with StoreClient(StoreLocation(self._store, self._locations), self._keys) as client:
            topics: set[str] = set()
            cursor = ""
            known: dict[TopicPartition, int] = {}
            while (wanted := self._wanted()) is not None:
                if not wanted <= topics:
                    topics, cursor = topics | wanted, ""  # all of them, from the beginning
                try:
                    news = client.watch(topics, cursor, wait_s=POLL_S, timeout_s=ANSWER_S)
                except DafkaError as error:
                    cursor = ""
                    _log.debug("store %s does not say what it has: %s", self._store, error)
                    time.sleep(TRY_AGAIN_S)
                    continue
                cursor = news.cursor
                known = {} if news.complete else known
                known |= {head.tp: head.end for head in news.heads}
                self._end_waits(known)

    def _wanted(self) -> set[str] | None:
        """The topics that somebody waits for; None: nobody has for a while, or it is closed."""
        with self._changed:
            self._waits = [each for each in self._waits if not each.future.cancelled()]
            if not self._waits and not self._closed:
                self._changed.wait_for(lambda: self._waits or self._closed, IDLE_S)
            if self._closed or not self._waits:
                self._thread = None
                return None
            return {tp.topic for each in self._waits for tp in each.missing}

    def _end_waits(self, known: Ends) -> None:
        with self._changed:
            waits, self._waits = self._waits, []
            for each in waits:
                each.missing = {
                    tp: end for tp, end in each.missing.items() if known.get(tp, 0) < end
                }
                if each.missing:
                    self._waits.append(each)
        for each in waits:
            if not each.missing:
                each.end()

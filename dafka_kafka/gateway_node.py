"""The parts of a gateway that all features share, and the budget of its connections."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from dataclasses import dataclass, field
from math import inf
from types import MappingProxyType
from typing import Any, Final, ParamSpec, TypeVar

from dafka_core.config.node_options import NO_KEYS, KeyFiles
from dafka_core.errors import DafkaError
from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.store_location import StoreLocation
from dafka_core.model.records import TopicPartition
from dafka_core.nodes.store import Store
from dafka_kafka.gateways import Gateways
from dafka_kafka.options import KafkaOptions, Limits
from dafka_kafka.partition_registry import PartitionNumbers

# Waits until the other stores have what was written here: Kafka's ``acks=all``.
#
# Each other store that is there, and serves Arrow Flight, is asked by a long poll for what has
# changed, in a thread of its own as long as somebody waits for it: of many batches and partitions
# it tells at once.


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
        return self._locations == locations and not self._closed

    def wait(self, ends: Ends) -> Future[None]:
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


SAY_AGAIN_S: Final = 10.0
"""How often bad requests are spoken of: anybody may send thousands in a second."""


class Room:
    """Room for octets in flight: who finds none gets it when there is some, in order of asking."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.taken_bytes = 0
        self._waiting: dict[Callable[[], object], int] = {}

    def take(self, size_bytes: int, when_there: Callable[[], object]) -> bool:
        """Whether there is room now.  If not, ``when_there`` is called with the room taken."""
        if not self._waiting and self._fits(size_bytes):
            self.taken_bytes += size_bytes
            return True
        self._waiting[when_there] = size_bytes
        return False

    def wait_no_more(self, when_there: Callable[[], object]) -> None:
        """Takes no room for this one; those behind it may have it."""
        self._waiting.pop(when_there, None)
        self.give_back(0)

    def add(self, size_bytes: int) -> None:
        """Takes room without asking, for what is in memory already."""
        self.taken_bytes += size_bytes

    def give_back(self, size_bytes: int) -> None:
        """Gives room to those who wait."""
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
    """Counts what is wrong with requests and connections, and logs it now and then."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        """How often, by kind."""
        self._said: dict[object, tuple[float, int]] = {}  # when, and how many since then

    def note(
        self,
        kind: str,
        host: str,
        why: str,
        *,
        of: object = None,
        again_s: float = SAY_AGAIN_S,
    ) -> None:
        """Counts one; ``kind`` is one of a few sentences, ``why`` may come from the client.

        Args:
            of: one of a few of whom it is said each time on its own.
            again_s: how often that is.
        """
        self.counts[kind] += 1
        now = time.monotonic()
        said_at, count = self._said.get((kind, of), (-inf, 0))
        if now - said_at < again_s:
            self._said[kind, of] = said_at, count + 1
            return
        self._said[kind, of] = now, 0
        _log.warning("Kafka: %s %d times; the last one from %s: %s", kind, count + 1, host, why)


MAX_THREADS: Final = 8
"""For what would hold up all other clients.  They mostly wait for the disk, or for other stores;
more of them would only take the processor from the store."""

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Client:
    """Who sent a request, and in which version of its kind."""

    client_id: str
    host: str
    version: int
    is_gone: Callable[[], bool] = field(default=lambda: False, repr=False)
    """Whether its connection has ended: nobody hears the response."""
    may_make: Callable[[str], bool] = field(default=lambda _: True, repr=False)
    """Whether a topic that it names is made if it is not there."""


@dataclass(frozen=True, slots=True)
class EncodedResponse:
    """A response's body as the octets that are sent, in pieces that need not be joined."""

    pieces: Sequence[bytes | bytearray | memoryview]


Response = Any | EncodedResponse | None
"""A message of ``schemas``, or its octets, or None: the client waits for none (acks=0)."""

Handler = Callable[[Any, Client], Awaitable[Response]]
"""Answers a request, a message of ``schemas``, in the gateway's event loop, which it must not hold
up.  ProtocolError has the connection closed; any other error that it raises is answered with
UNKNOWN_SERVER_ERROR, and logged.  It is cancelled when the client's connection ends; what must be
done to its end all the same is to be shielded."""


class Feature:
    """A part of the gateway, which answers some kinds of requests."""

    handlers: Mapping[int, Handler] = MappingProxyType({})
    """By API key."""

    async def start(self) -> None:
        """Runs in the loop before the first request comes."""

    async def close(self) -> None:
        """Ends; no more requests come."""


@dataclass(frozen=True, slots=True, eq=False)
class GatewayNode:
    """The store behind the gateway, and what is known of partitions and gateways."""

    store: Store
    options: KafkaOptions
    numbers: PartitionNumbers
    gateways: Gateways
    threads: ThreadPoolExecutor
    room: Room = field(default_factory=lambda: Room(Limits().max_in_flight_bytes))
    """What all requests and responses in flight share."""
    rules_turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Whose turn it is to change rules of retention: who does reads and writes all of them."""
    replication: Replication = field(init=False)
    """Waits for other stores, for all features; who makes the node closes it behind them."""

    def __post_init__(self) -> None:
        store = self.store
        replication = Replication(lambda: store.known.endpoints, store.options.keys)
        object.__setattr__(self, "replication", replication)

    async def in_thread(self, work: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
        """Does what would hold up other clients, as reading the log, in a thread."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.threads, lambda: work(*args, **named))

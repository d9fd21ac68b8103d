"""What the handlers of requests share: the store behind the service, and its limits."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Final, Protocol, TypeVar

from dafka_core.closing import Closing
from dafka_core.flight import limits
from dafka_core.flight.flight_errors import BUSY, CLOSING, OTHER_STORE, UnavailableError
from dafka_core.flight.requests import Request
from dafka_core.flight.store_location import StoreLocation
from dafka_core.log_entries import Discard
from dafka_core.records import RecordBatch, StagedTransaction, TopicPartition, Transaction
from dafka_core.storage import Log

START_TIMEOUT_S: Final = 10.0
"""How long a request waits for the service to know where it listens."""

R = TypeVar("R", bound=Request)


class StoreBackend(Protocol):
    """Where the service writes: a node's ``AppendQueue``.  Each future is done on disk, synced."""

    def put(self, batch: RecordBatch) -> Future[int]:
        """Appends at the partition's end, which the future gives anew; may wait for room."""

    def stage(self, batch: RecordBatch, attempt: str, version: int) -> Future[int]:
        """Stages records; the future gives the end of what is staged.  May wait for room."""

    def commit(self, transactions: Sequence[StagedTransaction]) -> Future[None]:
        """Makes what was staged visible, all of it or nothing."""

    def discard(self, discards: Sequence[Discard]) -> Future[None]:
        """Gives up what attempts have staged."""

    def wait(
        self, tp: TopicPartition, end: int, timeout_s: float, transaction: Transaction | None
    ) -> int:
        """Waits for records, and for the transaction; gives the partition's end on disk."""


class ServerContext:
    """The store behind the service, and how much it does at one time.

    Attributes:
        log: what is read.
        backend: what is written to.
        location: where the store is; complete when the service has ``started``.
        gets, puts, waits, commits: how many of each there are at one time.
        closing: set when the service ends.
    """

    def __init__(
        self,
        log: Log,
        backend: StoreBackend,
        store: str,
        other_stores: Callable[[], Mapping[str, tuple[str, ...]]],
    ) -> None:
        self.log = log
        self.backend = backend
        self.location = StoreLocation(store, ())
        self.gets = StreamLimiter("gets", limits.MAX_GETS)
        self.puts = StreamLimiter("puts", limits.MAX_PUTS)
        self.waits = StreamLimiter("waits", limits.MAX_WAITS)
        self.commits = StreamLimiter("commits", limits.MAX_COMMITS)
        self._other_stores = other_stores
        self.started = threading.Event()
        self.closing = threading.Event()

    def check_open(self) -> None:
        """Raises UnavailableError when the service ends."""
        # gRPC listens before the port is known, so the first request may come too early.
        if self.closing.is_set() or not self.started.wait(START_TIMEOUT_S):
            raise UnavailableError(CLOSING, "the store is about to end; ask another one")

    def parse(self, kind: type[R], packed: bytes) -> R:
        """The request that a client has sent.

        Raises:
            InvalidRequestError: it is none.
            UnavailableError: another store is meant, or the service ends.
        """
        self.check_open()
        request = kind.parse(packed)
        store = self.location.store
        if request.store not in ("", store):
            why = f"store {request.store} was meant, and this is store {store}"
            raise UnavailableError(OTHER_STORE, why)
        return request

    def locations_for(self, peer: str) -> tuple[str, ...]:
        """The locations that a client can reach: over TCP it may be on another machine."""
        locations = self.location.locations
        return locations if peer.startswith("unix") else locations[-1:]

    def store_locations(self) -> list[StoreLocation]:
        """The stores whose locations are known, this one first."""
        others = list(self._other_stores().items())  # a copy: the store's loop changes it
        return [
            self.location,
            *(StoreLocation(*each) for each in others[: limits.MAX_LOCATIONS_LISTED - 1]),
        ]


class StreamLimiter:
    """Permits for ``count`` streams of one kind.  Thread-safe."""

    def __init__(self, what: str, count: int) -> None:
        self.count = count
        self._what = what
        # Not a semaphore: the garbage collection may close a permit in a thread that is about to
        # take another one.  This queue can be put to even then.
        self._free: queue.SimpleQueue[None] = queue.SimpleQueue()
        for _ in range(count):
            self._free.put(None)

    @property
    def free(self) -> int:
        """How many permits are left."""
        return self._free.qsize()

    def take(self) -> StreamPermit:
        """A permit, if there is one.

        Raises:
            UnavailableError: there is none.
        """
        try:
            self._free.get_nowait()
        except queue.Empty:
            raise UnavailableError(
                BUSY,
                f"the store serves {self.count} {self._what} already, as many as it may at one "
                "time; ask another store, or later",
            ) from None
        return StreamPermit(self._free)


class StreamPermit(Closing):
    """A permit; it is given back by ``close``, or when nothing refers to it.

    gRPC may drop a stream that it has never asked for anything: no ``finally`` of a generator
    runs then.
    """

    def __init__(self, free: queue.SimpleQueue[None]) -> None:
        self._free: queue.SimpleQueue[None] | None = free

    def close(self) -> None:
        """Gives the permit back; a second call does nothing."""
        free, self._free = self._free, None
        if free is not None:
            free.put(None)

    __del__ = close

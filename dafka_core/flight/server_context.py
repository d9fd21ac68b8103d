"""The context shared by request handlers: the store, its limits, and the watched streams."""

from __future__ import annotations

import bisect
import contextlib
import logging
import operator
import queue
import socket
import threading
import time
import urllib.parse
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from math import inf
from typing import Any, Final, Protocol, Self, TypeVar

from dafka_core.config.topic_rules import RetentionRule
from dafka_core.errors import DiskFullError
from dafka_core.flight import limits
from dafka_core.flight.flight_errors import BUSY, CLOSING, IDLE, OTHER_STORE, UnavailableError
from dafka_core.flight.grpc_workarounds import (
    Address,
    CallDeadline,
    Watchdog,
    break_connections,
    normal,
)
from dafka_core.flight.requests import Request
from dafka_core.flight.server_keys import Caller, Need, ServerKeys
from dafka_core.flight.store_location import StoreLocation
from dafka_core.model.log_entries import LogEntry
from dafka_core.model.records import (
    Neighbour,
    PartitionInfo,
    TopicPartition,
    Transaction,
)
from dafka_core.storage import Log
from dafka_core.system.closing import Closing
from dafka_core.system.hosts import host_port

# Ends streams whose clients neither receive nor send anything any more.
#
# A handler whose client is stalled waits inside gRPC, which neither reports it nor can be
# interrupted, so the watch returns the stream's permit from a thread of its own. The handler's
# thread, and its one batch, last until the connection ends or the client continues (and is
# refused). The watch therefore also breaks the connection, as soon as no other call uses it.

AGAIN_S: Final = 1.0
"""Interval of checks for an idle stream's connection that can be broken: none on which a client may
still be receiving the end of another stream."""

_log = logging.getLogger("dafka.store")


class WatchedStream(CallDeadline):
    """One stream; a context.  ``wait`` and ``go_on`` enclose waits for the client.

    Args:
        permit: returned when the stream is idle, if it has one.
        caller: the client, which is checked again and again.
        what: the stream, for messages.

    Attributes:
        is_ended: true after the permit was taken from it.
        idle_s: the client's timeout.
    """

    def __init__(
        self, watch: StreamWatch, permit: Closing | None, caller: Caller, what: str
    ) -> None:
        # No cycle: a stream that gRPC drops before it began returns its permit at once.
        own = weakref.proxy(self)
        super().__init__(watch.watchdog, limits.IDLE_S, lambda: watch.on_idle(own))
        self.peer = caller.peer
        self.what = what
        self.is_ended = False
        self.idle_s = limits.IDLE_S
        self._held = [] if permit is None else [permit]
        self._watch = watch
        self._check = caller.check

    def __enter__(self) -> Self:
        self._watch.streams.add(self)
        return self.start()

    def wait(self, size_bytes: int = 0) -> None:
        """Note the start of a wait for the client to receive this many bytes, or to send some."""
        patience_s = self.idle_s + size_bytes / limits.SLOWEST_BYTES_S
        self.timeout_s = AGAIN_S if self.expired else patience_s
        super().wait()

    def go_on(self) -> None:
        """Note that the client has received them, or sent some; raise if it may do so no more."""
        super().go_on()
        if self.expired:
            raise UnavailableError(IDLE, f"the {self.what} was ended: {self.why}")
        self._check()

    def close(self) -> None:
        """End the stream.  Idempotent."""
        self._watch.streams.discard(self)
        if not self.expired:
            self._watch.note_end(self.peer)
        self._watchdog.remove(self)
        self.end()

    def end(self) -> None:
        """Return the permit."""
        self.is_ended = True
        for each in self._held:
            each.close()

    def hold(self, held: Closing) -> None:
        """Close an object with the permit, in the watch's thread if necessary."""
        self._held.append(held)

    @property
    def why(self) -> str:
        """Return the reason of the end."""
        return f"its client received and sent nothing for {self.idle_s:g} s"


class StreamWatch:
    """The streams and calls of a service, and the end of idle ones."""

    def __init__(self) -> None:
        self.addresses: set[Address] = set()  # of the socket for clients on this machine
        self.streams: set[WatchedStream] = set()
        self.watchdog = Watchdog()
        self._calls = Counter[str]()
        self._ended_at: dict[str, float] = {}
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def calling(self, peer: str) -> Iterator[None]:
        """Note that a client's call is running: its connection must not be broken."""
        with self._lock:
            self._calls[peer] += 1
        try:
            yield
        finally:
            with self._lock:
                self._calls[peer] -= 1
                if not self._calls[peer]:
                    del self._calls[peer]
            self.note_end(peer)

    def note_end(self, peer: str) -> None:
        """Note that a call or stream has ended here; its last data may still be on the way."""
        now = time.monotonic()
        with self._lock:
            recent = {each: at for each, at in self._ended_at.items() if at > now - AGAIN_S}
            self._ended_at = recent | {peer: now}

    def on_idle(self, stream: WatchedStream) -> None:
        """Return the permit of an idle stream, and end the stream if possible (its thread)."""
        if not stream.is_ended:
            stream.end()
            _log.warning("the %s by %s is ended: %s", stream.what, stream.peer, stream.why)
        streams = list(self.streams)
        idle = sum(each.expired for each in streams)
        # Over the socket all clients have one name: their connections cannot be told apart.
        is_shared = (
            self._calls[stream.peer]
            or self._ended_at.get(stream.peer, -inf) > time.monotonic() - AGAIN_S
            or any(each.peer == stream.peer and not each.expired for each in streams)
        )
        if is_shared and idle <= limits.MAX_PARKED:
            return
        if stream.peer.startswith("unix"):
            break_connections(self.addresses, _accepted_at)
        else:
            # Such as ipv4:127.0.0.1:5 or ipv6:%5B::1%5D:5.
            address = host_port(urllib.parse.unquote(stream.peer.partition(":")[2]))
            break_connections({normal(address)}, socket.socket.getpeername)


def _accepted_at(connection: socket.socket) -> object:
    is_listening = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    return None if is_listening else connection.getsockname()


POLL_S: Final = 0.5  # interval at which a request that waits checks its client, and the service
START_TIMEOUT_S: Final = 10.0  # time that a request waits for the service to know its port

R = TypeVar("R", bound=Request)


class StoreBackend(Protocol):
    """The service's writer: a node's ``AppendQueue``."""

    refusal: DiskFullError | None  # the error of requests, while the disk is full

    def put(self, *entries: LogEntry) -> Future[Any]:
        """Write entries; see ``AppendQueue.put``."""

    def name_client(self, tp: TopicPartition, client: str) -> None:
        """Keep the name of the client that writes a partition, unless it is empty."""

    def wait(
        self, tp: TopicPartition, end: int, timeout_s: float, transaction: Transaction | None
    ) -> int:
        """Wait for records, and for the transaction; return the partition's end on disk."""


class RetentionControl(Protocol):
    """A store's retention, for reading and changing."""

    @property
    def rules(self) -> tuple[RetentionRule, ...]:
        """Return the rules in force."""

    @property
    def is_set(self) -> bool:
        """Return True if they were set while it ran, instead of its option."""

    @property
    def given_up(self) -> int:
        """Return the number of records deleted by rules since its start."""

    def replace(
        self, rules: tuple[RetentionRule, ...] | None, previous: tuple[str, ...] | None = None
    ) -> None:
        """Replace the rules, also for later starts; None restores its option.

        With ``previous``, only if these are in force.
        """


class ServerContext:
    """The store behind the service, and the service's limits."""

    def __init__(
        self,
        log: Log,
        backend: StoreBackend,
        store: str,
        other_stores: Callable[[], Mapping[str, tuple[str, ...]]],
        peers: Callable[[], Sequence[Neighbour]] = tuple,
        *,
        keys: ServerKeys | None = None,
    ) -> None:
        self.log = log  # for reading
        self.backend = backend  # for writing
        self.location = StoreLocation(store, ())  # complete when the service has ``started``
        self.gets = StreamLimiter("gets", limits.MAX_GETS, self.check_open)
        self.puts = StreamLimiter("puts", limits.MAX_PUTS, self.check_open)
        self.waits = StreamLimiter("waits", limits.MAX_WAITS, self.check_open)
        self.watches = StreamLimiter("watches", limits.MAX_WATCHES, self.check_open)
        self.commits = StreamLimiter("commits", limits.MAX_COMMITS, self.check_open)
        self.backups = StreamLimiter("backups", limits.MAX_BACKUPS, self.check_open)
        self.watch = StreamWatch()  # ends idle streams
        self._other_stores = other_stores
        self.retention: RetentionControl | None = None
        """The store's retention; set before it serves."""
        self.delete_topic: Callable[[str], tuple[int, int]] | None = None
        """Deletes a topic; returns its partitions and records here.  Set before it serves."""
        self.peers = peers  # returns the nodes discovered by the store
        self.keys = keys  # the store's and its clients'; None: all clients may do everything
        self.started = threading.Event()
        self.closing = threading.Event()  # set when the service ends

    def check_open(self) -> None:
        """Raise UnavailableError when the service ends."""
        # gRPC listens before the port is known, so the first request may arrive too early.
        if self.closing.is_set() or not self.started.wait(START_TIMEOUT_S):
            raise UnavailableError(CLOSING, "the store is stopping; use another store")

    def check_wanted(self, caller: Caller) -> None:
        """Raise UnavailableError when the service ends, or the client waits for no answer."""
        self.check_open()
        if caller.is_gone():
            raise UnavailableError(IDLE, "the client has gone")

    def parse(self, kind: type[R], need: Need, packed: bytes, caller: Caller) -> R:
        """Parse a client's request for this store, and check its permission."""
        self.check_open()
        request = kind.parse(packed)
        store = self.location.store
        if request.store not in ("", store):
            why = f"store {request.store} was meant, and this is store {store}"
            raise UnavailableError(OTHER_STORE, why)
        caller.allow(request, need)
        return request

    def held(self, topics: Sequence[str] | None, caller: Caller) -> list[PartitionInfo]:
        """Return the store's offsets of these topics, or of all that a client may know."""
        if topics is None:
            return caller.known(self.log.partitions())
        each_once = dict.fromkeys(topics)
        with self.log.snapshot() as snapshot:
            return [info for topic in each_once for info in snapshot.infos(topic)]

    def stream(
        self, limiter: StreamLimiter, caller: Caller, what: str, waited_s: float = 0.0
    ) -> WatchedStream:
        """Open a stream for a client, in its turn; it may have waited before."""
        with self.watch.calling(caller.peer):
            permit = limiter.take(caller.is_gone, waited_s=waited_s)
        return WatchedStream(self.watch, permit, caller, what)

    def locations_for(self, peer: str) -> tuple[str, ...]:
        """Return the locations that a client can reach: over TCP it may be on another machine."""
        locations = self.location.locations
        return locations if peer.startswith("unix") else locations[-1:]

    def store_locations(self) -> list[StoreLocation]:
        """Return the stores with known locations, this one first."""
        others = list(self._other_stores().items())
        return [
            self.location,
            *(StoreLocation(*each) for each in others[: limits.MAX_LOCATIONS_LISTED - 1]),
        ]


class StreamLimiter:
    """Permits for ``count`` streams of one kind, first come, first served.  Thread-safe.

    ``check`` raises when waiting has become useless.
    """

    def __init__(self, what: str, count: int, check: Callable[[], None] = lambda: None) -> None:
        self.count = count
        self._what = what
        self._check = check
        # Not a semaphore: the garbage collection may close a permit in a thread that is about to
        # take another one.  This queue accepts entries even then.
        self._free: queue.SimpleQueue[None] = queue.SimpleQueue()
        for _ in range(count):
            self._free.put(None)
        self._lock = threading.Lock()
        # The start of each wait, and the event for the first in the queue.
        self._line: list[tuple[float, threading.Event]] = []
        self._given_at = -inf
        self.refused_count = self.sent_bytes = 0  # streams refused; bytes sent by the others

    @property
    def free(self) -> int:
        """Return the number of free permits."""
        return self._free.qsize()

    @property
    def waiting(self) -> int:
        """Return the length of the queue."""
        return len(self._line)

    def take(
        self,
        is_gone: Callable[[], bool] = lambda: False,
        timeout_s: float | None = None,
        waited_s: float = 0.0,
    ) -> StreamPermit:
        """Return a permit, after all earlier callers have theirs.

        The caller has waited ``waited_s`` in vain before, and waits at most ``timeout_s`` (by
        default ``limits.QUEUE_S``), unless ``is_gone``.  Raise UnavailableError if none became free
        in time, or too many wait.
        """
        waiting_s = limits.QUEUE_S if timeout_s is None else min(timeout_s, limits.QUEUE_S)
        asked_at = time.monotonic()
        deadline, since, turn = asked_at + waiting_s, asked_at - waited_s, threading.Event()
        place = since, turn
        with self._lock:
            if len(self._line) >= limits.MAX_QUEUED:
                self.refused_count += 1
                raise self._busy(f"{limits.MAX_QUEUED} more wait for their turn", since)
            bisect.insort(self._line, place, key=operator.itemgetter(0))
            for _, other in self._line[1:2]:
                other.clear()  # it may have been the first
            self._line[0][1].set()
        try:
            while True:
                left_s = max(0, min(deadline - time.monotonic(), POLL_S))
                if turn.is_set():
                    with contextlib.suppress(queue.Empty):
                        self._free.get(timeout=left_s)
                        self._given_at = time.monotonic()
                        return StreamPermit(self._free)
                else:
                    turn.wait(left_s)
                self._check()
                if is_gone() or left_s <= 0:
                    with self._lock:
                        self.refused_count += 1
                    raise self._busy(f"the request was queued for {waiting_s:g} s", since)
        finally:
            with self._lock:
                self._line.remove(place)
                if self._line:
                    self._line[0][1].set()

    def add_sent(self, size_bytes: int) -> None:
        """Count bytes sent by a stream."""
        with self._lock:
            self.sent_bytes += size_bytes

    def _busy(self, why: str, since: float) -> UnavailableError:
        now = time.monotonic()
        return UnavailableError(
            BUSY,
            f"the store already serves {self.count} {self._what}, its limit, and {why}; use "
            "another store, or retry later",
            waited_s=now - since,
            moves=now - self._given_at <= limits.QUEUE_S,
        )


class StreamPermit(Closing):
    """A permit; returned by ``close``, or when nothing refers to it.

    gRPC may drop a stream without reading from it: no ``finally`` of a generator runs then.
    """

    def __init__(self, free: queue.SimpleQueue[None]) -> None:
        # A list gives its item to one thread only: the watch and the handler may both close it.
        self._held = [free]

    def close(self) -> None:
        """Return the permit.  Idempotent."""
        with contextlib.suppress(IndexError):
            self._held.pop().put(None)

    __del__ = close

"""The connections that a process shares between its tasks and triggers.

Spark reuses its Python workers without telling them when a query ends, so idle connections are
closed here.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

from dafka_core.config.node_options import KeyFiles
from dafka_core.errors import DafkaError, DataLossError
from dafka_core.flight.local_log import LocalLogs
from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.store_location import StoreLocation
from dafka_core.system.closing import Closing
from dafka_spark.cluster import timing
from dafka_spark.cluster.cluster_reader import ClusterReader, KnownStoresReader, join
from dafka_spark.options import MeshAddress

_log = logging.getLogger("dafka_spark")

Connect = Callable[[MeshAddress], AbstractContextManager[ClusterReader]]
"""Borrows a reader of a mesh."""

K = TypeVar("K", bound=Hashable)
C = TypeVar("C", bound=Closing)


@dataclass(slots=True)
class _Entry(Generic[C]):
    connection: C
    users: int = 0
    idle_since: float = 0.0
    is_kept: bool = False
    retry_at: float = 0.0  # after a replacement that could not be opened


class Connections(Generic[K, C]):
    """A pool of connections, one for each key.  Thread-safe.

    Idle connections are closed after ``idle_s``, and expired ones replaced if another one opens.
    """

    def __init__(
        self,
        open_: Callable[[K], C],
        idle_s: float = timing.CONNECTION_IDLE_S,
        has_expired: Callable[[C], bool] = lambda _: False,
    ) -> None:
        self._open = open_
        self._has_expired = has_expired
        self._idle_s = idle_s
        # Reentrant: the garbage collector may end an abandoned borrower in a thread that holds it.
        self._lock = threading.RLock()
        self._entries: dict[K, _Entry[C]] = {}
        self._sweeper: threading.Thread | None = None
        self._of_parents: list[dict[K, _Entry[C]]] = []

    @contextmanager
    def borrow(self, key: K, *, keep: bool = False) -> Iterator[C]:
        """Borrow the connection of ``key``; replace it after an error of Dafka in the block.

        With ``keep`` it stays open, however idle, until the process ends.
        """
        with self._lock:
            entry = self._entries.get(key)
            if entry is None or self._is_replaceable(entry):
                try:
                    entry = self._entries[key] = _Entry(self._open(key))
                except DafkaError as error:
                    if entry is None:
                        raise
                    _log.debug("the connection is not replaced: %s", error)
                    entry.retry_at = time.monotonic() + timing.STORE_BACKOFF_S
            entry.users += 1
            entry.is_kept |= keep
        is_collected = False
        try:
            yield entry.connection
        except GeneratorExit:
            is_collected = True
            raise
        except DafkaError as error:
            with self._lock:
                # Lost records are no fault of the connection.
                if self._entries.get(key) is entry and not isinstance(error, DataLossError):
                    del self._entries[key]
            raise
        finally:
            self._give_back(key, entry, is_collected=is_collected)

    def _is_replaceable(self, entry: _Entry[C]) -> bool:
        is_due = not entry.users and time.monotonic() >= entry.retry_at
        return is_due and self._has_expired(entry.connection)

    def close(self) -> None:
        """Close all connections."""
        with self._lock:
            entries, self._entries = self._entries, {}
        for entry in entries.values():
            entry.connection.close()

    def forget(self) -> None:
        """Start empty in a forked child.

        The parent's connections stay referenced, because the destructor of a Flight client waits
        for threads that do not exist in the child.
        """
        self._of_parents.append(self._entries)
        self._lock = threading.RLock()
        self._entries = {}
        self._sweeper = None

    def _give_back(self, key: K, entry: _Entry[C], *, is_collected: bool) -> None:
        if sys.is_finalizing():
            return  # the interpreter would wait forever for a thread started now
        with self._lock:
            entry.users -= 1
            entry.idle_since = time.monotonic()
            is_replaced = entry.users == 0 and self._entries.get(key) is not entry
            if self._entries and self._sweeper is None:
                self._sweeper = threading.Thread(target=self._sweep, daemon=True)
                self._sweeper.start()
        if is_replaced and is_collected:
            # This thread may hold a lock that closing needs.
            threading.Thread(target=entry.connection.close, daemon=True).start()
        elif is_replaced:
            entry.connection.close()

    def _sweep(self) -> None:
        while True:
            time.sleep(self._idle_s / 4)
            before = time.monotonic() - self._idle_s
            with self._lock:
                idle = [
                    key
                    for key, each in self._entries.items()
                    if not each.users and not each.is_kept and each.idle_since <= before
                ]
                closing = [self._entries.pop(key) for key in idle]
                if not self._entries:
                    self._sweeper = None
            for entry in closing:
                entry.connection.close()
            if self._sweeper is not threading.current_thread():
                return


def _has_expired(reader: ClusterReader) -> bool:
    return isinstance(reader, KnownStoresReader) and time.monotonic() >= reader.retry_at


_readers: Connections[MeshAddress, ClusterReader] = Connections(join, has_expired=_has_expired)
_clients: Connections[tuple[StoreLocation, KeyFiles], StoreClient] = Connections(
    lambda key: StoreClient(*key)
)
_logs: Connections[None, LocalLogs] = Connections(lambda _: LocalLogs())
for _pool in (_readers, _clients, _logs):
    atexit.register(_pool.close)
    os.register_at_fork(after_in_child=_pool.forget)


def borrow_reader(address: MeshAddress) -> AbstractContextManager[ClusterReader]:
    """Borrow this process's reader of a mesh."""
    return _readers.borrow(address)


def borrow_reader_for_query(address: MeshAddress) -> AbstractContextManager[ClusterReader]:
    """Borrow this process's reader of a mesh, and keep it open: a query needs no tower later."""
    return _readers.borrow(address, keep=True)


def borrow_client(location: StoreLocation, keys: KeyFiles) -> AbstractContextManager[StoreClient]:
    """Borrow this process's client of a store."""
    return _clients.borrow((location, keys))


def borrow_logs() -> AbstractContextManager[LocalLogs]:
    """Borrow the opened logs of this machine's stores."""
    return _logs.borrow(None)

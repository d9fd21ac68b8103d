"""What a process keeps open between tasks and triggers, for all that runs there.

One reader of the mesh per tower, one client per store, and the logs of this machine's stores.
Spark keeps its Python workers for later tasks but tells them neither when a query ends nor when
they are retired: what has not been used for a while is closed here.
"""

from __future__ import annotations

import atexit
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Generic, TypeVar

from dafka_core import Reader
from dafka_core.config.node_options import KeyFiles
from dafka_core.errors import (
    DafkaError,
    DataLossError,
    NoStoreError,
    StoreUnreachableError,
    TowerNotFoundError,
)
from dafka_core.flight.local_log import LocalLogs
from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.store_location import StoreLocation
from dafka_core.model.records import KnownStore, PartitionInfo, merge_heads
from dafka_core.system.closing import Closing
from dafka_spark.cluster import preflight, timing
from dafka_spark.cluster.known_stores import MAX_ASKED, MeshlessReader, TowerlessReader, remembered
from dafka_spark.cluster.timing import Deadline
from dafka_spark.options import MeshAddress

NO_MESH: Final = "with option stores there is no mesh to read from"

_ANY_TOPIC: Final = "-"
"""Asked for only to hear of the stores."""


class NamedStoresReader(MeshlessReader):
    """In place of a mesh's reader: what some stores say by Arrow Flight.

    Args:
        uris: where they are.
        keys: by which they let this process in.
    """

    def __init__(self, uris: Sequence[str], keys: KeyFiles) -> None:
        self._keys = keys
        self._uris = uris
        self._found: dict[str, StoreLocation] = {}  # by URI
        self._failure = ""
        self._looked_at = -math.inf

    def stores(self) -> list[str]:
        """See ``Reader``: one that has never answered goes by its URI."""
        return sorted(self._locations())

    def endpoints(self) -> dict[str, tuple[str, ...]]:
        """See ``Reader``: where the stores are, first as the option says."""
        self._look()
        return {name: each.locations for name, each in self._locations().items()}

    def hear_stores(self, *, timeout_s: float) -> None:
        """See ``Reader``."""
        self.partitions([_ANY_TOPIC], timeout_s=timeout_s)

    def partitions(
        self, topics: Collection[str] | None = None, *, timeout_s: float
    ) -> list[PartitionInfo]:
        """See ``Reader``: what the stores that answer have together.

        Raises:
            NoStoreError: none has answered within ``timeout_s`` seconds.
        """
        for _ in (deadline := Deadline(timeout_s)).attempts():
            self._look(again=True)
            infos: list[PartitionInfo] = []
            answered = False
            for location in self._found.values():
                with suppress(DafkaError), StoreClient(location, self._keys) as client:
                    infos += client.heads(topics, timeout_s=timing.ANSWER_S)
                    answered = True
            if answered:
                return [*merge_heads(infos).values()]
        error = NoStoreError(self._uris, deadline.timeout_s)
        error.add_note(self._failure)
        raise error

    def missing_stores(self, *, timeout_s: float) -> list[KnownStore]:
        """See ``Reader``: those named that do not answer, and those that others know."""
        self._look()
        found = self._locations()
        missing = [KnownStore(uri, uri) for uri in self._uris if uri not in self._found]
        for location in self._found.values():
            with suppress(DafkaError), StoreClient(location, self._keys) as client:
                told = client.stores(timeout_s=timeout_s)
                others = {each.store: each for each in told if each.store not in found}
                missing += [
                    KnownStore(name, "".join(each.locations[-1:])) for name, each in others.items()
                ]
        return sorted({each.store: each for each in missing}.values())

    def _refusal(self) -> DafkaError:
        return StoreUnreachableError(", ".join(self._uris), NO_MESH)

    def _locations(self) -> dict[str, StoreLocation]:
        found = (self._found.get(uri, StoreLocation(uri, (uri,))) for uri in self._uris)
        return {each.store: each for each in found}

    def _look(self, *, again: bool = False) -> None:
        """Asks the stores who they are, if that was long ago, or one of them is not known."""
        is_complete = len(self._found) == len(self._uris)
        age_s = timing.DESCRIPTION_S if is_complete else timing.RETRY_S
        if time.monotonic() < self._looked_at + age_s and not (again and not self._found):
            return
        self._looked_at = time.monotonic()
        with ThreadPoolExecutor(min(len(self._uris), MAX_ASKED)) as pool:
            for uri, location in zip(self._uris, pool.map(self._describe, self._uris), strict=True):
                if location is not None:
                    self._found[uri] = location

    def _describe(self, uri: str) -> StoreLocation | None:
        try:
            with StoreClient(StoreLocation("", (uri,)), self._keys) as client:
                return client.describe(timeout_s=timing.ANSWER_S).found_at([uri])
        except DafkaError as error:
            self._failure = f"{uri}: {error}"
            return None


Connect = Callable[[MeshAddress], AbstractContextManager[Reader]]
"""Joins a mesh and lends a reader of what is there."""

K = TypeVar("K", bound=Hashable)
C = TypeVar("C", bound=Closing)


@dataclass(slots=True)
class _Entry(Generic[C]):
    lent: C
    users: int = 0
    idle_since: float = field(default_factory=time.monotonic)
    kept: bool = False


class Connections(Generic[K, C]):
    """What is open, by what it was opened with.  Thread-safe.

    Args:
        open_: opens what belongs to a key.
        idle_s: how long what nobody uses stays open.
        is_old: whether something is to be opened anew for the next borrower.
    """

    def __init__(
        self,
        open_: Callable[[K], C],
        idle_s: float = timing.IDLE_S,
        is_old: Callable[[C], bool] = lambda _: False,
    ) -> None:
        self._open = open_
        self._is_old = is_old
        self._idle_s = idle_s
        # A borrower that is abandoned gives back when it is collected: perhaps in a thread that
        # holds the lock already.
        self._lock = threading.RLock()
        self._entries: dict[K, _Entry[C]] = {}
        self._sweeper: threading.Thread | None = None
        self._abandoned: list[dict[K, _Entry[C]]] = []

    @contextmanager
    def lend(self, key: K, *, keep: bool = False) -> Iterator[C]:
        """What ``key`` opens; after an error of it the next borrower gets a new one.

        With ``keep`` it stays open for the life of the process, whoever uses it.
        """
        with self._lock:
            entry = self._entries.get(key)
            if entry is None or (self._is_old(entry.lent) and not entry.users):
                entry = self._entries[key] = _Entry(self._open(key))
            entry.users += 1
            entry.kept |= keep
        collected = False
        try:
            yield entry.lent
        except GeneratorExit:
            collected = True
            raise
        except DataLossError:
            raise
        except DafkaError:
            with self._lock:
                if self._entries.get(key) is entry:
                    del self._entries[key]
            raise
        finally:
            self._give_back(key, entry, collected=collected)

    def close(self) -> None:
        """Closes everything."""
        with self._lock:
            entries = list(self._entries.values())
            self._entries.clear()
        for entry in entries:
            entry.lent.close()

    def forget(self) -> None:
        """Begins anew, in a forked child: what is open is its parent's.

        It is not even let go of: a client's destructor would wait for threads that stayed behind.
        """
        self._abandoned.append(self._entries)
        self._lock = threading.RLock()
        self._entries = {}
        self._sweeper = None

    def _give_back(self, key: K, entry: _Entry[C], *, collected: bool) -> None:
        if sys.is_finalizing():
            return  # a thread that is started now would be waited for without end
        with self._lock:
            entry.users -= 1
            entry.idle_since = time.monotonic()
            dropped = entry.users == 0 and self._entries.get(key) is not entry
            if self._entries and self._sweeper is None:
                name = "dafka-idle-connections"
                self._sweeper = threading.Thread(target=self._sweep, name=name, daemon=True)
                self._sweeper.start()
        if dropped and collected:
            # Closing waits, and this thread may hold what it waits for.
            threading.Thread(target=entry.lent.close, name="dafka-closing", daemon=True).start()
        elif dropped:
            entry.lent.close()

    def _sweep(self) -> None:
        while True:
            time.sleep(self._idle_s / 4)
            before = time.monotonic() - self._idle_s
            with self._lock:
                entries = list(self._entries.items())
                idle = [
                    key
                    for key, each in entries
                    if not each.users and not each.kept and each.idle_since <= before
                ]
                closing = [self._entries.pop(key).lent for key in idle]
                done = not self._entries
                if done:
                    self._sweeper = None
            for lent in closing:
                lent.close()
            if done:
                return


def _join(address: MeshAddress) -> Reader:
    if address.stores:
        return NamedStoresReader(address.stores, address.keys)
    known = remembered(address.name)
    patience = {"tower_timeout_s": timing.TOWER_S} if known else {}
    try:
        settings = {**patience, **dict(address.node)}
        given = {"tower": address.tower, "host": address.host, "port": address.port}
        return preflight.join(partial(Reader, **given), address.tower, settings)
    except TowerNotFoundError as error:
        return TowerlessReader(known, error, address.keys)


_readers: Connections[MeshAddress, Reader] = Connections(
    _join, is_old=lambda reader: isinstance(reader, TowerlessReader) and reader.is_old
)
_clients: Connections[tuple[StoreLocation, KeyFiles], StoreClient] = Connections(
    lambda key: StoreClient(*key)
)
_logs: Connections[None, LocalLogs] = Connections(lambda _: LocalLogs())
for _kept in (_readers, _clients, _logs):
    atexit.register(_kept.close)
    os.register_at_fork(after_in_child=_kept.forget)


def lend(address: MeshAddress) -> AbstractContextManager[Reader]:
    """A reader of one mesh, from this process's own."""
    return _readers.lend(address)


def lend_kept(address: MeshAddress) -> AbstractContextManager[Reader]:
    """The same, for a query: it needs no tower again for as long as the process lives."""
    return _readers.lend(address, keep=True)


def lend_client(location: StoreLocation, keys: KeyFiles) -> AbstractContextManager[StoreClient]:
    """A client of one store, from this process's own."""
    return _clients.lend((location, keys))


def lend_logs() -> AbstractContextManager[LocalLogs]:
    """The logs of this machine's stores that this process has open."""
    return _logs.lend(None)

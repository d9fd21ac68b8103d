"""One reader of Dafka's stores per process and tower, shared by the tasks that run there.

Spark keeps its Python workers for later tasks but tells them neither when a query ends nor when
they are retired: a reader nobody has used for a while is closed here.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Final, Protocol

from dafka_core import Reader
from dafka_core.errors import DafkaError, DataLossError
from dafka_core.records import PartitionInfo, Run
from dafka_spark.options import Via

IDLE_S: Final = 60.0
"""Longer than the time between micro-batches of most queries, so that they find it connected."""


class Source(Protocol):
    """What reading needs of ``dafka_core.Reader``."""

    def partitions(
        self, topics: Collection[str] | None = None, *, timeout_s: float
    ) -> list[PartitionInfo]:
        """What the stores hold."""

    def read(
        self, topic: str, partition: str, start: int, end: int, *, timeout_s: float
    ) -> Iterator[Run]:
        """The records of a range, in order."""

    def times(
        self, topic: str, partition: str, start: int, end: int, *, timeout_s: float
    ) -> list[tuple[int, int]]:
        """When a store wrote them."""

    def close(self) -> None:
        """Lets go of sockets and threads."""


Connect = Callable[[Via], AbstractContextManager[Source]]
"""Takes the way into a mesh and lends a reader of what is there."""


@dataclass(slots=True)
class _Entry:
    source: Source
    users: int = 0
    idle_since: float = field(default_factory=time.monotonic)


class Connections:
    """Readers by the way into their mesh.  Thread-safe."""

    def __init__(self, open_source: Callable[[Via], Source], idle_s: float = IDLE_S) -> None:
        self._open = open_source
        self._idle_s = idle_s
        self._lock = threading.Lock()
        self._entries: dict[Via, _Entry] = {}
        self._sweeper: threading.Thread | None = None

    @contextmanager
    def lend(self, via: Via) -> Iterator[Source]:
        """A reader for ``via``; after an error of it the next borrower gets a new one."""
        with self._lock:
            entry = self._entries.get(via)
            if entry is None:
                entry = self._entries[via] = _Entry(self._open(via))
            entry.users += 1
        try:
            yield entry.source
        except DataLossError:
            raise
        except DafkaError:
            with self._lock:
                if self._entries.get(via) is entry:
                    del self._entries[via]
            raise
        finally:
            self._give_back(via, entry)

    def close(self) -> None:
        """Closes all readers."""
        with self._lock:
            entries = list(self._entries.values())
            self._entries.clear()
        for entry in entries:
            entry.source.close()

    def forget(self) -> None:
        """Drops all readers without closing them: in a forked child they are the parent's."""
        self._lock = threading.Lock()
        self._entries = {}
        self._sweeper = None

    def _give_back(self, via: Via, entry: _Entry) -> None:
        with self._lock:
            entry.users -= 1
            entry.idle_since = time.monotonic()
            dropped = entry.users == 0 and self._entries.get(via) is not entry
            if self._entries and self._sweeper is None:
                self._sweeper = threading.Thread(
                    target=self._sweep, name="dafka-idle-readers", daemon=True
                )
                self._sweeper.start()
        if dropped:
            entry.source.close()

    def _sweep(self) -> None:
        while True:
            time.sleep(self._idle_s / 4)
            before = time.monotonic() - self._idle_s
            with self._lock:
                idle = [
                    via
                    for via, entry in self._entries.items()
                    if entry.users == 0 and entry.idle_since <= before
                ]
                closing = [self._entries.pop(via).source for via in idle]
                done = not self._entries
                if done:
                    self._sweeper = None
            for source in closing:
                source.close()
            if done:
                return


def _open_reader(via: Via) -> Source:
    return Reader(tower=via.tower, host=via.host)


_connections = Connections(_open_reader)
atexit.register(_connections.close)
os.register_at_fork(after_in_child=_connections.forget)


def lend(via: Via) -> AbstractContextManager[Source]:
    """A reader of the mesh that ``via`` leads into, from this process's own."""
    return _connections.lend(via)

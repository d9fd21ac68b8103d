"""The LMDB environment below the log: one directory, three tables, transactions.

LMDB maps the whole file, and a read transaction sees it as it was when the transaction began.  The
map has its full size from the beginning: growing would move it, which LMDB forbids while any
transaction is open (``mdb_env_set_mapsize``).

Only the process that writes a directory opens it with LMDB, whose list of readers identifies those
of other processes by their ids: these mean nothing in another container.  Others read by lease
(``leases.py``).

A watcher of changed partitions names the last change that it knows, and the writer wakes it
(``HeadChanges``).  So an idle log costs nothing, and unchanged partitions are never examined.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator
from io import FileIO
from itertools import takewhile
from pathlib import Path
from typing import Final, NamedTuple, Protocol, TypeVar

import lmdb

from dafka_core.errors import ClosedError, StoreError
from dafka_core.model.histograms import Durations
from dafka_core.model.json_message import JsonMessage
from dafka_core.model.records import TopicPartition
from dafka_core.storage.leases import Lease, LeaseTable
from dafka_core.storage.open_environment import (
    FilePositions,
    Opened,
    files_at,
    lock_writer,
    open_environment,
)
from dafka_core.storage.snapshot import Snapshot
from dafka_core.storage.storage_errors import DATA_FILE, translated
from dafka_core.storage.tables import Tables
from dafka_core.system.closing import ProcessBound, check_process

DEFAULT_MAP_BYTES = 1 << 43
"""Address space, not memory or disk: more than a store's disk has, so that the map never has to
grow.  It is half of ext4's largest file, and a sixteenth of a process's address space."""

T = TypeVar("T")


class Space(JsonMessage, frozen=True):
    """The size of a directory's file, and the part that readers pin.

    The file does not shrink: ``free_bytes`` of ``file_bytes`` are free for later records.  During
    leases some of that cannot be used again yet.
    """

    file_bytes: int
    free_bytes: int
    leases: int
    oldest_lease_s: float


class Compressed(NamedTuple):
    """The offset up to which a partition's blocks were compressed last.

    ``returns`` is how often compression went back, to records that replaced others.
    """

    returns: int
    end: int


UNCOMPRESSED: Final = Compressed(0, 0)


class Environment(ProcessBound):
    """One directory.  Any number of threads may read; LMDB serialises writers.

    Its methods raise ClosedError after ``close``, and StoreError when LMDB or the disk fails.
    """

    def __init__(self, directory: Path, *, map_size_bytes: int) -> None:
        self.directory = directory
        self.changes = HeadChanges()  # partitions changed since opening
        self.syncs = Durations()
        self.compressed: dict[TopicPartition, Compressed] = {}  # since opening
        self._changed = threading.Condition()
        self._uses = 0
        self._written_bytes = 0
        with contextlib.ExitStack() as opening:
            # A file closes when it is collected, so that a dropped log locks no other out.
            self._lock = FileIO(lock_writer(directory))
            opening.callback(self._lock.close)
            self._leases = LeaseTable(directory)
            opening.callback(self._leases.close)
            opened = open_environment(directory, map_size_bytes=map_size_bytes)
            opening.callback(opened.env.close)
            opening.callback(self._leases.end_all)
            # Absolute: the process may change its working directory.
            self._path = directory.absolute()
            with translated(directory):
                self._files = files_at(self._path)
            self._closing = opening.pop_all()
        self.positions = FilePositions(directory / DATA_FILE)  # those of values in its file
        self.damaged = opened.damaged  # the partitions in which a read has found damage
        self._opened: Opened | None = opened

    @contextlib.contextmanager
    def reading(self) -> Iterator[Snapshot]:
        """Open the tables in a read transaction.  Their results are valid only inside: copy them.

        A thread must not open a second one inside the first.
        """
        with self._using() as opened, opened.env.begin(buffers=True) as txn:
            yield Snapshot(opened, txn)

    def read(self, work: Callable[[Snapshot], T]) -> T:
        """Return the result of ``work`` in a read transaction; it must be a copy."""
        with self.reading() as tables:
            return work(tables)

    def write(self, work: Callable[[Tables], T]) -> T:
        """Return the result of ``work`` after its writes are on disk; or none of them is."""
        with self._using() as opened:
            self._leases.end_due(self._written_bytes)
            with opened.env.begin(write=True, buffers=True) as txn:
                tables = Tables(opened, txn)
                done = work(tables)
                tables.area.flush()
                self._written_bytes += tables.written_bytes
                if len(tables.changed) > 1:
                    self.changes.add(tables.changed, wakes=False)
                worked_s = time.perf_counter()
            self.syncs.add(time.perf_counter() - worked_s)
            self.changes.add(tables.changed)
            return done

    def lease(self, work: Callable[[Snapshot], T]) -> tuple[T, Lease | None]:
        """Return ``work``'s result for a moment of the log, and a lease of its pages, if any."""
        with self._using() as opened:
            txn, lease = opened.env.begin(buffers=True), None
            try:
                found = work(Snapshot(opened, txn))
                lease = self._leases.grant(txn, self._written_bytes)
            finally:
                if lease is None:
                    txn.abort()
            return found, lease

    def end_lease(self, lease_id: str) -> None:
        """End a lease, if it has not ended yet."""
        with self._using():
            self._leases.end(lease_id)

    def space(self) -> Space:
        """Return the size of the file, and the part that readers pin."""
        with self._using() as opened:
            file_bytes = (opened.env.info()["last_pgno"] + 1) * opened.env.stat()["psize"]
            self._leases.end_due(self._written_bytes)
            with opened.env.begin() as txn:
                stats = [opened.env.stat(), *map(txn.stat, opened[3:])]
            pages = 2 + sum(
                each["branch_pages"] + each["leaf_pages"] + each["overflow_pages"] for each in stats
            )
            ages_s = self._leases.ages_s()
            free_bytes = max(file_bytes - pages * stats[0]["psize"], 0)
            return Space(file_bytes, free_bytes, len(ages_s), max(ages_s, default=0.0))

    def check_open(self) -> None:
        """Raise ClosedError after ``close``."""
        if self._opened is None:
            raise ClosedError("store's log")

    def check_readable(self) -> None:
        """Raise StoreError if a write has failed halfway, after which LMDB reads nothing more."""
        with self._using() as opened, contextlib.suppress(lmdb.ReadersFullError):
            opened.env.begin().abort()

    def check_in_place(self) -> None:
        """Raise StoreError if the files at its path are not those that it has open for writing.

        A system continues to write unlinked files, and drops them when they are closed.  The lock
        goes with them: a second store may have begun at the path.
        """
        why = ""
        try:
            if files_at(self._path) == self._files:
                return
        except OSError as error:
            why = f" ({error.strerror})"
        raise StoreError(
            self.directory,
            f"the directory or a file in it was removed, renamed or replaced while the store "
            f"ran{why}. New records would be lost, so the store acknowledges nothing more: restore "
            "the directory, exclude it from programs that delete temporary files, and restart the "
            "store",
        )

    def close(self) -> None:
        """Wait for transactions to end, end leases, then close.  Idempotent."""
        with self._changed:
            opened, self._opened = self._opened, None
            self._changed.wait_for(lambda: self._uses == 0)
        if opened is not None:
            self._closing.close()

    def on_forked(self) -> None:
        """Leave the lock to the parent: it lasts until every copy of its descriptor is closed."""
        if "_lock" in vars(self):
            self._lock.close()

    @contextlib.contextmanager
    def _using(self) -> Iterator[Opened]:
        """Return the open environment, which is not closed inside."""
        check_process("store's log", self.process)
        with self._changed:
            opened = self._opened
            if opened is None:
                raise ClosedError("store's log")
            self._uses += 1
        try:
            with translated(self.directory):
                yield opened
        finally:
            with self._changed:
                self._uses -= 1
                self._changed.notify_all()


# -- changed partitions ----------------------------------------------------------------------------

MAX_KEPT_CHANGES: Final = 10_000
"""Number of partitions with a remembered change: as many as one answer names."""

Topics = frozenset[str] | None  # the topics of a watcher; None for all


class Woken(Protocol):
    """A ``threading.Event``, or another object to set."""

    def set(self) -> None:
        """Signal a change.  Called in the writer's thread, which must not be kept waiting."""


W = TypeVar("W", bound=Woken)


class HeadChanges:
    """The order in which partitions were last written, trimmed or cut.  Thread-safe."""

    def __init__(self) -> None:
        self.number = 0  # of the last change
        self._lock = threading.RLock()
        self._numbers = OrderedDict[TopicPartition, int]()  # the last change of each, in order
        self._forgotten = 0  # up to this number some changes are forgotten
        self._watchers: dict[Woken, Topics] = {}

    def add(self, changed: Collection[TopicPartition], *, wakes: bool = True) -> None:
        """Note partitions whose change is visible from now on, and wake their watchers.

        Partitions that change together are also noted shortly before they become visible, waking no
        watcher: otherwise a reader at that moment could learn of only one of them.
        """
        if not changed:
            return
        with self._lock:
            self.number += 1
            for tp in changed:
                self._numbers[tp] = self.number
                self._numbers.move_to_end(tp)
            while len(self._numbers) > MAX_KEPT_CHANGES:
                _, self._forgotten = self._numbers.popitem(last=False)
            if wakes and self._watchers:
                topics = {tp.topic for tp in changed}
                for woken, watched in self._watchers.items():
                    if watched is None or not watched.isdisjoint(topics):
                        woken.set()

    def since(self, number: int, topics: Topics) -> list[TopicPartition] | None:
        """Return the partitions changed after a change; None if that is forgotten.

        Some may be unchanged for readers: with staged records, for instance.
        """
        with self._lock:
            if not self._forgotten <= number <= self.number:
                return None
            newer = takewhile(lambda each: each[1] > number, reversed(self._numbers.items()))
            return [tp for tp, _ in newer if topics is None or tp.topic in topics]

    @contextlib.contextmanager
    def waking(self, woken: W, number: int, topics: Topics) -> Iterator[W]:
        """Set the caller's object as soon as ``since`` has a result, and at each change after."""
        with self._lock:
            if self.since(number, topics) != []:
                woken.set()
            self._watchers[woken] = topics
        try:
            yield woken
        finally:
            with self._lock:
                del self._watchers[woken]
